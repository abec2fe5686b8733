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
from ov_hsdag.model.graph import Floats
from ov_hsdag.placers.base import best_of, placed_once
from ov_hsdag.problem.problem import PlacementProblem, Tensors

# Largest number of sweeps of alpha-expansion over all devices; it ends earlier where a sweep gains nothing.
_MAX_SWEEPS = 4

# Shares of a submodel's cost that a transfer pays: a cut tensor often, but not always, makes one more submodel.
_SURCHARGES = (0.0, 1.0)

# Number of halvings of the interval of weights. Further ones seldom find another cut.
_HALVINGS = 6

# Number of the last cuts that are simulated: the cuts of the first halvings leave most work to one device.
_SIMULATED_CUTS = 3


@dataclass(frozen=True)
class MinCut:
    """Places by minimum cut: exact for two devices without submodel costs, else the best of some cuts by simulation.

    A minimum cut has the least sum of the devices' work. For throughput the busiest device counts. So, on two devices,
    further cuts have the least weighted sum, with weights for which the devices have about the same work.
    """

    name: str = "mincut"

    def place(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """Finds a placement, see `Placer.place`."""
        return placed_once(self.name, self._find, problem)

    def _find(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """The best of the cuts by the simulator, uint8 [groups]."""
        surcharges = _SURCHARGES if problem.submodel_us.any() else _SURCHARGES[:1]
        cuts = [_solve(problem, _transfers(problem, share)) for share in surcharges]
        if len(problem.devices) == 2 and problem.objective == "throughput":
            cuts += _balanced_cuts(problem)
        return best_of(problem, cuts)


def _transfers(problem: PlacementProblem, surcharge: float) -> Floats:
    """Times of the transfers of each tensor, 0 within a device, µs, float64 [tensors, devices, devices].

    Args:
        problem: the problem.
        surcharge: share of a submodel's cost that each transfer costs additionally.
    """
    size = problem.tensors.bytes[:, None, None]
    fixed = problem.transfer_us + surcharge * problem.submodel_us[None, :]
    times = fixed + problem.transfer_us_per_byte * size + problem.tensor_fusion_penalty_us[:, None, :]
    return np.where(np.eye(len(problem.devices), dtype=bool), 0.0, times)


def _solve(problem: PlacementProblem, transfers: Floats) -> NDArray[np.uint8]:
    """Finds the placement of least additive latency.

    Args:
        problem: the problem.
        transfers: time of each tensor's transfer, see `_transfers`.

    Returns:
        The placement, uint8 [groups]: the optimum on two devices, the result of alpha-expansion on more.
    """
    if len(problem.devices) == 2:
        return _cut_two(problem.tensors, problem.group_us, transfers)
    return _expand(problem, transfers)


def _balanced_cuts(problem: PlacementProblem) -> list[NDArray[np.uint8]]:
    """Finds cuts of least weighted work on two devices, the weights closer and closer to those of equal work.

    The least weighted work of all placements is a lower bound of the period, and the largest such bound is where the
    work is equal (Lagrangian relaxation).

    Returns:
        The placements, uint8 [groups] each.
    """
    # Work that a transfer takes on each device, by sender and receiver, µs, float64 [tensors, 2, 2].
    moved = problem.transfer_us + problem.transfer_us_per_byte * problem.tensors.bytes[:, None, None]
    received = problem.tensor_fusion_penalty_us + problem.submodel_us
    work = []
    for device, share in enumerate(problem.transfer_shares):
        on_device = share * moved * (1.0 - np.eye(2))
        on_device[:, 1 - device, device] += received[:, device]
        work.append(on_device)
    cuts: list[NDArray[np.uint8]] = []
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        weight = (low + high) / 2
        times = problem.group_us * (weight, 1.0 - weight)
        cut = _cut_two(problem.tensors, times, weight * work[0] + (1.0 - weight) * work[1])
        cuts.append(cut)
        first, second = (_work_of(problem, work[device], cut, device) for device in range(2))
        low, high = (weight, high) if first > second else (low, weight)
    return cuts[-_SIMULATED_CUTS:]


def _work_of(problem: PlacementProblem, transfers: Floats, placement: NDArray[np.uint8], device: int) -> float:
    """Computes the additive work of one device, µs.

    Args:
        problem: the problem.
        transfers: work that the transfer of each tensor takes on the device, µs, float64 [tensors, devices, devices].
        placement: the placement, uint8 [groups].
        device: number of the device.
    """
    own = placement == device
    return float(problem.group_us[own, device].sum() + _transferred(problem, transfers, placement))


class _Network:
    """Edges of a flow network between `nodes` inner nodes, a source (device 0) and a sink (device 1)."""

    def __init__(self, nodes: int) -> None:
        """Makes a network of `nodes` inner nodes without edges."""
        self.nodes = nodes
        self.source, self.sink = nodes, nodes + 1
        self.size = nodes + 2
        self._from: list[NDArray[np.int64]] = []
        self._to: list[NDArray[np.int64]] = []
        self._capacity: list[Floats] = []

    def add(self, start: NDArray[np.integer], end: NDArray[np.integer], capacity: Floats) -> None:
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


def _cut_two(tensors: Tensors, group_us: Floats, transfers: Floats) -> NDArray[np.uint8]:
    """Finds the placement on two devices with the least sum of times, as one minimum cut.

    Args:
        tensors: the tensors between groups.
        group_us: time of each group on each device, inf without support, µs, float64 [groups, 2].
        transfers: time of each tensor's transfer, µs, float64 [tensors, 2, 2]; the sender comes first.

    Returns:
        The placement, uint8 [groups].
    """
    network = _Network(len(group_us))
    groups = np.arange(len(group_us))
    # A node on the sink's side cuts its edge from the source: it pays its time on the second device.
    network.add(np.full_like(groups, network.source), groups, group_us[:, 1])
    network.add(groups, np.full_like(groups, network.sink), group_us[:, 0])
    if len(tensors):
        # A helper node per tensor and direction: the tensor is paid once, however many consumers are across.
        forth, back = network.new_nodes(len(tensors)), network.new_nodes(len(tensors))
        of_consumer = tensors.of_consumer
        network.add(tensors.source, forth, transfers[:, 0, 1])
        network.add(forth[of_consumer], tensors.consumers, np.array(np.inf))
        network.add(back, tensors.source, transfers[:, 1, 0])
        network.add(tensors.consumers, back[of_consumer], np.array(np.inf))
    return network.sink_side().astype(np.uint8)


def _energy(problem: PlacementProblem, transfers: Floats, placement: NDArray[np.uint8]) -> float:
    """Computes the additive latency of a placement, µs; `transfers` are as in `_transfers`."""
    nodes = problem.group_us[np.arange(problem.group_count), placement].sum()
    return float(nodes + _transferred(problem, transfers, placement))


def _transferred(problem: PlacementProblem, transfers: Floats, placement: NDArray[np.uint8]) -> float:
    """Adds up the times of all transfers of a placement, µs; `transfers` are as in `_transfers`."""
    tensors = problem.tensors
    sent = np.unique(np.stack([tensors.of_consumer, placement[tensors.consumers]], axis=1), axis=0)
    return float(transfers[sent[:, 0], placement[tensors.source[sent[:, 0]]], sent[:, 1]].sum())


def _expand(problem: PlacementProblem, transfers: Floats) -> NDArray[np.uint8]:
    """Alpha-expansion (Boykov, Veksler, Zabih 2001) for more than two devices.

    Each step finds the best set of groups to move to one device, by a minimum cut. Within a step, a tensor with several
    consumers counts once for each of them in part; a step is kept only where the true additive latency falls.

    Args:
        problem: the problem.
        transfers: time of each tensor's transfer, see `_transfers`.

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
    problem: PlacementProblem, transfers: Floats, placement: NDArray[np.uint8], device: int
) -> NDArray[np.uint8]:
    """Makes one step of alpha-expansion: moves the best set of groups to one device, by a minimum cut.

    Args:
        problem: the problem.
        transfers: time of each tensor's transfer, see `_transfers`.
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
