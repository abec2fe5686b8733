"""The view of a problem for the learning baselines: a graph of the units that they place, and features of these.

A unit is a colocation group, or several that the rule of co-location of Mirhoseini et al. joins (`colocated`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import shortest_path

from ov_hsdag.model.graph import NodeKind
from ov_hsdag.policy.features import TYPE_COLUMN, TYPE_COLUMNS
from ov_hsdag.problem.problem import PlacementProblem, topological_groups

Floats = NDArray[np.float64]

SHAPE_DIMENSIONS = 5
"""Number of dimensions of an output shape among the features, counted from the last: shapes rarely have more."""

SMALLEST_RATIO, LARGEST_RATIO = 1e-2, 1e2
"""Range to which times and bytes, divided by their means, are clipped before taking logarithms, so that zeros and
outliers do not dominate."""


@dataclass(frozen=True, eq=False)
class UnitGraph:
    """A graph of units of placement, numbered in topological order of their first operation."""

    problem: PlacementProblem
    unit: NDArray[np.int64]  # unit of each colocation group, int64 [groups]
    size: int  # number of units
    us: Floats  # time of each unit on each device, µs, inf where unsupported, float64 [size, devices]
    edges: NDArray[np.int64]  # producing and consuming unit of each edge, each pair once, no loops, int64 [2, edges]
    edge_bytes: Floats  # bytes transferred along each edge if its ends are on two devices, float64 [edges]

    @classmethod
    def of(cls, problem: PlacementProblem, merged: NDArray[np.integer[Any]] | None = None) -> UnitGraph:
        """Makes the graph of a problem.

        Args:
            problem: a problem in which each colocation group has a device that supports it.
            merged: a number for each colocation group, equal for groups of one unit, [groups]; None for one unit each.
        """
        numbers = np.arange(problem.group_count) if merged is None else np.asarray(merged)
        order = topological_groups(problem)
        _, first, dense = np.unique(numbers[order], return_index=True, return_inverse=True)
        rank = np.empty(len(first), np.int64)
        rank[np.argsort(first)] = np.arange(len(first))
        unit = np.empty(problem.group_count, np.int64)
        unit[order] = rank[dense]
        size = len(first)
        us = np.zeros((size, len(problem.devices)))
        np.add.at(us, unit, problem.group_us)
        edges, edge_bytes = _edges(problem, unit, size)
        return cls(problem, unit, size, us, edges, edge_bytes)

    @cached_property
    def supported(self) -> NDArray[np.bool_]:
        """Whether a device supports all of a unit, bool [size, devices]."""
        return np.isfinite(self.us)

    @cached_property
    def reference(self) -> float:
        """Sum of the units' times on their fastest devices, s; costs divided by it are comparable between models."""
        return max(float(self.us.min(axis=1).sum()) * 1e-6, 1e-12)

    @cached_property
    def unit_of_node(self) -> NDArray[np.int64]:
        """Unit of each node of the problem's graph, int64 [nodes]."""
        return self.unit[self.problem.groups]

    @cached_property
    def type_time(self) -> Floats:
        """Time of each family of operation types in each unit, µs, float64 [size, TYPE_COLUMNS]."""
        graph = self.problem.graph
        time = self.problem.node_us.mean(axis=1)
        # Nodes without a time get a tiny one, constants a smaller one, so that each unit has shares.
        least = 1e-6 * max(float(time.max()), 1e-6)
        time = time + np.where(graph.kinds == NodeKind.CONSTANT, 1e-3 * least, least)
        table = np.zeros((self.size, TYPE_COLUMNS))
        columns = np.array([TYPE_COLUMN.get(name, TYPE_COLUMNS - 1) for name in graph.types])
        np.add.at(table, (self.unit_of_node, columns), time)
        return table

    @cached_property
    def type_shares(self) -> Floats:
        """Share of each family of operation types in a unit's time, float64 [size, TYPE_COLUMNS]."""
        return self.type_time / self.type_time.sum(axis=1, keepdims=True)

    @cached_property
    def main_type(self) -> NDArray[np.int64]:
        """Family of the operation type that takes most of each unit's time, int64 [size]."""
        return self.type_time.argmax(axis=1).astype(np.int64)

    @cached_property
    def shapes(self) -> Floats:
        """Logarithmic output shape of each unit's last operation, padded with 0, float64 [size, SHAPE_DIMENSIONS]."""
        graph = self.problem.graph
        operations = np.flatnonzero((np.diff(graph.output_ptr) > 0) & (graph.kinds != NodeKind.CONSTANT))
        last = np.full(self.size, -1)
        last[self.unit_of_node[operations]] = operations
        result = np.zeros((self.size, SHAPE_DIMENSIONS))
        for unit, node in enumerate(last.tolist()):
            shape = graph.output_shapes[graph.output_ptr[node]][-SHAPE_DIMENSIONS:] if node >= 0 else ()
            result[unit, SHAPE_DIMENSIONS - len(shape) :] = shape
        return np.log2(1 + result) / 16

    @cached_property
    def adjacency(self) -> Floats:
        """1 where two units share an edge, in either direction, float64 [size, size]."""
        result = np.zeros((self.size, self.size))
        result[self.edges[0], self.edges[1]] = result[self.edges[1], self.edges[0]] = 1
        return result

    @cached_property
    def bytes_out(self) -> Floats:
        """Bytes of each unit that other units read, float64 [size]."""
        return np.bincount(self.edges[0], self.edge_bytes, self.size).astype(np.float64)

    @cached_property
    def costs(self) -> Floats:
        """Logarithms of times on each device and of bytes read by others, relative to their means, [size, D + 1]."""
        fastest = self.us.min(axis=1).mean()
        ratio = np.where(self.supported, self.us, np.inf) / max(fastest, 1e-9)
        out = self.bytes_out / max(self.bytes_out.mean(), 1e-9)
        return np.log(np.clip(np.concatenate([ratio, out[:, None]], axis=1), SMALLEST_RATIO, LARGEST_RATIO))

    @cached_property
    def ancestors(self) -> NDArray[np.bool_]:
        """Whether a path leads from column to row, bool [size, size]; no unit is its own ancestor."""
        matrix = coo_matrix((np.ones(self.edges.shape[1]), (self.edges[0], self.edges[1])), (self.size, self.size))
        reached = np.isfinite(shortest_path(matrix.tocsr(), unweighted=True)).T
        np.fill_diagonal(reached, False)
        return np.asarray(reached)

    def expand(self, devices: NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
        """Converts placements of units, [..., size], into placements of colocation groups, uint8 [..., groups]."""
        return np.asarray(devices)[..., self.unit].astype(np.uint8)


def _edges(problem: PlacementProblem, unit: NDArray[np.int64], size: int) -> tuple[NDArray[np.int64], Floats]:
    """`UnitGraph.edges` and `UnitGraph.edge_bytes`."""
    tensors = problem.tensors
    of_tensor = tensors.of_consumer
    source, target = unit[tensors.source[of_tensor]], unit[tensors.consumers]
    crossing = source != target
    # A tensor that several groups of one unit read is transferred once.
    rows = np.unique(np.stack([of_tensor[crossing], target[crossing]], axis=1), axis=0)
    keys = unit[tensors.source[rows[:, 0]]] * size + rows[:, 1]
    pairs, edge = np.unique(keys, return_inverse=True)
    edge_bytes = np.bincount(edge, tensors.bytes[rows[:, 0]], len(pairs)).astype(np.float64)
    return np.stack([pairs // size, pairs % size]), edge_bytes


def colocated(problem: PlacementProblem) -> NDArray[np.int64]:
    """Joins each colocation group to the only group that consumes its outputs.

    This is the rule of co-location of Mirhoseini et al., ICML 2017, section 3.3.

    Returns:
        A number for each colocation group, equal for joined groups, int64 [groups]. Some device supports all of them.
    """
    graph = UnitGraph.of(problem)
    consumers = np.bincount(graph.edges[0], minlength=graph.size)
    consumer = np.full(graph.size, -1)
    consumer[graph.edges[0]] = graph.edges[1]
    root, supported = np.arange(graph.size), graph.supported.copy()
    for unit in range(graph.size - 1, -1, -1):
        if consumers[unit] != 1:
            continue
        # Consumers come later in topological order, so that they have been joined already.
        target = int(root[consumer[unit]])
        both = supported[unit] & supported[target]
        if target != unit and both.any():
            root[root == unit] = target
            supported[target] = both
    return root[graph.unit]


def units(problem: PlacementProblem, colocate: bool) -> UnitGraph:
    """The units of a problem: its colocation groups, joined by `colocated` if `colocate` is true."""
    return UnitGraph.of(problem, colocated(problem) if colocate else None)
