"""The commands, and the exit status of each way in which one ends."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ov_hsdag._version import __version__
from ov_hsdag.cli import console
from ov_hsdag.cli.bench import bench
from ov_hsdag.cli.calibrate import calibrate
from ov_hsdag.cli.devices import devices
from ov_hsdag.cli.explain import explain
from ov_hsdag.cli.extension import extension
from ov_hsdag.cli.finetune import finetune
from ov_hsdag.cli.fit import fit
from ov_hsdag.cli.place import place
from ov_hsdag.cli.pretrain import pretrain
from ov_hsdag.cli.strip import strip
from ov_hsdag.cli.verify import verify
from ov_hsdag.utils.errors import RunError, UserError, interrupted

app = typer.Typer(
    context_settings={"help_option_names": ["-h", "--help"]},  # of the subcommands, too
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class _Command(TyperCommand):
    """Takes -m MODEL, as OpenVINO's own tools do, where the model is an argument."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if any(param.name in ("model", "models") and param.param_type_name == "argument" for param in self.params):
            args = [word.removeprefix("--model=") for word in args if word not in ("-m", "--model")]
        return list(super().parse_args(ctx, args))


for _command in (place, fit, verify, explain, devices, calibrate, bench, finetune, pretrain, extension, strip):
    # Its first sentence, whole: what is made up without it is cut at 45 characters.
    app.command(cls=_Command, short_help=(_command.__doc__ or "").partition("\n\n")[0])(_command)


def _print_version(value: bool) -> None:
    if value:
        print(f"ov-hsdag {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Decide on which device each operation of an OpenVINO model runs."""


# Its own class is private to typer, which carries its own copy of click in newer releases.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def run() -> int:
    """Run the command line.

    Returns:
        The exit status: 0 done, 1 a device or OpenVINO failed, 2 bad input.

    Raises:
        BaseException: The command was interrupted; :func:`ov_hsdag.utils.errors.interrupted` is true of it.
    """
    console.prepare_streams()
    console.one_line_warnings()
    try:
        return app(prog_name="ov-hsdag", standalone_mode=False) or 0
    except UserError as error:
        return console.fail(error, 2)
    except _UsageError as error:
        return console.fail(error, 2, hint="see ov-hsdag --help")
    except RunError as error:
        return console.fail(error, 1)
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    except BrokenPipeError:
        return console.broken_pipe()
    except Exception as error:
        if interrupted(error):
            raise
        return console.fail(error, 1, hint="--debug shows where")
