"""Placements in which devices take turns along a topological order, whole or branch by branch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.graph import ComputationGraph, NodeKind
from ov_hsdag.placers.stretches import Stretches, all_stretches
from ov_hsdag.problem.coarse import CoarseView, Floats
from ov_hsdag.problem.problem import PlacementProblem


@dataclass(frozen=True, eq=False)
class Turns:
    """What stretches of any topological order of a problem are made of.

    Attributes:
        view: the problem by coarse groups.
        us: times with guesses for what a device lacks: the fastest does it, with transfers in and out; µs [size, D].
        weights: of each group, as a share of what the model needs of memory on one device [size].
        largest: bytes of the largest operation's inputs and outputs of each group [size].
        room: what of that need each device has memory for, inf where there is no limit [D].
    """

    view: CoarseView
    us: Floats
    weights: Floats
    largest: Floats
    room: Floats

    @classmethod
    def of(cls, problem: PlacementProblem, threads: int = 1) -> Turns:
        """threads: for the structural features of the view."""
        view = CoarseView.of(problem, threads)
        need = max(float(problem.evaluate(problem.single(0)).memory_bytes[0].sum()), 1.0)
        return cls(
            view=view,
            us=np.where(np.isfinite(view.us), view.us, view.best[:, None] + view.into + view.out_of),
            weights=view.sums(problem.graph.weight_bytes) / need,
            largest=_largest(problem.graph, view),
            room=np.where(problem.memory_bytes >= 0, problem.memory_bytes / need, np.inf),
        )

    def stretches(self, position: NDArray[np.int32], filled: float = 1.0) -> list[Stretches]:
        """Stretches of a topological order for each sequence of the devices, best first.

        Args:
            position: place of each group in the order [size].
            filled: share of the devices' room that may be filled.
        """
        problem, view = self.view.problem, self.view
        order = np.argsort(position)
        first, last = view.spans(position)
        forward = last > first
        count, size = (
            _crossing(amount[forward], first[forward], last[forward], view.size)
            for amount in (np.ones(len(first)), view.tensor_bytes)
        )
        # Roughly: what crosses the places around a group, or an operation's inputs and outputs inside it. All of the
        # model needs what its weights do not.
        alive = np.maximum(self.largest[order], np.maximum(size[:-1], size[1:]))
        alive *= (1 - self.weights.sum()) / max(alive.max(), 1e-30)
        return all_stretches(
            self.us[order],
            (count, size),
            (problem.transfer_us, problem.transfer_us_per_byte),
            problem.submodel_us,
            self.weights[order],
            alive,
            filled * self.room,
            problem.objective == "throughput",
        )

    def placements(self, shares: Sequence[float], sequences: int, orders: int = 0, seed: int = 0) -> NDArray[np.uint8]:
        """Placements in which devices take turns along topological orders, uint8 [placements, groups].

        Args:
            shares: of the memory that devices have; how much is needed is an estimate.
            sequences: of the devices, at most so many, the best ones for each order and share.
            orders: besides the order of the features, so many random ones that finish a branch before they begin
                another: where branches are independent, each order has other splits.
            seed: of these.
        """
        view, problem = self.view, self.view.problem
        generator = np.random.default_rng(seed)
        positions = [view.position, *(_branch_by_branch(view, generator) for _ in range(orders))]
        found = [
            inside(position, stretches).argmax(axis=1)[problem.coarse]
            for position in positions
            for filled in shares
            for stretches in self.stretches(position, filled)[:sequences]
        ]
        placements = np.stack(found).astype(np.uint8)
        instead = problem.group_us.argmin(axis=1).astype(np.uint8)
        supported = problem.group_supported[np.arange(problem.group_count), placements]
        return np.where(supported, placements, instead)


def inside(position: NDArray[np.int32], stretches: Stretches) -> NDArray[np.bool_]:
    """Groups of each device's stretch, bool [size, D]."""
    return (position[:, None] >= stretches.begin) & (position[:, None] < stretches.end)


def _largest(graph: ComputationGraph, view: CoarseView) -> Floats:
    """Bytes of the largest operation's inputs and outputs, constants aside, of each group [size]."""
    moved = np.where(graph.kinds[graph.output_node] == NodeKind.CONSTANT, 0, graph.output_bytes).astype(np.float64)
    of_node = np.bincount(graph.output_node, moved, graph.nodes)
    of_node += np.bincount(graph.input_node, moved[graph.input_output], graph.nodes)
    largest = np.zeros(view.size)
    np.maximum.at(largest, view.node, of_node)
    return largest


def _crossing(amount: Floats, first: NDArray[np.int64], last: NDArray[np.int64], size: int) -> Floats:
    """Sums of what crosses each place of an order from `first` to `last`, [size + 1]."""
    change = np.bincount(first + 1, amount, size + 2) - np.bincount(last + 1, amount, size + 2)
    return np.maximum(np.cumsum(change)[: size + 1], 0.0)


def _branch_by_branch(view: CoarseView, generator: np.random.Generator) -> NDArray[np.int32]:
    """Place of each group in a random topological order, from the outputs back: depth first, inputs in random order."""
    inputs: list[list[int]] = [[] for _ in range(view.size)]
    shuffled = generator.permutation(view.edge_index.shape[1])
    for producer, consumer in view.edge_index[:, shuffled].T.tolist():
        inputs[consumer].append(producer)
    ends = np.setdiff1d(np.arange(view.size), view.edge_index[0])
    position = np.full(view.size, -1, np.int32)
    opened = np.zeros(view.size, bool)
    number = 0
    # All groups follow the ends, in case of a cycle among groups, which has none.
    for end in [*generator.permutation(ends).tolist(), *range(view.size)]:
        stack = [end]
        while stack:
            at = stack[-1]
            if not opened[at]:
                opened[at] = True
                stack += [group for group in inputs[at] if not opened[group]]
                continue
            stack.pop()
            if position[at] < 0:
                position[at] = number
                number += 1
    return position
