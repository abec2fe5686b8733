"""The environment variable that turns ov-hsdag off."""

import os

VARIABLE = "OV_HSDAG_DISABLE"


def disabled() -> bool:
    """Whether ``OV_HSDAG_DISABLE`` is set to anything but "" and "0". Asked at every use, so it can change any time."""
    return os.environ.get(VARIABLE, "") not in ("", "0")
