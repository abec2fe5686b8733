"""Repair: placements that HETERO cannot run become ones that it can."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag import _native
from ov_hsdag.model.graph import ComputationGraph


def repair(
    graph: ComputationGraph,
    groups: NDArray[np.int32],
    same_submodel: NDArray[np.int32],
    placement: NDArray[np.integer[Any]],
    supported: NDArray[np.bool_],
    rule: int,
) -> NDArray[np.uint8]:
    """Moves groups until HETERO can order the submodels, each computes something, and `same_submodel` holds.

    Args:
        groups: colocation groups, int32 [nodes].
        same_submodel: pairs of nodes that must share a submodel, int32 [pairs, 2].
        placement: device of each group, [groups].
        supported: devices that each group can be on, bool [groups, devices].
        rule: HETERO's splitting rule.

    Returns:
        uint8 [groups]; as it was where nothing is wrong, and everything on one device where nothing else helps.
    """
    return _native.repair(graph.native, groups, same_submodel, np.asarray(placement, np.uint8), supported, rule)


def split_rule(openvino_version: str) -> int:
    """Which of HETERO's splitting rules a release of OpenVINO ("2026.4.1-…") has (native `SplitRule`)."""
    return _native.split_rule_of(openvino_version)
