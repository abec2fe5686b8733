"""A model made ready for placement, and what of it does not depend on what things cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ov_hsdag import devices as hardware
from ov_hsdag import legality
from ov_hsdag.clock import Clock
from ov_hsdag.costs.profile import Profile
from ov_hsdag.graph import ComputationGraph
from ov_hsdag.support import support

if TYPE_CHECKING:
    import openvino as ov


@dataclass(frozen=True, eq=False)
class Prepared:
    """What calibration and placement share.

    Attributes:
        model: normalised.
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
    """Normalises `model`, in place, and asks which devices run what.

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
    with clock("normalise"):
        legality.normalise(model)
    with clock("graph"):
        graph = ComputationGraph.from_model(model, shapes=shapes)
    with clock("legality"):
        groups = legality.colocation(graph)
    with clock("support"):
        supported = profile.support(graph, names)
        absent = hardware.absent(core, names)
        present = [name for name in names if name not in absent]
        supported[:, [names.index(name) for name in present]] = support(model, graph, present, core)
        legality.require_support(graph, groups, supported, names)
    return Prepared(model, shapes, graph, tuple(names), supported, groups)
