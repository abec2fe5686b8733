"""The analysis of a model: what of it does not depend on what things cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.costs import cost_model
from ov_hsdag.costs.profile import Profile
from ov_hsdag.devices import discovery
from ov_hsdag.model import colocation, normalize
from ov_hsdag.model.graph import ComputationGraph
from ov_hsdag.model.support import require_support, support
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.timing import Clock

if TYPE_CHECKING:
    import openvino as ov


@dataclass(frozen=True, eq=False)
class ModelAnalysis:
    """What of a model does not depend on what things cost; calibration and placement share it.

    Attributes:
        model: normalized.
        shapes: example shapes of its dynamic inputs.
        graph: of the model.
        devices: names, in HETERO's order.
        supported: which devices run which nodes, bool [nodes, devices].
    """

    model: ov.Model
    shapes: Mapping[str, Sequence[int]] | None
    graph: ComputationGraph
    devices: tuple[str, ...]
    supported: NDArray[np.bool_]

    @cached_property
    def groups(self) -> NDArray[np.int32]:
        """Colocation groups: nodes of one group share a device. Dense numbers, int32 [nodes]."""
        return colocation.colocation(self.graph)

    @cached_property
    def replicable_producers(self) -> NDArray[np.bool_]:
        """Nodes that must be where their consumers are, bool [nodes]."""
        return colocation.replicable_producers(self.graph)

    @cached_property
    def colocation_constraints(self) -> NDArray[np.int32]:
        """Pairs of nodes that must share a device, those of replicable producers left out, int32 [pairs, 2]."""
        return colocation.colocation_constraints(self.graph)

    @cached_property
    def same_submodel_constraints(self) -> NDArray[np.int32]:
        """Pairs of nodes that must share a submodel, int32 [pairs, 2]."""
        return colocation.same_submodel_constraints(self.graph)

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
) -> ModelAnalysis:
    """Normalizes `model`, in place, and asks which devices run what.

    Args:
        model: any.
        names: of the devices, in HETERO's order.
        core: asked for the devices that it has.
        profile: for those that it lacks.
        shapes: example shapes of dynamic inputs.
        clock: counts the phases.

    Raises:
        UserError: an unknown device, a model without operations, or an operation that no device runs.
        RunError: a device cannot say what it supports.
    """
    clock = clock or Clock()
    for name in names:
        profile.device(name)
    if not (model.get_parameters() or model.get_results() or model.get_sinks()):
        raise UserError("the model is empty: it has no operations")
    graph, part = normalize.normalize_by_excerpt(model, shapes, clock)
    with clock("legality"):
        groups = colocation.colocation(graph)
    with clock("support"):
        supported = cost_model.assumed_support(profile, graph, names)
        absent = discovery.absent(core, names)
        present = [name for name in names if name not in absent]
        supported[:, [names.index(name) for name in present]] = support(model, graph, present, core, part)
        require_support(graph, groups, supported, names)
    return ModelAnalysis(model, shapes, graph, tuple(names), supported)
