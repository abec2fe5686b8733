"""Minimum s-t cut: the exact optimum of additive latency on two devices; alpha-expansion for more.

Stone, "Multiprocessor scheduling with the aid of network flow algorithms", IEEE Transactions on Software Engineering
SE-3(1), 1977, shows that the placement of modules on two processors with the least sum of running and communication
times is a minimum cut.

Additive latency is the sum of node times and transfers, each tensor counted once per receiving device. The cut does not
know the costs of submodels and the memory limits, which the simulator has beside these; a surcharge on every transfer
stands for the costs of submodels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ov_hsdag import _native
from ov_hsdag.placers.base import best_of, by_structure
from ov_hsdag.problem.problem import PlacementProblem

# Largest number of sweeps of alpha-expansion over all devices; it ends earlier where a sweep gains nothing.
_MAX_SWEEPS = 4


@dataclass(frozen=True)
class MinCut:
    """Places by minimum cut: exact for two devices without submodel costs, else the best of two cuts by simulation."""

    name: str = "mincut"

    def place(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """Finds a placement, see `Placer.place`."""
        return by_structure(self._find, problem)[0]

    def _find(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """The best cut over some surcharges on transfers, uint8 [1, groups]."""
        # Shares of a submodel's cost that a transfer pays: a cut tensor often, but not always, makes one more submodel.
        surcharges = (0.0, 1.0) if problem.submodel_us.any() else (0.0,)
        return best_of(problem, [_solve(problem, share) for share in surcharges])[None]


def _solve(problem: PlacementProblem, share: float) -> NDArray[np.uint8]:
    """Finds the placement of least additive latency, with a surcharge on every transfer.

    Args:
        problem: the problem.
        share: share of a submodel's cost that each transfer costs additionally.

    Returns:
        The placement, uint8 [groups]: the optimum on two devices, the result of alpha-expansion on more.
    """
    size = problem.tensors.bytes[:, None, None]
    fixed = problem.transfer_us + share * problem.submodel_us[None, :]
    times = fixed + problem.transfer_us_per_byte * size + problem.tensor_fusion_penalty_us[:, None, :]
    # Time of each tensor's transfer, µs, float64 [tensors, devices, devices].
    transfers = np.where(np.eye(len(problem.devices), dtype=bool), 0.0, times)
    if len(problem.devices) == 2:
        return _cut_two(problem, transfers).astype(np.uint8)
    return _expand(problem, transfers)


class _Network:
    """Edges of a flow network between `nodes` inner nodes, a source (device 0) and a sink (device 1)."""

    def __init__(self, nodes: int) -> None:
        """Makes a network of `nodes` inner nodes without edges."""
        self.nodes = nodes
        self.source, self.sink = nodes, nodes + 1
        self.size = nodes + 2
        self._from: list[NDArray[np.int64]] = []
        self._to: list[NDArray[np.int64]] = []
        self._capacity: list[NDArray[np.float64]] = []

    def add(self, start: NDArray[np.integer], end: NDArray[np.integer], capacity: NDArray[np.float64]) -> None:
        """Adds edges from `start` to `end` nodes; an edge of infinite capacity is never cut.

        Args:
            start: numbers of the nodes that edges leave, [edges].
            end: numbers of the nodes that they enter, [edges].
            capacity: their capacities, [edges], or one for all.
        """
        start, end = np.broadcast_arrays(start, end)
        self._from.append(start.astype(np.int64))
        self._to.append(end.astype(np.int64))
        self._capacity.append(np.broadcast_to(capacity, start.shape).astype(np.float64))

    def new_nodes(self, count: int) -> NDArray[np.int64]:
        """Adds `count` further inner nodes; returns their numbers, int64 [count]."""
        first = self.size
        self.size += count
        return np.arange(first, first + count)

    def sink_side(self) -> NDArray[np.bool_]:
        """Whether each of the first `nodes` inner nodes is on the sink's side of a minimum cut, bool [nodes]."""
        side = _native.sink_side_of_min_cut(
            self.size,
            self.source,
            self.sink,
            np.concatenate(self._from),
            np.concatenate(self._to),
            np.concatenate(self._capacity),
        )
        return side[: self.nodes].astype(bool)


def _cut_two(problem: PlacementProblem, transfers: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Finds the optimum of additive latency on two devices, as one minimum cut.

    Args:
        problem: the problem, on two devices.
        transfers: time of each tensor's transfer, µs, float64 [tensors, devices, devices]; the sender comes first.

    Returns:
        Whether each group is on the second device, bool [groups].
    """
    network = _Network(problem.group_count)
    groups = np.arange(problem.group_count)
    # A node on the sink's side cuts its edge from the source: it pays its time on the second device.
    network.add(np.full_like(groups, network.source), groups, problem.group_us[:, 1])
    network.add(groups, np.full_like(groups, network.sink), problem.group_us[:, 0])
    tensors = problem.tensors
    if len(tensors):
        # A helper node per tensor and direction: the tensor is paid once, however many consumers are across.
        forth, back = network.new_nodes(len(tensors)), network.new_nodes(len(tensors))
        of_consumer = tensors.of_consumer
        network.add(tensors.source, forth, transfers[:, 0, 1])
        network.add(forth[of_consumer], tensors.consumers, np.array(np.inf))
        network.add(back, tensors.source, transfers[:, 1, 0])
        network.add(tensors.consumers, back[of_consumer], np.array(np.inf))
    return network.sink_side()


def _energy(problem: PlacementProblem, transfers: NDArray[np.float64], placement: NDArray[np.uint8]) -> float:
    """Computes the additive latency of a placement, µs; `transfers` are as in `_cut_two`."""
    tensors = problem.tensors
    nodes = problem.group_us[np.arange(problem.group_count), placement].sum()
    sent = np.unique(np.stack([tensors.of_consumer, placement[tensors.consumers]], axis=1), axis=0)
    return float(nodes + transfers[sent[:, 0], placement[tensors.source[sent[:, 0]]], sent[:, 1]].sum())


def _expand(problem: PlacementProblem, transfers: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Alpha-expansion (Boykov, Veksler, Zabih 2001) for more than two devices.

    Each step finds the best set of groups to move to one device, by a minimum cut. Within a step, a tensor with several
    consumers counts once for each of them in part; a step is kept only where the true additive latency falls.

    Args:
        problem: the problem.
        transfers: time of each tensor's transfer, see `_cut_two`.

    Returns:
        The placement, uint8 [groups].
    """
    singles = [*problem.singles, problem.group_us.argmin(axis=1).astype(np.uint8)]
    energies = [_energy(problem, transfers, placement) for placement in singles]
    placement, energy = singles[int(np.argmin(energies))], min(energies)
    for _ in range(_MAX_SWEEPS):
        before = energy
        for device in range(len(problem.devices)):
            moved = _expansion(problem, transfers, placement, device)
            moved_energy = _energy(problem, transfers, moved)
            if moved_energy < energy:
                placement, energy = moved, moved_energy
        if energy >= before:
            break
    return placement


def _expansion(
    problem: PlacementProblem, transfers: NDArray[np.float64], placement: NDArray[np.uint8], device: int
) -> NDArray[np.uint8]:
    """Makes one step of alpha-expansion: moves the best set of groups to one device, by a minimum cut.

    Args:
        problem: the problem.
        transfers: time of each tensor's transfer, see `_cut_two`.
        placement: the placement before the step, uint8 [groups]; it is not changed.
        device: number of the device that groups move to.

    Returns:
        The placement after the step, uint8 [groups].
    """
    network = _Network(problem.group_count)
    groups = np.arange(problem.group_count)
    stay = problem.group_us[groups, placement].copy()
    move = problem.group_us[:, device].copy()
    tensors = problem.tensors
    counts = np.diff(tensors.consumer_ptr)
    of_consumer = tensors.of_consumer
    source, target = tensors.source[of_consumer], tensors.consumers
    source_device, target_device = placement[source], placement[target]
    share = transfers[of_consumer] / counts[of_consumer][:, None, None]
    row = np.arange(len(of_consumer))
    both_stay = share[row, source_device, target_device]
    source_stays = share[row, source_device, device]
    target_stays = share[row, device, target_device]
    # Pairwise terms as in Kolmogorov and Zabih 2004: constants to the nodes, the rest to one edge.
    np.add.at(stay, source, np.maximum(both_stay - target_stays, 0))
    np.add.at(move, source, np.maximum(target_stays - both_stay, 0))
    np.add.at(stay, target, np.maximum(target_stays, 0))
    edge = np.maximum(source_stays + target_stays - both_stay, 0)
    network.add(np.full_like(groups, network.source), groups, move)
    network.add(groups, np.full_like(groups, network.sink), stay)
    network.add(source, target, edge)
    moved = placement.copy()
    moved[network.sink_side()] = device
    return moved
