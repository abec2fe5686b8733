"""What ov_hsdag.start names for Python 3.15 and later (PEP 829): the same finder as in ov_hsdag.pth.

It runs at every start of the interpreter, so it is a module of its own: the package's would be four files to open.
"""

import sys


class OvHsdagWaits:
    """A finder that finds nothing, and imports our hooks when openvino, or optimum's commands, are imported.

    The class itself is one.
    """

    def find_spec(name, path=None, target=None):
        if name in ("openvino", "optimum.commands"):
            try:  # noqa: SIM105 contextlib is not loaded yet
                import ov_hsdag._autoload  # noqa: F401
            except Exception:
                pass


def wait():
    """Put the finder before the others."""
    sys.meta_path.insert(0, OvHsdagWaits)
