"""The command `ov-hsdag`. One file per subcommand; exit statuses and error lines are decided in app.py, once."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from ov_hsdag.utils.errors import INTERRUPTED, interrupted


def main() -> NoReturn:
    """Runs the command line and ends the process with its exit status.

    Exit status: 0 done, 1 a device or OpenVINO failed, 2 bad input, 130 interrupted.
    """
    status, began = INTERRUPTED, os.getpid()
    try:
        # Importing the commands takes long enough to be interrupted.
        from ov_hsdag.cli.app import run

        status = run()
    except BaseException as error:
        if not interrupted(error):
            raise
    # A child that was interrupted together with its parent leaves the message to the parent.
    if status == INTERRUPTED and os.getpid() == began:
        print("interrupted", file=sys.stderr)
    if "ov_hsdag.cli.child_process" in sys.modules:
        from ov_hsdag.cli.child_process import leave

        leave(status)
    sys.exit(status)
