"""``python -m ov_hsdag script.py …``: run a script as ``python script.py …`` would, with the hooks installed.

For environments where .pth files are not processed. ``python -m ov_hsdag -m module …`` runs a module.
"""

from __future__ import annotations

import os
import runpy
import sys

from ov_hsdag import _autoload

USAGE = "usage: python -m ov_hsdag script.py [argument …]\n       python -m ov_hsdag -m module [argument …]"


def main() -> int:
    """Run the script or module that ``sys.argv`` names, as ``__main__``. Returns 2 where there is none."""
    _autoload.install()
    arguments = sys.argv[1:]
    if arguments and arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    if arguments[:1] == ["-m"] and len(arguments) > 1:
        sys.argv[:] = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return 0
    if not arguments or arguments[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        return 2
    script = arguments[0]
    if not os.path.exists(script):
        print(f"error: no such script: {script}", file=sys.stderr)
        return 2
    sys.argv[:] = arguments
    # -m put the current directory first; a script expects its own. Folders and zip files get theirs from runpy.
    if os.path.isfile(script):
        sys.path[0] = os.path.dirname(os.path.realpath(script))
    runpy.run_path(script, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
