"""A model made ready for placement, and what of it does not depend on what things cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.costs import cost_model
from ov_hsdag.costs.profile import Profile
from ov_hsdag.devices import discovery
from ov_hsdag.model import colocation, normalize
from ov_hsdag.model.graph import ComputationGraph
from ov_hsdag.model.support import require_support, support
from ov_hsdag.utils.timing import Clock

if TYPE_CHECKING:
    import openvino as ov


@dataclass(frozen=True, eq=False)
class Prepared:
    """What calibration and placement share.

    Attributes:
        model: normalized.
        shapes: example shapes of its dynamic inputs.
        graph: of the model.
        devices: names, in HETERO's order.
        supported: which devices run which nodes, bool [nodes, devices].
        groups: group of each node; nodes of one group share a device. int32 [nodes].
    """

    model: ov.Model
    shapes: Mapping[str, Sequence[int]] | None
    graph: ComputationGraph
    devices: tuple[str, ...]
    supported: NDArray[np.bool_]
    groups: NDArray[np.int32]

    def supported_by(self, names: Sequence[str]) -> NDArray[np.bool_]:
        """The columns of `supported` of these devices, bool [nodes, len(names)]."""
        return self.supported[:, [self.devices.index(name) for name in names]]


def prepare(
    model: ov.Model,
    names: Sequence[str],
    core: ov.Core,
    profile: Profile,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    clock: Clock | None = None,
) -> Prepared:
    """Normalizes `model`, in place, and asks which devices run what.

    Args:
        model: any.
        names: of the devices, in HETERO's order.
        core: asked for the devices that it has.
        profile: for those that it lacks.
        shapes: example shapes of dynamic inputs.
        clock: counts the phases.

    Raises:
        UserError: an unknown device, or an operation that no device runs.
        RunError: a device cannot say what it supports.
    """
    clock = clock or Clock()
    for name in names:
        profile.device(name)
    with clock("normalise"):  # a key of Placement.seconds: spelt as it was
        normalize.normalize(model)
    with clock("graph"):
        graph = ComputationGraph.from_model(model, shapes=shapes)
    with clock("legality"):
        groups = colocation.colocation(graph)
    with clock("support"):
        supported = cost_model.assumed_support(profile, graph, names)
        absent = discovery.absent(core, names)
        present = [name for name in names if name not in absent]
        supported[:, [names.index(name) for name in present]] = support(model, graph, present, core)
        require_support(graph, groups, supported, names)
    return Prepared(model, shapes, graph, tuple(names), supported, groups)
