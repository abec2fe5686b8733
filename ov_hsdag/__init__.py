"""ov-hsdag: decide on which device each operation of an OpenVINO model runs.

Importing the package is cheap (neither OpenVINO nor NumPy) and installs the hooks that make ``Core.compile_model``
follow a placement that a model carries; ``OV_HSDAG_DISABLE=1`` keeps them off. The public names load on first use.
"""

from __future__ import annotations

from ov_hsdag import _source_tree

# Where this is true, the names below belong to nobody: `sys.modules` holds the installed package by now.
_GAVE_WAY = _source_tree.gave_way(__path__[0])

from ov_hsdag import _autoload  # noqa: E402
from ov_hsdag._version import __version__  # noqa: E402

TYPE_CHECKING = False  # whoever imports openvino imports this: typing's own constant would cost milliseconds
if TYPE_CHECKING:
    from typing import Any

    from ov_hsdag.applications.plan import Plan
    from ov_hsdag.applications.planning import place_together
    from ov_hsdag.applications.prepared import ModelOf
    from ov_hsdag.calibration.machine import calibrate
    from ov_hsdag.explaining.explain import explain
    from ov_hsdag.explaining.where import where
    from ov_hsdag.integration.copies import Copies
    from ov_hsdag.integration.extension import extension_path
    from ov_hsdag.integration.passes import HSDAGPlacement
    from ov_hsdag.measuring.verification import verify
    from ov_hsdag.model.placement import Placement
    from ov_hsdag.placing.memory_fit import fit
    from ov_hsdag.placing.options import PlaceOptions
    from ov_hsdag.placing.place import place
    from ov_hsdag.utils.errors import PlacementNotFollowedWarning, RunError, UserError

__all__ = [
    "Copies", "HSDAGPlacement", "ModelOf", "PlaceOptions", "Placement", "PlacementNotFollowedWarning", "Plan",
    "RunError", "UserError", "__version__", "calibrate", "explain", "extension_path", "fit", "place", "place_together",
    "verify", "where",
]  # fmt: skip

_HOMES = {
    "Copies": "ov_hsdag.integration.copies",
    "HSDAGPlacement": "ov_hsdag.integration.passes",
    "ModelOf": "ov_hsdag.applications.prepared",
    "PlaceOptions": "ov_hsdag.placing.options",
    "Placement": "ov_hsdag.model.placement",
    "PlacementNotFollowedWarning": "ov_hsdag.utils.errors",
    "Plan": "ov_hsdag.applications.plan",
    "RunError": "ov_hsdag.utils.errors",
    "UserError": "ov_hsdag.utils.errors",
    "calibrate": "ov_hsdag.calibration.machine",
    "explain": "ov_hsdag.explaining.explain",
    "extension_path": "ov_hsdag.integration.extension",
    "fit": "ov_hsdag.placing.memory_fit",
    "place": "ov_hsdag.placing.place",
    "place_together": "ov_hsdag.applications.planning",
    "verify": "ov_hsdag.measuring.verification",
    "where": "ov_hsdag.explaining.where",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        if name == "_native" and not _source_tree.has_core(__path__[0]):
            raise ImportError(_source_tree.advice(__path__[0]))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


if not _GAVE_WAY:
    _autoload.install()
