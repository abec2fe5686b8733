"""The placement problem: the one object that placers, training and benchmarks share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag import _native
from ov_hsdag.costs.terms import TERMS, CostTerm, Part, cost_array
from ov_hsdag.model import colocation
from ov_hsdag.model.graph import ComputationGraph, Floats, NodeKind, array, check_arrays, inverse, pieces
from ov_hsdag.storage.files import atomic_file
from ov_hsdag.utils.errors import UserError, one_line
from ov_hsdag.utils.reading import ARRAYS, parse_json, read_arrays

OBJECTIVES = ("latency", "throughput")  # of one request; of many in flight

FORMAT_VERSION = 1  # format of the files, see `PlacementProblem.save`; other versions are refused

# Share of a model's work, or of its weights, above which a chain is cut, so that a model without branches has some
# forty coarse groups; see `PlacementProblem.coarse`.
CHAIN_SHARE = 1 / 40

# The bit of `Evaluation.infeasible` for memory limits. Moving more groups may still satisfy these.
OVER_MEMORY = np.uint8(4)


def check_objective(objective: str) -> None:
    """Raises UserError where `objective` is not one of `OBJECTIVES`."""
    if objective not in OBJECTIVES:
        raise UserError(f"unknown objective {objective!r:.40}; choose one of {', '.join(OBJECTIVES)}")


MOST_WORK = 50_000_000
"""Steps that evaluating a placement may take, see `PlacementProblem.evaluate`: less than 0.05 s.

Some placements of a deep model cut each layer into submodels and would take minutes.
"""

# Submodels up to which a placement is repaired. Each round of a repair moves a group, and takes longer the more
# submodels there are.
_MOST_REPAIRED = 300


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The simulator's results for a batch of placements."""

    latency_us: Floats  # time of one request, µs, float64 [batch]
    # time between results with many requests in flight, µs, float64 [batch]: the work of the busiest device for one
    # request, or that of cores which devices share, if it is longer
    period_us: Floats
    busy_us: Floats  # work of each device for one request, µs, float64 [batch, devices]
    memory_bytes: NDArray[np.int64]  # weights, states and live tensors on each device, int64 [batch, devices]
    transfer_bytes: NDArray[np.int64]  # bytes that move between devices, int64 [batch]
    cut_tensors: NDArray[np.int32]  # tensors that move between devices, int32 [batch]
    submodels: NDArray[np.int32]  # HETERO_NUMBER_OF_SUBMODELS, int32 [batch]
    # 0, or a sum of 1 (HETERO cannot order the submodels), 2 (a device does not support its operation), 4 (a device's
    # memory limit), 8 (a submodel computes nothing), 16 (a same-submodel constraint is violated), uint8 [batch]
    infeasible: NDArray[np.uint8]

    @property
    def broken(self) -> NDArray[np.bool_]:
        """Whether a placement is infeasible for other reasons than memory limits, bool [batch]."""
        return (self.infeasible & ~OVER_MEMORY) != 0

    def score(self, objective: str) -> Floats:
        """The value to minimise, µs: latency, or the period for throughput; inf where infeasible. float64 [batch]."""
        value = self.latency_us if objective == "latency" else self.period_us
        return np.where(self.infeasible == 0, value, np.inf)


@dataclass(frozen=True, eq=False)
class Breakdown:
    """The terms of the simulator's results for a batch of placements."""

    evaluation: Evaluation  # the results
    # time of each node on its device, without penalties of broken fusions, µs, float64 [batch, nodes]
    node_us: Floats
    fusion_us: Floats  # penalty of each node whose fusion is broken, µs, float64 [batch, nodes]
    # four terms: operations, penalties of broken fusions, calls of submodels, and transfers, µs. Their sum is the
    # latency of one request, float64 [batch, 4], or each device's work, float64 [batch, devices, 4]
    latency_us: Floats
    busy_us: Floats
    # where the transfers of each placement begin in the arrays below, int32 [batch + 1]
    transfer_ptr: NDArray[np.int32]
    transfer_output: NDArray[np.int32]  # number of the tensor among the graph's outputs, int32 [transfers]
    # device numbers, uint8 [transfers]
    transfer_source: NDArray[np.uint8]
    transfer_target: NDArray[np.uint8]
    transfer_bytes: NDArray[np.int64]  # bytes that the transfer moves, int64 [transfers]
    transfer_us: Floats  # time of the transfer, µs, float64 [transfers]
    # time in which each of the two devices is busy with the transfer, µs, float64 [transfers]
    transfer_source_us: Floats
    transfer_target_us: Floats


@dataclass(frozen=True, eq=False)
class PlacementProblem:
    """A graph, devices, costs, limits and an objective. Placements are uint8 [groups] arrays of device numbers."""

    graph: ComputationGraph  # the computation graph of a normalized model
    devices: tuple[str, ...]  # device names in HETERO's order, [devices]
    objective: str  # "latency" or "throughput"
    node_us: Floats = field(metadata=cost_array("node_us"))  # time, µs, float64 [nodes, devices]
    supported: NDArray[np.bool_] = field(metadata=array("nodes", "devices", dtype=np.bool_))  # whether it runs there
    groups: NDArray[np.int32] = field(metadata=array("nodes", dtype=np.int32))  # co-location groups, without gaps
    # fixed time of a transfer from the row's device to the column's, and its time for each byte beyond that, µs,
    # float64 [devices, devices]
    transfer_us: Floats = field(metadata=cost_array("transfer_us"))
    transfer_us_per_byte: Floats = field(metadata=cost_array("transfer_us_per_byte"))
    # time of a submodel's call beyond the time of its nodes, µs, float64 [devices]
    submodel_us: Floats = field(metadata=cost_array("submodel_us"))
    memory_bytes: NDArray[np.int64] = field(metadata=array("devices", dtype=np.int64))  # limits, -1 for no limit
    rule: int  # HETERO's splitting rule, see `split_rule`
    # the node that a node has to share a submodel with for a device to save time on it, -1 for no such node: the node
    # into whose execution it is fused, or one that shares its tensor layout. int32 [nodes, devices]. None if no node
    # has one.
    fused_with: NDArray[np.int32] | None = field(default=None, metadata=cost_array("fused_with"))
    # penalty of a broken fusion: the time that a node takes longer on a device where its `fused_with` is in another
    # submodel, µs, float64 [nodes, devices]. None for no penalties. Minimum cuts and the moves of refinement see only
    # fusions whose tensor has no other consumer. Files have it as "torn_us", as the first releases do.
    fusion_penalty_us: Floats | None = field(default=None, metadata=cost_array("fusion_penalty_us"))
    # bytes that a device stores for each byte of the graph (0.5 where f32 weights become f16), float64 [devices]; 1 by
    # default. Memory limits count bytes of the graph; `stored_bytes` converts them for users. Files have it as "kept".
    storage_ratio: Floats | None = field(default=None, metadata=array("devices", dtype=np.float64, key="kept"))
    # bytes that a transfer of each output moves, int64 [outputs]. Where a workload has inferences of several sizes, it
    # is their mean, while `graph.output_bytes` has the largest size, which counts for memory. By default the same.
    moved_bytes: NDArray[np.int64] | None = field(default=None, metadata=array("outputs", dtype=np.int64, later=True))
    # bytes that each device keeps for each node as long as the model is loaded, for weights and states, in bytes of the
    # graph; int64 [nodes, devices]. By default weights alone.
    held_bytes: NDArray[np.int64] | None = field(
        default=None, metadata=array("nodes", "devices", dtype=np.int64, later=True)
    )
    # bytes that each tensor takes while it is alive, beyond `held_bytes`: 0 where it is a state; int64 [outputs]. By
    # default `graph.output_bytes`.
    live_bytes: NDArray[np.int64] | None = field(default=None, metadata=array("outputs", dtype=np.int64, later=True))
    # share of a transfer's time in which each device is busy with it, if it is one of the two ends; 0 if another engine
    # than the device copies. It counts for throughput only. float64 [devices]; 1 by default.
    transfer_share: Floats | None = field(default=None, metadata=array("devices", dtype=np.float64, later=True))
    # share of the machine's cores that each device takes while it works, where several devices have cores together: a
    # period is no shorter than the time that their work takes on all cores. Searches see it only when they compare
    # results. float64 [devices]. By default each device has its own cores.
    core_share: Floats | None = field(
        default=None, metadata=array("devices", dtype=np.float64, later=True, zeros_are_default=True)
    )

    def __post_init__(self) -> None:
        """Checks the objective (UserError), and that devices and arrays are as documented (ValueError)."""
        check_objective(self.objective)
        if not self.devices:
            raise ValueError("expected at least one device")
        check_arrays(self, {"nodes": self.graph.nodes, "devices": len(self.devices), "outputs": self.graph.outputs})

    def __getstate__(self) -> dict[str, Any]:
        """Returns the fields for pickling, without cached properties; native objects among these cannot be pickled."""
        return {attribute.name: getattr(self, attribute.name) for attribute in fields(self)}

    @cached_property
    def found(self) -> dict[str, NDArray[np.uint8]]:
        """A cache that placers fill: the placement that each found, by the placer's name, uint8 [groups].

        Other placers begin with them.
        """
        return {}

    @cached_property
    def group_count(self) -> int:
        """Number of co-location groups."""
        return int(self.groups.max()) + 1

    @cached_property
    def group_supported(self) -> NDArray[np.bool_]:
        """Devices that run every node of a group, bool [groups, devices]."""
        return colocation.group_support(self.groups, self.supported)

    @cached_property
    def same_submodel(self) -> NDArray[np.int32]:
        """Same-submodel constraints: pairs of nodes that must be in one submodel, int32 [pairs, 2]."""
        return self.graph.legality.same_submodel

    @cached_property
    def group_us(self) -> Floats:
        """Time of each group on each device, µs, inf where it is not supported, float64 [groups, devices]."""
        total = np.zeros((self.group_count, len(self.devices)))
        np.add.at(total, self.groups, self.node_us)
        return np.where(self.group_supported, total, np.inf)

    @cached_property
    def node_held(self) -> NDArray[np.int64]:
        """`held_bytes`, or the graph's weights where that is None, int64 [nodes, devices]."""
        if self.held_bytes is not None:
            return self.held_bytes
        return np.repeat(self.graph.weight_bytes[:, None], len(self.devices), axis=1)

    @cached_property
    def group_held(self) -> Floats:
        """Bytes that each device keeps for each group as long as the model is loaded, float64 [groups, devices]."""
        held = [np.bincount(self.groups, column, self.group_count) for column in self.node_held.T]
        return np.stack(held, axis=1).astype(np.float64)

    @cached_property
    def chains(self) -> NDArray[np.int32]:
        """Chain of each co-location group, int32 [groups].

        A group joins its only successor if it is that group's only predecessor. This is HSDAG's graph coarsening (Duan
        et al., NeurIPS 2024, section on graph coarsening).
        """
        return self._coarsen(np.zeros(self.group_count), np.inf)

    @cached_property
    def coarse(self) -> NDArray[np.int32]:
        """Coarse group of each co-location group, int32 [groups].

        Coarse groups are `chains`, cut where a part has `CHAIN_SHARE` of the work or of the weights. Without the cuts,
        a model that does not branch would be one group, which no placement can balance or fit into memory.
        """
        work = np.where(np.isfinite(self.group_us), self.group_us, np.nan)
        work = np.nan_to_num(np.fmin.reduce(work, axis=1))
        weights = self.group_held.max(axis=1)
        weight = np.maximum(work / max(work.sum(), 1e-30), weights / max(weights.sum(), 1.0))
        return self._coarsen(weight, CHAIN_SHARE)

    def _coarsen(self, weight: Floats, most: float) -> NDArray[np.int32]:
        """Joins groups along chains, see `ov_hsdag.model.colocation.coarsen`.

        Args:
            weight: weight of each co-location group, float64 [groups].
            most: largest total weight of a chain, above which it is cut; inf for no cuts.

        Returns:
            Coarse group of each co-location group, int32 [groups].
        """
        by_node = colocation.coarsen(self.graph, self.groups, self.supported, weight, most)
        result = np.empty(self.group_count, np.int32)
        result[self.groups] = by_node
        return result

    @cached_property
    def tensors(self) -> Tensors:
        """The tensors that can be cut: those with consumers in other groups."""
        moved = self.graph.output_bytes if self.moved_bytes is None else self.moved_bytes
        return Tensors.of(self.graph, self.groups, moved)

    @property
    def transfer_shares(self) -> Floats:
        """`transfer_share`, or ones where that is None, float64 [devices]."""
        return np.ones(len(self.devices)) if self.transfer_share is None else self.transfer_share

    @cached_property
    def fusions(self) -> tuple[NDArray[np.int32], Floats]:
        """`fused_with` and `fusion_penalty_us`, as arrays even where they are None, [nodes, devices]."""
        shape = self.node_us.shape
        return (
            np.full(shape, -1, np.int32) if self.fused_with is None else self.fused_with,
            np.zeros(shape) if self.fusion_penalty_us is None else self.fusion_penalty_us,
        )

    @cached_property
    def tensor_fusion_penalty_us(self) -> Floats:
        """Penalties of fusions by the tensor of `tensors` that breaks them, µs, float64 [tensors, devices].

        The penalty counts where the device receives the tensor from another one. It is 0 for tensors of no fusion, and
        for those that several nodes read.
        """
        graph = self.graph
        fused_with, penalty_us = self.fusions
        consumer, source, output = graph.input_node, graph.input_source, graph.input_output
        by_output = np.zeros((graph.outputs, len(self.devices)))
        # Among several tensors between the two nodes, the penalty belongs to one that no other node reads: it crosses
        # whenever the fusion is broken.
        first, last = np.full(graph.outputs, graph.nodes), np.full(graph.outputs, -1)
        np.minimum.at(first, output, consumer)
        np.maximum.at(last, output, consumer)
        alone = first[output] == last[output]
        for device in range(len(self.devices)):
            edges = np.flatnonzero(alone & (fused_with[consumer, device] == source))
            # A tensor that a node reads twice counts once.
            edges = edges[np.unique(consumer[edges], return_index=True)[1]]
            np.add.at(by_output[:, device], output[edges], penalty_us[consumer[edges], device])
        return by_output[self.tensors.output]

    @cached_property
    def native(self) -> _native.Problem:
        """The same problem for the native core, which copies the arrays once."""
        arrays = {one.name: getattr(self, one.name) for one in fields(self) if "axes" in one.metadata}
        arrays["fused_with"], arrays["fusion_penalty_us"] = self.fusions
        del arrays["storage_ratio"], arrays["core_share"]  # only `stored_bytes` and `periods` use them
        given = {name: value for name, value in arrays.items() if value is not None}
        return _native.Problem(self.graph.native, rule=self.rule, same_submodel=self.same_submodel, **given)

    @property
    def kinds(self) -> NDArray[np.int32]:
        """Kind of each device, int32 [D]: devices of one kind can be exchanged without changing a placement's costs."""
        return self.native.kinds

    @cached_property
    def search_space(self) -> _native.SearchSpace:
        """Data of the native core's searches, with orders of the groups that ignore the numbering of nodes."""
        return _native.SearchSpace(self.native, self.chains)

    def costs_of(self, terms: Iterable[CostTerm]) -> dict[str, NDArray[Any]]:
        """The arrays of some terms of the cost model by name; terms that the problem lacks are left out."""
        arrays = {term.name: getattr(self, term.name) for term in terms}
        return {name: values for name, values in arrays.items() if values is not None}

    def with_scaled_costs(self, factors: Mapping[Part, Floats | float]) -> PlacementProblem:
        """Multiplies the times of some parts, see `ov_hsdag.costs.terms.PARTS`.

        Args:
            factors: factors by part; arrays are broadcast to the shape of each term of the part.

        Returns:
            The problem with the scaled costs.
        """
        times = [term for term in TERMS if term.part in factors and term.unit != "node"]
        costs = self.costs_of(times)
        scaled: dict[str, Any] = {
            term.name: costs[term.name] * factors[term.part] for term in times if term.name in costs
        }
        return replace(self, **scaled)

    def renumbered(self, order: NDArray[np.integer[Any]]) -> PlacementProblem:
        """Returns the same problem with its nodes in another topological order.

        Groups are numbered by their first nodes.

        Args:
            order: numbers of the nodes in this problem, in the new order, [nodes].
        """
        rows = {"nodes": order, "outputs": pieces(self.graph.output_ptr, order)}
        changed: dict[str, Any] = {
            attribute.name: getattr(self, attribute.name)[rows[attribute.metadata["axes"][0]]]
            for attribute in fields(self)
            if attribute.metadata.get("axes", ("",))[0] in rows and getattr(self, attribute.name) is not None
        }
        first = np.unique(self.groups[order], return_index=True)[1]
        changed["groups"] = inverse(np.argsort(first))[self.groups[order]].astype(np.int32)
        if self.fused_with is not None:
            fused_with = self.fused_with[order]
            changed["fused_with"] = np.where(fused_with >= 0, inverse(order)[fused_with], -1).astype(np.int32)
        return replace(self, graph=self.graph.renumbered(order), **changed)

    @cached_property
    def canonical(self) -> CanonicalForm:
        """The same problem with its nodes in an order that does not depend on their numbering (cpp_ext/canonical.hpp).

        Everything that is computed from it, down to rounding errors of sums, is the same for all numberings.
        """
        # Costs alone do not distinguish nodes: their types and constants matter for states and for constraints between
        # groups.
        types = np.unique(np.array(self.graph.types), return_inverse=True)[1]
        legality = self.graph.legality
        labels = 4 * types + 2 * np.asarray(legality.replicable, bool) + np.asarray(legality.constant, bool)
        order = self.native.canonical_order(labels.astype(np.int64))
        problem = self.renumbered(order)
        groups = np.empty(self.group_count, np.int32)
        groups[self.groups[order]] = problem.groups
        problem.__dict__["canonical"] = CanonicalForm(problem, np.arange(self.group_count, dtype=np.int32))
        return CanonicalForm(problem, groups)

    def evaluate(
        self, placements: NDArray[np.integer[Any]], threads: int = 1, most_work: int | None = None
    ) -> Evaluation:
        """Simulates placements exactly as HETERO would split them.

        Args:
            placements: device numbers, [batch, groups] or one [groups].
            threads: number of threads.
            most_work: limit of steps, of at most a nanosecond each, for resolving the cycles of one placement. A
                placement that takes more counts as one that HETERO cannot order. By default there is no limit;
                thousands of submodels then take minutes.

        Returns:
            The results, [batch].
        """
        results = self.native.evaluate(np.atleast_2d(np.asarray(placements, np.uint8)), threads, most_work)
        return Evaluation(**(results | {"period_us": self.periods(results["busy_us"])}))

    def breakdown(self, placements: NDArray[np.integer[Any]]) -> Breakdown:
        """Simulates placements like `evaluate`, and returns the terms of the results as well.

        Args:
            placements: device numbers, [batch, groups] or one [groups].
        """
        results = self.native.evaluate(np.atleast_2d(np.asarray(placements, np.uint8)), breakdown=True)
        terms = results.pop("breakdown")
        return Breakdown(Evaluation(**(results | {"period_us": self.periods(results["busy_us"])})), **terms)

    def periods(self, busy_us: Floats) -> Floats:
        """Time between results, µs, float64 [batch].

        Args:
            busy_us: work of each device for one request, µs, float64 [batch, devices].
        """
        busiest: Floats = busy_us.max(axis=1)
        return busiest if self.core_share is None else np.maximum(busiest, busy_us @ self.core_share)

    def scores(self, placements: NDArray[np.integer[Any]], threads: int = 1) -> Floats:
        """The objective of each placement, lower is better, inf where infeasible, µs, float64 [batch]."""
        return self.evaluate(placements, threads).score(self.objective)

    def split(self, placement: NDArray[np.integer[Any]]) -> dict[str, Any]:
        """Splits the model into submodels as HETERO does.

        Args:
            placement: device numbers, [groups].

        Returns:
            submodel: number of each node's submodel, -1 for a node in no submodel, int32 [nodes].
            submodel_device: device numbers, uint8 [submodels].
            trivial: submodels that compute nothing, bool [submodels].
            turn: turn in which HETERO compiles each submodel; several have the same turn, int32 [submodels].
            sortable: whether HETERO can order the submodels.
            cyclic: nodes whose submodel waits for itself, bool [nodes]; empty where `sortable`.
        """
        return _native.split(self.graph.native, np.asarray(placement, np.uint8)[self.groups], self.rule)

    def submodels_in_order(self, placement: NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
        """Device numbers of the submodels that compute something, in the order in which HETERO compiles them.

        The order within a turn is not known: where submodels of one turn are on several devices, the result is empty.
        """
        split = self.split(placement)
        order = np.argsort(split["turn"], kind="stable")
        order = order[~split["trivial"][order]]
        turn, device = split["turn"][order], split["submodel_device"][order]
        return device[:0] if ((np.diff(turn) == 0) & (np.diff(device) != 0)).any() else device

    def affinity(self, placement: NDArray[np.integer[Any]]) -> dict[str, str]:
        """Device name by friendly name, for one placement [groups]."""
        return {
            name: self.devices[device]
            for name, device in zip(self.graph.names, np.asarray(placement)[self.groups].tolist(), strict=True)
        }

    def placement_of(self, affinity: Mapping[str, str]) -> NDArray[np.uint8]:
        """Returns the placement with these devices, uint8 [groups]; the first operation of a group decides.

        Raises:
            UserError: a node has no device, or one that is not in `devices`.
        """
        placement = np.zeros(self.group_count, np.uint8)
        order = np.argsort(self.graph.kinds == NodeKind.OP, kind="stable")
        # Later nodes overwrite earlier ones, so the first operation of the group comes last.
        split = int((self.graph.kinds != NodeKind.OP).sum())
        for node in [*order[:split], *order[split:][::-1]]:
            name = self.graph.names[node]
            if affinity.get(name) not in self.devices:
                raise UserError(f"node '{name}' has device '{affinity.get(name)}', expected one of {self.devices}")
            placement[self.groups[node]] = self.devices.index(affinity[name])
        return placement

    def single(self, device: int) -> NDArray[np.uint8]:
        """The placement with everything on one device, uint8 [groups]."""
        return np.full(self.group_count, device, np.uint8)

    @cached_property
    def singles(self) -> NDArray[np.uint8]:
        """The placements with everything on each of the devices, uint8 [devices, groups], read only."""
        rows = np.arange(len(self.devices), dtype=np.uint8)[:, None]
        return np.broadcast_to(rows, (len(self.devices), self.group_count))

    def random(self, generator: np.random.Generator, count: int) -> NDArray[np.uint8]:
        """Draws random placements on supporting devices and repairs them, ignoring memory: uint8 [count, groups]."""
        weights = self.group_supported / self.group_supported.sum(axis=1, keepdims=True)
        thresholds = weights.cumsum(axis=1)
        draws = generator.random((count, self.group_count, 1))
        # Rounding can leave the last threshold below 1; a draw above it takes the last supported device.
        last = len(self.devices) - 1 - self.group_supported[:, ::-1].argmax(axis=1)
        chosen = np.minimum((draws >= thresholds).sum(axis=2), last).astype(np.uint8)
        return np.stack([self.repair(placement) for placement in chosen]) if count else chosen

    def where_supported(self, placements: NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
        """Moves groups that their device does not run to the first device that does, uint8 [..., groups]."""
        supported = self.group_supported[np.arange(self.group_count), placements]
        return np.where(supported, placements, self.group_supported.argmax(axis=1)).astype(np.uint8)

    def repair(self, placement: NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
        """Moves groups until HETERO can run the placement (cpp_ext/repair.hpp), uint8 [groups].

        A valid placement stays as it is; where nothing else helps, the result is one device. Memory limits are not
        considered.
        """
        given, supported = np.asarray(placement, np.uint8), self.group_supported
        return _native.repair(self.graph.native, self.groups, self.same_submodel, given, supported, self.rule)

    def legalized(self, placement: NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
        """Returns the placement if HETERO can run it, else a repaired one; uint8 [groups]. Memory limits are ignored.

        A placement that cannot be run and has too many submodels (`_MOST_REPAIRED`) to be repaired is replaced: by the
        best single device if one runs the model, else by the first placement that a search finds from it.
        """
        evaluation = self.evaluate(placement, most_work=MOST_WORK)
        if not evaluation.broken[0]:
            return placement.astype(np.uint8)
        if evaluation.submodels[0] > _MOST_REPAIRED:
            single = self.singles[self.scores(self.singles).argmin()]
            if not self.evaluate(single).broken[0]:
                return single
            # One move is as good as none: the search breaks the cycles of its starts without it.
            starts = np.atleast_2d(placement).astype(np.uint8)
            found = self.search_space.search(self.objective == "throughput", max_moves=1, starts=starts)
            first: NDArray[np.uint8] = found["placement"]
            if np.isfinite(found["score"]) or not self.evaluate(first, most_work=MOST_WORK).broken[0]:
                return first
        return self.repair(placement)

    @cached_property
    def memory_limits(self) -> Floats:
        """`memory_bytes`, with inf for no limit, float64 [devices]."""
        return np.where(self.memory_bytes < 0, np.inf, self.memory_bytes)

    def memory_excess(self, evaluation: Evaluation) -> Floats:
        """Bytes beyond each device's limit, float64 [batch, devices]."""
        return np.maximum(evaluation.memory_bytes - self.memory_limits, 0.0)

    @property
    def stored_limits(self) -> list[int | None]:
        """Memory limits as users gave them, in stored bytes, None for no limit, [devices]."""
        stored = self.stored_bytes(self.memory_bytes)
        return [limit if most >= 0 else None for limit, most in zip(stored, self.memory_bytes, strict=True)]

    def with_memory(self, limits: Mapping[str, int]) -> PlacementProblem:
        """Returns the problem with other memory limits of some devices: stored bytes by device name."""
        ratio = np.ones(len(self.devices)) if self.storage_ratio is None else self.storage_ratio
        counted = [
            np.ceil(limits[name] / ratio[number]) if name in limits else self.memory_bytes[number]
            for number, name in enumerate(self.devices)
        ]
        return replace(self, memory_bytes=np.array(counted, np.int64))

    def stored_bytes(self, counted: NDArray[np.integer[Any]]) -> list[int]:
        """Converts bytes of the graph to bytes that each device stores, [devices]."""
        return [int(n) for n in (counted if self.storage_ratio is None else np.floor(counted * self.storage_ratio))]

    def summary(self, placement: NDArray[np.integer[Any]]) -> dict[str, Any]:
        """Simulates one placement, [groups], and returns its figures for users.

        Returns:
            "latency_us"; "throughput_ips", results per second; "memory_bytes", stored bytes by device name;
            "submodels", their number; and "transfer_bytes", bytes that move between devices.
        """
        result = self.evaluate(placement)
        return {
            "latency_us": round(float(result.latency_us[0]), 3),
            "throughput_ips": round(1e6 / max(float(result.period_us[0]), 1e-9), 3),
            "memory_bytes": dict(zip(self.devices, self.stored_bytes(result.memory_bytes[0]), strict=True)),
            "submodels": int(result.submodels[0]),
            "transfer_bytes": int(result.transfer_bytes[0]),
        }

    def save(self, path: str | Path) -> None:
        """Writes the problem as compressed .npz, atomically and without pickles.

        Arrays are written as they are, everything else as JSON text. The keys are the names of the attributes, with
        "graph." in front of those of the graph; a `key` in an attribute's metadata is the name of earlier releases.
        Arrays that the first releases do not know (`later`, see `ov_hsdag.model.graph.array`) are left out where they
        have their default.
        """
        arrays: dict[str, Any] = {"format": np.int64(FORMAT_VERSION)}
        of_problem = [attribute for attribute in fields(self) if attribute.name != "graph"]
        for owner, prefix, saved in ((self.graph, "graph.", fields(self.graph)), (self, "", of_problem)):
            for attribute in saved:
                value = getattr(owner, attribute.name)
                if attribute.metadata.get("later") and _is_default(value, attribute.metadata):
                    continue
                key = prefix + (attribute.metadata.get("key") or attribute.name)
                arrays[key] = value if isinstance(value, np.ndarray) else np.array(json.dumps(value))
        with atomic_file(path, "wb") as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> PlacementProblem:
        """Reads a problem that `save` wrote, in this release or an earlier one.

        Raises:
            UserError: the file cannot be read, or is not a placement problem.
        """
        try:
            data = read_arrays(path, ARRAYS)
            version = int(data.pop("format"))
            if version != FORMAT_VERSION:
                raise UserError(f"'{path}' has problem format {version}, expected {FORMAT_VERSION}")
            values = {key: _from_saved_array(array) for key, array in data.items()}
        except (OSError, KeyError, ValueError, TypeError) as error:
            raise UserError(f"'{path}' is not a placement problem: {one_line(error)}") from error
        try:
            graph = {key.removeprefix("graph."): values.pop(key) for key in list(values) if key.startswith("graph.")}
            for key in ("names", "types", "output_types", "variables"):
                graph[key] = tuple(graph[key])
            graph["output_shapes"] = tuple(tuple(shape) for shape in graph["output_shapes"])
            values["devices"] = tuple(values["devices"])
            for attribute in fields(cls):
                if attribute.metadata.get("key") in values:
                    values[attribute.name] = values.pop(attribute.metadata["key"])
            problem = cls(graph=ComputationGraph(**graph), **values)
            expect_sound(problem)
            return problem
        except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
            raise UserError(f"'{path}' is not a placement problem of this release: {one_line(error)}") from error


@dataclass(frozen=True, eq=False)
class CanonicalForm:
    """A problem in canonical order, with the mapping of its groups to those of the original problem."""

    problem: PlacementProblem  # the problem in canonical order
    groups: NDArray[np.int32]  # number in `problem` of each group of the original problem, int32 [groups]

    def as_given(self, placements: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Converts placements of `problem` to the numbering of the original problem, uint8 [..., groups]."""
        return placements[..., self.groups]


def topological_groups(problem: PlacementProblem) -> NDArray[np.int64]:
    """Sorts co-location groups by the first of their operations; returns their numbers in this order, int64 [groups].

    Operations that only reorder a state (by beams), or make its first value, do not count, because they could run at
    any time. The layer that reads the state counts instead.
    """
    graph = problem.graph
    position = np.full(problem.group_count, graph.nodes)
    stateful = problem.groups[np.isin(graph.types, "ReadValue")]
    computing = np.isin(graph.kinds, (NodeKind.OP, NodeKind.SINK)) & ~_computes_only_from_states(graph)
    computing &= ~(graph.legality.replicable & np.isin(problem.groups, stateful))
    np.minimum.at(position, problem.groups[computing], np.flatnonzero(computing))
    rest = position == graph.nodes
    first = np.full(problem.group_count, graph.nodes)
    np.minimum.at(first, problem.groups, np.arange(graph.nodes))
    return np.argsort(np.where(rest, first, position), kind="stable")


def _computes_only_from_states(graph: ComputationGraph) -> NDArray[np.bool_]:
    """Finds states, and operations whose values depend on states, Parameters and constants alone, bool [nodes].

    An operation has to depend on a state. In a graph without states, all are False.
    """
    of_states = np.array([kind == "ReadValue" for kind in graph.types], bool)
    if not of_states.any():
        return of_states
    operation = graph.kinds == NodeKind.OP
    waiting = operation & ~graph.legality.constant
    while True:
        sources = of_states[graph.input_source]
        reads = np.bincount(graph.input_node, sources, graph.nodes) > 0
        waits = np.bincount(graph.input_node, waiting[graph.input_source] & ~sources, graph.nodes) > 0
        more = operation & reads & ~waits & ~of_states
        if not more.any():
            return of_states
        of_states |= more


def _is_default(value: NDArray[Any] | None, metadata: Mapping[str, Any]) -> bool:
    """Whether an array is None, its default, or means the same (zeros, if `metadata` says so)."""
    return value is None or (metadata["zeros_are_default"] and not value.any())


_LONGEST_US = 1e15  # longest accepted time, µs; sums of such times are finite


def expect_sound(problem: PlacementProblem) -> None:
    """Checks everything that `PlacementProblem` does not check, because the problem of a file may be anything.

    Raises:
        ValueError: an array has another shape or type, a number is not a valid time or size, or an index is out of
            range.
        TypeError: the rule is unknown, or a name or a type is not a string.
    """
    graph = problem.graph
    nodes, outputs = graph.nodes, graph.outputs
    if not nodes:
        raise ValueError("expected at least one node")
    check_arrays(graph, {"nodes": nodes, "nodes + 1": nodes + 1, "edges": graph.edges, "outputs": outputs}, "graph.")
    texts = (*problem.devices, *graph.names, *graph.types, *graph.variables, *graph.output_types)
    if problem.rule not in (0, 1) or not all(isinstance(text, str) for text in texts):
        raise TypeError("expected a rule of 0 or 1, and names and types that are texts")
    sizes_of_shapes = [size for shape in graph.output_shapes for size in shape]
    if not all(type(size) is int and 0 <= size <= _native.MOST_BYTES for size in sizes_of_shapes):
        raise ValueError("expected sizes in 'graph.output_shapes'")
    for attribute in fields(problem):
        value = getattr(problem, attribute.name)
        is_time = attribute.metadata.get("dtype") is np.float64 and value is not None
        if is_time and not ((value >= 0) & (value <= _LONGEST_US)).all():
            raise ValueError(f"expected '{attribute.name}' from 0 to {_LONGEST_US:g}")
    if not ((graph.flops >= 0) & np.isfinite(graph.flops)).all():
        raise ValueError("expected finite numbers of operations in 'graph.flops'")
    sizes = (graph.output_bytes, graph.weight_bytes, problem.moved_bytes, problem.held_bytes, problem.live_bytes)
    for sized in sizes:
        if sized is not None and sized.size and (sized.min() < 0 or sized.sum(dtype=np.float64) > _native.MOST_BYTES):
            raise ValueError("expected sizes in bytes that a machine can have")
    if problem.memory_bytes.min() < -1:
        raise ValueError("expected memory limits, -1 for none")
    if problem.groups.min() != 0 or len(np.unique(problem.groups)) != int(problem.groups.max()) + 1:
        raise ValueError("expected dense numbers in 'groups'")
    _ = problem.native  # checks pointers and indices of the graph, and constraints that follow from it


def _from_saved_array(value: NDArray[Any]) -> Any:
    """Converts an array of a file to an attribute: JSON text is parsed, and an array of no axes becomes a number."""
    if value.dtype.kind == "U":
        return parse_json(str(value))
    return value.item() if value.ndim == 0 else value


@dataclass(frozen=True, eq=False)
class Tensors:
    """Tensors with a consumer outside the producer's group; constants and model outputs never move."""

    output: NDArray[np.int32]  # number of the tensor among the graph's outputs, int32 [tensors]
    source: NDArray[np.int32]  # producing group, int32 [tensors]
    bytes: NDArray[np.int64]  # bytes that a transfer moves, int64 [tensors]
    consumer_ptr: NDArray[np.int32]  # where each tensor's part of `consumers` begins, int32 [tensors + 1]
    consumers: NDArray[np.int32]  # consuming groups other than the producer's, each once, int32

    @classmethod
    def of(cls, graph: ComputationGraph, groups: NDArray[np.int32], moved_bytes: NDArray[np.int64]) -> Tensors:
        """Finds the tensors between groups.

        Args:
            graph: the graph.
            groups: group of each node, int32 [nodes].
            moved_bytes: bytes that a transfer of each output moves, int64 [outputs].

        Returns:
            The tensors, ordered by output.
        """
        source, target = groups[graph.input_source], groups[graph.input_node]
        fed, read = graph.kinds[graph.input_source], graph.kinds[graph.input_node]
        crossing = (fed != NodeKind.CONSTANT) & (read != NodeKind.RESULT) & (source != target)
        pairs = np.unique(np.stack([graph.input_output[crossing], target[crossing]], axis=1), axis=0)
        outputs, first = np.unique(pairs[:, 0], return_index=True)
        return cls(
            output=outputs.astype(np.int32),
            source=groups[graph.output_node[outputs]],
            bytes=moved_bytes[outputs],
            consumer_ptr=np.append(first, len(pairs)).astype(np.int32),
            consumers=pairs[:, 1].astype(np.int32),
        )

    def __len__(self) -> int:
        return len(self.source)

    @cached_property
    def of_consumer(self) -> NDArray[np.int64]:
        """Number of the tensor that each of `consumers` receives, int64."""
        return np.repeat(np.arange(len(self)), np.diff(self.consumer_ptr))
