"""The analysis of a model: what of it does not depend on what things cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.costs import cost_model
from ov_hsdag.costs.profile import Profile
from ov_hsdag.devices import discovery
from ov_hsdag.model import normalize
from ov_hsdag.model.graph import ComputationGraph
from ov_hsdag.model.support import require_support, support
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.timing import Clock


@dataclass(frozen=True, eq=False)
class ModelAnalysis:
    """What of a model does not depend on what things cost; calibration and placement share it."""

    model: ov.Model  # normalized
    shapes: Mapping[str, Sequence[int]] | None  # example shapes of its dynamic inputs
    graph: ComputationGraph  # of the model
    devices: tuple[str, ...]  # names, in HETERO's order
    supported: NDArray[np.bool_]  # which devices run which nodes, bool [nodes, devices]


def prepare(
    model: ov.Model,
    names: Sequence[str],
    core: ov.Core,
    profile: Profile,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    clock: Clock | None = None,
    placed: bool = False,
) -> ModelAnalysis:
    """Normalizes `model`, in place, and asks which devices run what: the core's own, or the profile for others.

    placed: the model is as a placing left it, see `ov_hsdag.model.clean_up.clean_up`.

    Raises UserError (an unknown device, a model without operations, an operation that no device runs) and RunError (a
    device cannot say what it supports).
    """
    clock = clock or Clock()
    for name in names:
        profile.device(name)
    if not (model.get_parameters() or model.get_results() or model.get_sinks()):
        raise UserError("the model is empty: it has no operations")
    graph, part = normalize.normalize_by_excerpt(model, shapes, clock, placed)
    with clock("legality"):
        groups = graph.legality.groups
    with clock("support"):
        supported = cost_model.assumed_support(profile, graph, names)
        absent = discovery.absent(core, names)
        present = [name for name in names if name not in absent]
        supported[:, [names.index(name) for name in present]] = support(model, graph, present, core, part)
        require_support(graph, groups, supported, names)
    return ModelAnalysis(model, shapes, graph, tuple(names), supported)
