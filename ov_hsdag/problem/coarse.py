"""A placement problem by coarse groups: times, tensors between groups, and places in the graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag import _native
from ov_hsdag.problem.problem import PlacementProblem

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CoarseView:
    """A problem by coarse groups.

    Attributes:
        problem: what is seen; each of its groups has a device that supports it.
        size: number of coarse groups.
        node: coarse group of each node, int32 [nodes].
        us: time of each group on each device, µs, inf without support [size, D].
        best: the least of each row [size].
        tensor_bytes, producer: size and producing group of each tensor that another legality group consumes [T].
        received, receiver: tensor and receiving group of each transfer that may be, [R].
        edge_index: producing and receiving group of each edge; each pair once, int64 [2, E].
        edge_of: the edge of each transfer [R].
        mean_transfer: mean time to bring a tensor from one device to another, µs [T].
        into, out_of: mean time to bring a device what a group receives from other devices, and to take away what it
            sends, µs [size, D].
        structure: places, degrees, fractal dimension and closeness of groups, see `_native.structure_features`.
    """

    problem: PlacementProblem
    size: int
    node: NDArray[np.int32]
    us: Floats
    best: Floats
    tensor_bytes: Floats
    producer: NDArray[np.int32]
    received: NDArray[np.int64]
    receiver: NDArray[np.int32]
    edge_index: NDArray[np.int64]
    edge_of: NDArray[np.int64]
    mean_transfer: Floats
    into: Floats
    out_of: Floats
    structure: dict[str, Any]

    @classmethod
    def of(cls, problem: PlacementProblem, threads: int = 1) -> CoarseView:
        coarse = problem.coarse
        size = int(coarse.max()) + 1
        devices = len(problem.devices)
        # Infinite where any group is: the sum is, too.
        us = np.zeros((size, devices))
        np.add.at(us, coarse, problem.group_us)

        tensors = problem.tensors
        of_consumer = np.repeat(np.arange(len(tensors)), np.diff(tensors.consumer_ptr))
        producer, receiver = coarse[tensors.source], coarse[tensors.consumers]
        outside = producer[of_consumer] != receiver
        # A tensor with several consumers in one coarse group goes there once.
        keys = np.unique(of_consumer[outside].astype(np.int64) * size + receiver[outside])
        received, receiver = keys // size, (keys % size).astype(np.int32)
        pairs, edge_of = np.unique(producer[received].astype(np.int64) * size + receiver, return_inverse=True)

        sent = np.zeros(len(tensors), bool)
        sent[received] = True
        tensor_bytes = tensors.bytes.astype(np.float64)
        others = max(devices - 1, 1)
        fixed, rate = _off_diagonal(problem.transfer_us), _off_diagonal(problem.transfer_us_per_byte)

        def bring(group: NDArray[np.int32], amount: Floats, axis: int) -> Floats:
            count, size_in = np.bincount(group, minlength=size), np.bincount(group, amount, size)
            return (count[:, None] * fixed.sum(axis) + size_in[:, None] * rate.sum(axis)) / others

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
            into=bring(receiver, tensor_bytes[received], 0),
            out_of=bring(producer[sent], tensor_bytes[sent], 1),
            structure=_native.structure_features(size, edge_index, threads=threads),
        )

    @property
    def position(self) -> NDArray[np.int32]:
        """Place of each group in a topological order [size]."""
        position: NDArray[np.int32] = self.structure["position"]
        return position

    def sums(self, values: NDArray[Any]) -> Floats:
        """Sums of nodes' values by coarse group [size]."""
        return np.bincount(self.node, values, self.size).astype(np.float64)

    def spans(self, position: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Places in an order of the group that makes each tensor, and of the last that receives it [T]."""
        first, last = position[self.producer].astype(np.int64), np.zeros(len(self.producer), np.int64)
        np.maximum.at(last, self.received, position[self.receiver])
        return first, last


def _off_diagonal(matrix: Floats) -> Floats:
    return np.where(np.eye(len(matrix), dtype=bool), 0.0, matrix)


def share(part: Any, whole: Any) -> Floats:
    """part / whole, 0 where there is no whole."""
    return np.asarray(part, np.float64) / np.maximum(np.asarray(whole, np.float64), 1e-30)
