"""Assembles the commands, and turns errors into one line and an exit status."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ov_hsdag._version import __version__
from ov_hsdag.cli import _common as common
from ov_hsdag.cli import command_lines, console
from ov_hsdag.cli.bench import bench
from ov_hsdag.cli.calibrate import calibrate
from ov_hsdag.cli.devices import devices
from ov_hsdag.cli.doctor import doctor
from ov_hsdag.cli.explain import explain
from ov_hsdag.cli.extension import extension
from ov_hsdag.cli.finetune import finetune
from ov_hsdag.cli.fit import fit
from ov_hsdag.cli.improve import improve
from ov_hsdag.cli.place import place
from ov_hsdag.cli.plan import plan
from ov_hsdag.cli.pretrain import pretrain
from ov_hsdag.cli.report import report
from ov_hsdag.cli.run import run as run_program
from ov_hsdag.cli.show import show
from ov_hsdag.cli.strip import strip
from ov_hsdag.cli.verify import verify
from ov_hsdag.cli.where import where
from ov_hsdag.cli.worker import worker
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


EXAMPLES: dict[Callable[..., None], str] = {
    place: "ov-hsdag place model.onnx --device HETERO:GPU,CPU --objective throughput",
    plan: "ov-hsdag plan app.toml --device HETERO:GPU,CPU --output placed",
    fit: "ov-hsdag fit llama/ --device HETERO:GPU.0,GPU.1,CPU --context 32768",
    verify: "ov-hsdag verify model_placed.xml --device HETERO:GPU,CPU",
    show: "ov-hsdag show model_placed.xml --output affinity.json",
    explain: "ov-hsdag explain model_placed.xml --type MatMul",
    where: "ov-hsdag where model.xml --device AUTO --expect GPU=80%",
    report: "ov-hsdag report model_placed.xml --output report.html",
    run_program: "ov-hsdag run --objective throughput service.py --port 8000",
    improve: "ov-hsdag improve --budget 30m",
    doctor: "ov-hsdag doctor",
    devices: "ov-hsdag devices --json",
    bench: "ov-hsdag bench model.xml --device HETERO:GPU,CPU --objective throughput",
    calibrate: "ov-hsdag calibrate --device HETERO:GPU,CPU --model model.xml --output machine.json",
    finetune: "ov-hsdag finetune model.xml --device HETERO:GPU,CPU --output tuned --budget 10m",
    pretrain: "ov-hsdag pretrain --output trained --reinforce-steps 5000",
    worker: "ov-hsdag worker --ray head.local:6379",
    extension: "ov-hsdag extension --build",
    strip: "ov-hsdag strip model_placed.xml --output plain.xml",
}
"""The commands in the order in which users come to need them, each with an example."""


def _help_of(command: Callable[..., None]) -> str:
    """The text of `--help`: a command's docstring without its sections for callers in Python."""
    return inspect.cleandoc(command.__doc__ or "").partition("\n\nArgs:\n")[0]


for _command, _example in EXAMPLES.items():
    app.command(
        cls=_Command,
        # Words after the name of a program are its own arguments.
        context_settings={"allow_interspersed_args": False} if _command is run_program else {},
        help=_help_of(_command),
        # The whole first sentence: without it, typer would cut the help after 45 characters.
        short_help=(_command.__doc__ or "").partition("\n\n")[0],
        epilog=f"\b\nExample:\n  {_example}",
    )(common.with_shared_options(_command))


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
