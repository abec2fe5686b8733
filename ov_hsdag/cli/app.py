"""Assembles the commands, and turns errors into one line and an exit status."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ov_hsdag._version import __version__
from ov_hsdag.cli import _common as common
from ov_hsdag.cli import command_lines, console
from ov_hsdag.cli.command import find_commands
from ov_hsdag.utils.errors import RunError, UserError, interrupted

app = typer.Typer(
    context_settings={"help_option_names": ["-h", "--help"]},  # for the subcommands as well
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class _Command(TyperCommand):
    """A command that also accepts its model as -m MODEL, like OpenVINO's own tools."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if any(param.name in ("model", "models") and param.param_type_name == "argument" for param in self.params):
            args = [word.removeprefix("--model=") for word in args if word not in ("-m", "--model")]
        return list(super().parse_args(ctx, args))

    def invoke(self, ctx: Any) -> Any:
        command_lines.running = ctx
        try:
            return super().invoke(ctx)
        finally:
            command_lines.running = None


COMMANDS = find_commands()
"""The subcommands in the order of `--help`."""

for _command in COMMANDS:
    app.command(
        cls=_Command,
        context_settings={"allow_interspersed_args": False} if _command.runs_program else {},
        help=_command.help,
        # The whole first sentence: without it, typer would cut the help after 45 characters.
        short_help=_command.short_help,
        epilog=f"\b\nExample:\n  {_command.example}",
        hidden=_command.hidden,
    )(common.with_shared_options(_command.function))


def _print_version(value: bool) -> None:
    if value:
        print(f"ov-hsdag {__version__}")
        raise typer.Exit


@app.callback(
    invoke_without_command=True,
    epilog="Each command lists its options with --help, and ends with the command that usually comes next; --json"
    " prints one JSON object. Exit status: 0 done, 1 a device or OpenVINO failed, 2 bad input."
    "\n\nnext: ov-hsdag doctor",
)
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Decide on which device each operation of an OpenVINO model runs.

    \b
    ov-hsdag place model.onnx --device HETERO:GPU,CPU    decide, write model_placed.xml
    ov-hsdag verify model_placed.xml -d HETERO:GPU,CPU   the same outputs as on one device?
    ov-hsdag explain model_placed.xml                    what runs where, and why
    ov-hsdag report model_placed.xml -o report.html      the same as a page to look at

    Programs that compile model_placed.xml on "HETERO:GPU,CPU" follow it unchanged.
    """  # noqa: D301 the character \b tells typer to keep the lines of the next paragraph
    if context.invoked_subcommand is None:
        print(context.get_help())


# The base class of usage errors. It is private in typer, which contains its own copy of click in newer releases.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def run() -> int:
    """Runs the command line, and returns its exit status: 0 done, 1 a device or OpenVINO failed, 2 bad input.

    The status of a closed pipe is that of `console.broken_pipe`.

    Raises:
        KeyboardInterrupt: the user pressed Ctrl-C. OpenVINO may have turned that into an error of its own, which is
            raised as it is (`interrupted`).
    """
    console.prepare_streams()
    console.one_line_warnings()
    try:
        status = app(prog_name="ov-hsdag", standalone_mode=False) or 0
        sys.stdout.flush()  # here, so that a full disk is reported as an error of ours and not at Python's exit
        return status
    except UserError as error:
        return console.fail(error, 2)
    except _UsageError as error:
        context = getattr(error, "ctx", None)
        return console.fail(error, 2, hint=f"see {context.command_path if context else 'ov-hsdag'} --help")
    except RunError as error:
        return console.fail(error, 1)
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    except BrokenPipeError:
        return console.broken_pipe()
    except Exception as error:
        if interrupted(error):
            raise
        if console.output_refused(error):
            return console.fail(RunError("cannot write to standard output: its disk is full"), 1)
        return console.fail(error, 1, hint="--debug shows where")
