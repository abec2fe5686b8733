"""A view of a placement problem by coarse groups: times, tensors between groups, and positions in the graph.

A coarse group is a set of co-location groups that are placed together, see `PlacementProblem.coarse`. Learned features
and contiguous partitions use this view, because it is much smaller than the graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag import _native
from ov_hsdag.model.graph import Floats
from ov_hsdag.problem.problem import PlacementProblem


@dataclass(frozen=True, eq=False)
class CoarseView:
    """A problem by coarse groups. In this class a "group" is a coarse group, and D is the number of devices."""

    problem: PlacementProblem  # a problem in which each co-location group has a device that supports it
    size: int  # number of groups
    node: NDArray[np.int32]  # group of each node, int32 [nodes]
    us: Floats  # time of each group on each device, µs, inf without support, float64 [size, D]
    best: Floats  # least time of each group, µs, float64 [size]
    tensor_bytes: Floats  # bytes of each tensor with a consumer in another co-location group, float64 [T]
    producer: NDArray[np.int32]  # group that produces each of these tensors, int32 [T]
    # number of the tensor of each possible transfer, int64 [R]; each pair of a tensor and another group that consumes
    # it is one
    received: NDArray[np.int64]
    receiver: NDArray[np.int32]  # consuming group of each possible transfer, int32 [R]
    # producing and consuming group of each edge between groups, each pair once, int64 [2, E]
    edge_index: NDArray[np.int64]
    edge_of: NDArray[np.int64]  # number of the edge of each possible transfer, int64 [R]
    mean_transfer: Floats  # time of each tensor's transfer, mean over all pairs of devices, µs, float64 [T]
    # time to transfer the tensors that a group consumes to a device, mean over the other devices, µs, float64 [size, D]
    into: Floats
    # time to transfer the tensors that a group produces from a device, mean over the others, µs, float64 [size, D]
    out_of: Floats
    # arrays [size] by name: "position", "in_degree", "out_degree", "depth", "height", "fractal_dimension" and
    # "closeness", see `StructureFeatures` in cpp_ext/features.hpp
    structure: dict[str, Any]

    @classmethod
    def of(cls, problem: PlacementProblem, coarse: NDArray[np.int32] | None = None) -> CoarseView:
        """Makes the view of a problem.

        Args:
            problem: the problem.
            coarse: coarse group of each co-location group, int32 [groups]; by default the problem's own.
        """
        coarse = problem.coarse if coarse is None else coarse
        size = int(coarse.max()) + 1
        devices = len(problem.devices)
        # A sum is infinite where any of its co-location groups is, so unsupported devices need no other treatment.
        us = np.stack([np.bincount(coarse, column, size) for column in problem.group_us.T], axis=1, dtype=np.float64)

        tensors = problem.tensors
        of_consumer = tensors.of_consumer
        producer, receiver = coarse[tensors.source], coarse[tensors.consumers]
        outside = producer[of_consumer] != receiver
        # A tensor with several consumers in one coarse group goes there once.
        keys = np.unique(of_consumer[outside].astype(np.int64) * size + receiver[outside])
        received, receiver = keys // size, (keys % size).astype(np.int32)
        pairs, edge_of = np.unique(producer[received].astype(np.int64) * size + receiver, return_inverse=True)

        sent = np.unique(received)
        tensor_bytes = tensors.bytes.astype(np.float64)
        others = max(devices - 1, 1)
        fixed, rate = off_diagonal(problem.transfer_us), off_diagonal(problem.transfer_us_per_byte)

        def mean_transfers_us(group: NDArray[np.int32], amount: Floats, axis: int) -> Floats:
            """Times of transfers by group and device, mean over the other devices, µs, float64 [size, D].

            Args:
                group: group of each transfer.
                amount: bytes of each transfer.
                axis: 0 for transfers to the device, 1 for transfers from it.
            """
            count, total_bytes = np.bincount(group, minlength=size), np.bincount(group, amount, size)
            return (count[:, None] * fixed.sum(axis) + total_bytes[:, None] * rate.sum(axis)) / others

        pairs_of_devices = max(devices * (devices - 1), 1)
        edge_index = np.stack([pairs // size, pairs % size]).astype(np.int64)
        return cls(
            problem=problem,
            size=size,
            node=coarse[problem.groups],
            us=us,
            best=us.min(axis=1),
            tensor_bytes=tensor_bytes,
            producer=producer,
            received=received,
            receiver=receiver,
            edge_index=edge_index,
            edge_of=edge_of,
            mean_transfer=(fixed.sum() + tensor_bytes * rate.sum()) / pairs_of_devices,
            into=mean_transfers_us(receiver, tensor_bytes[received], 0),
            out_of=mean_transfers_us(producer[sent], tensor_bytes[sent], 1),
            structure=_native.structure_features(size, edge_index),
        )

    @property
    def position(self) -> NDArray[np.int32]:
        """Position of each group in a topological order, int32 [size]."""
        position: NDArray[np.int32] = self.structure["position"]
        return position

    def sums(self, values: NDArray[Any]) -> Floats:
        """Sums the values of nodes, [nodes], by group: float64 [size]."""
        return np.bincount(self.node, values, self.size).astype(np.float64)

    def spans(self, position: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Finds the positions of each tensor's producer and of its last consumer in an order of the groups.

        Args:
            position: position of each group in an order, int32 [size].

        Returns:
            Positions of the producers, and of the last consumers in other groups, int64 [T] each. The latter is 0 for a
            tensor that no other group consumes.
        """
        first, last = position[self.producer].astype(np.int64), np.zeros(len(self.producer), np.int64)
        np.maximum.at(last, self.received, position[self.receiver])
        return first, last


def crossing(amount: Floats, first: NDArray[np.integer], last: NDArray[np.integer], size: int) -> Floats:
    """Sums the amounts of the intervals that cross each cut of an order.

    Cut k is in front of position k. An interval crosses it if it begins before k and ends at k or behind.

    Args:
        amount: amount of each interval, such as bytes of a tensor, float64 [intervals].
        first: position at which each interval begins, [intervals].
        last: position at which it ends, [intervals].
        size: number of positions.

    Returns:
        The sum for each cut, float64 [size + 1].
    """
    change = np.bincount(first + 1, amount, size + 2) - np.bincount(last + 1, amount, size + 2)
    return np.maximum(np.cumsum(change)[: size + 1], 0.0)


def off_diagonal(matrix: Floats) -> Floats:
    """Returns the matrix, [D, D], with zeros on its diagonal."""
    return np.where(np.eye(len(matrix), dtype=bool), 0.0, matrix)


def share(part: Any, whole: Any) -> Floats:
    """Divides `part` by `whole`; the result is 0 where both are 0."""
    return np.asarray(part, np.float64) / np.maximum(np.asarray(whole, np.float64), 1e-30)
