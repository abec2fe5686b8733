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
    bonds: NDArray[np.int32],
    placement: NDArray[np.integer[Any]],
    supported: NDArray[np.bool_],
    rule: int,
) -> NDArray[np.uint8]:
    """Moves groups until HETERO can order the submodels, each of them computes something, and no bond is torn.

    Args:
        graph: the graph.
        groups: legality groups, int32 [nodes].
        bonds: pairs of nodes that must share a submodel, int32 [pairs, 2].
        placement: device of each group, [groups].
        supported: devices that each group can be on, bool [groups, devices].
        rule: HETERO's splitting rule.

    Returns:
        uint8 [groups]; as it was where nothing is wrong, and everything on one device where nothing else helps.
    """
    result = np.array(placement, np.uint8)
    source, target = graph.input_source, graph.input_node
    for _ in range(len(supported)):
        split = _native.split(graph.native, result[groups], rule)
        submodel = split["submodel"]
        trivial = np.append(split["trivial"], False)[submodel]
        torn = submodel[bonds[:, 0]] != submodel[bonds[:, 1]]
        if trivial.any():
            moving = submodel[trivial.argmax()]
        elif torn.any():
            # What tears it is a submodel elsewhere that feeds one end of the bond; the smallest of them comes over.
            end = submodel[bonds[torn.argmax(), 1]]
            feeders = submodel[source[(submodel[target] == end) & (result[groups[source]] != result[groups[target]])]]
            numbers, sizes = np.unique(submodel[np.isin(submodel, feeders)], return_counts=True)
            moving = numbers[sizes.argmin()] if len(numbers) else end
        elif not split["sortable"]:
            numbers, sizes = np.unique(submodel[split["cyclic"]], return_counts=True)
            moving = numbers[sizes.argmin()]
        else:
            return result
        inside = submodel == moving
        border = inside[source] != inside[target]
        outside = np.where(inside[source], target, source)[border]
        moved = np.unique(groups[inside])
        votes = np.bincount(result[groups[outside]], minlength=supported.shape[1]).astype(float)
        votes[result[moved[0]]] = -1
        votes[~supported[moved].all(axis=0)] = -1
        if votes.max() < 0:
            break
        result[moved] = votes.argmax()
    everywhere = np.flatnonzero(supported.all(axis=0))
    return np.full(len(supported), everywhere[0], np.uint8) if len(everywhere) else result


def split_rule(openvino_version: str) -> int:
    """Which of HETERO's splitting rules a release of OpenVINO has (native `SplitRule`).

    Source: the plugin's subgraph_collector.cpp, openvinotoolkit/openvino pull request 36126. Checked against the
    plugins of 2025.4, 2026.2 and 2026.4 on random graphs.
    """
    year, minor = (int(part) for part in openvino_version.split("-")[0].split(".")[:2])
    return 1 if (year, minor) >= (2026, 3) else 0
