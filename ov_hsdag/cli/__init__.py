"""The command `ov-hsdag`. One file per subcommand; exit statuses and error lines are decided here, once."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer

from ov_hsdag.cli import console
from ov_hsdag.cli.bench import bench
from ov_hsdag.cli.calibrate import calibrate
from ov_hsdag.cli.devices import devices
from ov_hsdag.cli.extension import extension
from ov_hsdag.cli.finetune import finetune
from ov_hsdag.cli.place import place
from ov_hsdag.cli.pretrain import pretrain
from ov_hsdag.cli.strip import strip
from ov_hsdag.cli.verify import verify
from ov_hsdag.utils.errors import RunError, UserError

app = typer.Typer(
    help="Decide on which device each operation of an OpenVINO model runs.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for _command in (place, verify, devices, calibrate, bench, finetune, pretrain, extension, strip):
    app.command()(_command)

# Its own class is private to typer, which carries its own copy of click in newer releases.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def main() -> NoReturn:
    """Run the command line and leave: 0 done, 1 a device or OpenVINO failed, 2 bad input."""
    console.one_line_warnings()
    try:
        status = app(prog_name="ov-hsdag", standalone_mode=False)
    except UserError as error:
        status = console.fail(error, 2)
    except _UsageError as error:
        status = console.fail(error, 2, hint="see ov-hsdag --help")
    except RunError as error:
        status = console.fail(error, 1)
    except (KeyboardInterrupt, typer.Abort):
        status = 130
    except BrokenPipeError:
        status = console.broken_pipe()
    except Exception as error:
        status = console.fail(error, 1, hint="--debug shows where")
    sys.exit(status or 0)
