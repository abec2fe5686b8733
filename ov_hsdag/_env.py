"""The environment variables that are asked before anything else is imported."""

import os

DISABLE = "OV_HSDAG_DISABLE"
VIRTUAL_DEVICES = "OV_HSDAG_VIRTUAL_DEVICES"


def disabled() -> bool:
    """Whether ``OV_HSDAG_DISABLE`` is set to anything but "" and "0", so that nothing of OpenVINO is extended.

    The variable is read at every call, so that it can be set and removed at any time after OpenVINO is imported.
    """
    return os.environ.get(DISABLE, "") not in ("", "0")


def has_virtual_devices() -> bool:
    """Whether virtual devices are declared. They are there with ``OV_HSDAG_DISABLE``, too."""
    return bool(os.environ.get(VIRTUAL_DEVICES))
