"""Ratings of a problem's edges that need no learning: how much the ends of each tensor between groups belong together.

All are arguments of `ov_hsdag.placers.multilevel.search`, float64 [len(problem.tensors)].
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.graph import NodeKind
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.hashes import mixed

# Rounds of Weisfeiler and Lehman's refinement: colours know their surroundings up to this distance.
_ROUNDS = 4


def random(problem: PlacementProblem, seed: int) -> NDArray[np.float64]:
    """Uniform random numbers: what a rating has to beat."""
    return np.random.default_rng(seed).random(len(problem.tensors))


def transfer(problem: PlacementProblem) -> NDArray[np.float64]:
    """Heavy edges: the mean time of a transfer between two devices, µs. The search divides it by the work of both."""
    count = len(problem.devices)
    links = max(count * (count - 1), 1)
    apart = ~np.eye(count, dtype=bool)
    fixed, per_byte = problem.transfer_us[apart].sum() / links, problem.transfer_us_per_byte[apart].sum() / links
    return np.asarray(fixed + per_byte * problem.tensors.bytes + 1e-9)


def repeated_structure(problem: PlacementProblem) -> NDArray[np.float64]:
    """Heavy edges, but edges with equal surroundings at one time, those that recur most often first.

    Layers that are equal are grouped alike: an edge's colour is that of its ends after some rounds of Weisfeiler and
    Lehman's refinement, all edges of one colour have one rating, and two colours never have the same.
    """
    tensors = problem.tensors
    color = edge_colors(problem)
    _, number, counts = np.unique(color, return_inverse=True, return_counts=True)
    often = np.log1p(counts)[number] / np.log1p(counts.max())
    tie = (color >> np.uint64(40)).astype(np.float64) / 2.0**24
    return np.asarray(transfer(problem) * (0.25 + often) * (1.0 + 0.05 * tie)) if len(tensors) else np.zeros(0)


def edge_colors(problem: PlacementProblem) -> NDArray[np.uint64]:
    """Colour of each tensor: that of its source and of its consumers, uint64 [len(problem.tensors)]."""
    tensors = problem.tensors
    source = np.repeat(tensors.source, np.diff(tensors.consumer_ptr))
    tensor = np.repeat(np.arange(len(tensors)), np.diff(tensors.consumer_ptr))
    target = tensors.consumers
    color = _first_colors(problem)
    size = mixed(tensors.bytes.astype(np.uint64))
    for _ in range(_ROUNDS):
        received, sent = np.zeros_like(color), np.zeros_like(color)
        np.add.at(received, target, mixed(color[source] + size[tensor]))
        np.add.at(sent, source, mixed(color[target] ^ size[tensor]))
        color = mixed(color + mixed(received) + mixed(mixed(sent)))
    ends = mixed(color[tensors.source] + size)
    np.add.at(ends, tensor, mixed(~color[target]))
    return ends


def _first_colors(problem: PlacementProblem) -> NDArray[np.uint64]:
    """Types and sizes of a group's operations."""
    graph = problem.graph
    operation = np.isin(graph.kinds, (NodeKind.OP, NodeKind.SINK))
    _, types = np.unique(np.asarray(graph.types), return_inverse=True)
    own = mixed(mixed(types.astype(np.uint64)) + graph.flops.astype(np.uint64) + graph.weight_bytes.astype(np.uint64))
    color = np.zeros(problem.group_count, np.uint64)
    np.add.at(color, problem.groups[operation], own[operation])
    return color
