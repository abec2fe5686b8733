"""The placement problem: the one object that placers, training and benchmarks share."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag import _native
from ov_hsdag.model import colocation, repair
from ov_hsdag.model.graph import ComputationGraph, NodeKind
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.files import atomic_file

OBJECTIVES = ("latency", "throughput")

FORMAT_VERSION = 1

# What a merged chain may have of a model's work, or of its weights.
CHAIN_SHARE = 1 / 40

# The bit of `Evaluation.infeasible` for memory limits, which moving more groups may still satisfy.
OVER_MEMORY = np.uint8(4)


def check_objective(objective: str) -> None:
    """Raises UserError where it is none."""
    if objective not in OBJECTIVES:
        raise UserError(f"unknown objective '{objective}'; choose one of {', '.join(OBJECTIVES)}")


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What the simulator says of a batch of placements.

    Attributes:
        latency_us: time of one request, µs, float64 [batch].
        period_us: time between results with many requests in flight (the busiest device's work), µs, float64 [batch].
        busy_us: work of each device for one request, µs, float64 [batch, devices].
        memory_bytes: weights and live tensors on each device, int64 [batch, devices].
        transfer_bytes: bytes that move between devices, int64 [batch].
        cut_tensors: tensors that move between devices, int32 [batch].
        submodels: HETERO_NUMBER_OF_SUBMODELS, int32 [batch].
        infeasible: 0, or a sum of 1 (HETERO cannot order the submodels), 2 (a device does not support its operation),
            4 (a device's memory limit), 8 (a submodel that computes nothing), 16 (nodes that only work in one submodel
            are in two), uint8 [batch].
    """

    latency_us: NDArray[np.float64]
    period_us: NDArray[np.float64]
    busy_us: NDArray[np.float64]
    memory_bytes: NDArray[np.int64]
    transfer_bytes: NDArray[np.int64]
    cut_tensors: NDArray[np.int32]
    submodels: NDArray[np.int32]
    infeasible: NDArray[np.uint8]

    @property
    def broken(self) -> NDArray[np.bool_]:
        """Placements that no device's memory would make feasible, bool [batch]."""
        return (self.infeasible & ~OVER_MEMORY) != 0

    def score(self, objective: str) -> NDArray[np.float64]:
        """What is minimised, in µs: latency, or the period for throughput; inf where infeasible. float64 [batch]."""
        value = self.latency_us if objective == "latency" else self.period_us
        return np.where(self.infeasible == 0, value, np.inf)


@dataclass(frozen=True, eq=False)
class PlacementProblem:
    """A graph, devices, costs, limits and an objective. Placements are uint8 [groups] arrays of device numbers.

    Attributes:
        graph: the computation graph of a normalized model.
        devices: device names in HETERO's order, [devices].
        objective: "latency" or "throughput".
        node_us: time of each node on each device, µs, float64 [nodes, devices].
        supported: whether a device runs a node, bool [nodes, devices].
        groups: legality groups; what is placed, int32 [nodes].
        transfer_us: fixed time of a transfer from row to column, µs, float64 [devices, devices].
        transfer_us_per_byte: µs per byte, float64 [devices, devices].
        submodel_us: time that each submodel on a device costs, µs, float64 [devices].
        memory_bytes: memory limits, -1 for none, int64 [devices].
        rule: HETERO's splitting rule, see `split_rule`.
        fused_with: node whose company saves a device time on a node, -1 for none; None: there are none. It is the one
            into whose execution the node is fused, or one with which it shares a layout. int32 [nodes, devices].
        torn_us: what a node costs more on a device, µs, where that one is in another submodel; None: nothing. Minimum
            cuts and refinement's moves see only those whose tensor nobody else reads. float64 [nodes, devices].
        kept: share of the graph's bytes that each device keeps, see `Profile.kept`; None: all. Memory limits are in
            bytes of the graph, what people are told in bytes of the device. float64 [devices].
    """

    graph: ComputationGraph
    devices: tuple[str, ...]
    objective: str
    node_us: NDArray[np.float64]
    supported: NDArray[np.bool_]
    groups: NDArray[np.int32]
    transfer_us: NDArray[np.float64]
    transfer_us_per_byte: NDArray[np.float64]
    submodel_us: NDArray[np.float64]
    memory_bytes: NDArray[np.int64]
    rule: int
    fused_with: NDArray[np.int32] | None = None
    torn_us: NDArray[np.float64] | None = None
    kept: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        check_objective(self.objective)

    @cached_property
    def group_count(self) -> int:
        """Number of legality groups."""
        return int(self.groups.max()) + 1

    @cached_property
    def group_supported(self) -> NDArray[np.bool_]:
        """Devices that run every node of a group, bool [groups, devices]."""
        return colocation.group_support(self.groups, self.supported)

    @cached_property
    def bonds(self) -> NDArray[np.int32]:
        """Pairs of nodes that must be in one submodel, int32 [pairs, 2]."""
        return colocation.bonds(self.graph)

    @cached_property
    def group_us(self) -> NDArray[np.float64]:
        """Time of each group on each device, µs, inf where it is not supported, float64 [groups, devices]."""
        total = np.zeros((self.group_count, len(self.devices)))
        np.add.at(total, self.groups, self.node_us)
        return np.where(self.group_supported, total, np.inf)

    @cached_property
    def chains(self) -> NDArray[np.int32]:
        """Chain of each legality group (HSDAG's co-location), int32 [groups]."""
        return self._coarsen(np.zeros(self.group_count), np.inf)

    @cached_property
    def coarse(self) -> NDArray[np.int32]:
        """Coarse group of each legality group, int32 [groups].

        They are chains, cut where they have `CHAIN_SHARE` of the work or of the weights: what does not branch is else
        one group, which no placement can balance or fit into memory.
        """
        work = np.where(np.isfinite(self.group_us), self.group_us, np.nan)
        work = np.nan_to_num(np.fmin.reduce(work, axis=1))
        weights = np.bincount(self.groups, self.graph.weight_bytes, self.group_count)
        weight = np.maximum(work / max(work.sum(), 1e-30), weights / max(weights.sum(), 1.0))
        return self._coarsen(weight, CHAIN_SHARE)

    def _coarsen(self, weight: NDArray[np.float64], most: float) -> NDArray[np.int32]:
        by_node = colocation.coarsen(self.graph, self.groups, self.supported, weight, most)
        result = np.empty(self.group_count, np.int32)
        result[self.groups] = by_node
        return result

    @cached_property
    def tensors(self) -> Tensors:
        """The tensors that can be cut: those with consumers in other groups."""
        return Tensors.of(self.graph, self.groups)

    @cached_property
    def fusions(self) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """`fused_with` and `torn_us` as arrays."""
        shape = self.node_us.shape
        return (
            np.full(shape, -1, np.int32) if self.fused_with is None else self.fused_with,
            np.zeros(shape) if self.torn_us is None else self.torn_us,
        )

    def torn_node_us(self, placement: NDArray[np.integer[Any]], submodel: NDArray[np.int32]) -> NDArray[np.float64]:
        """What each node costs more for a torn fusion, µs, float64 [nodes].

        Args:
            placement: device numbers, [groups].
            submodel: of each node, as `split` tells for it, [nodes].
        """
        nodes = np.arange(self.graph.nodes)
        fused_with, torn_us = (array[nodes, placement[self.groups]] for array in self.fusions)
        return np.where((fused_with >= 0) & (submodel[fused_with] != submodel), torn_us, 0.0)

    @cached_property
    def tensor_torn_us(self) -> NDArray[np.float64]:
        """What a device pays, µs, that receives a tensor whose producer it fuses with, float64 [tensors, devices]."""
        graph = self.graph
        fused_with, torn_us = self.fusions
        consumer, source, output = graph.input_node, graph.input_source, graph.input_output
        by_output = np.zeros((graph.outputs, len(self.devices)))
        # Of several tensors between the two the one that nobody else reads: it crosses where the fusion is torn.
        first, last = np.full(graph.outputs, graph.nodes), np.full(graph.outputs, -1)
        np.minimum.at(first, output, consumer)
        np.maximum.at(last, output, consumer)
        alone = first[output] == last[output]
        for device in range(len(self.devices)):
            edges = np.flatnonzero(alone & (fused_with[consumer, device] == source))
            # A tensor that a node reads twice counts once.
            edges = edges[np.unique(consumer[edges], return_index=True)[1]]
            np.add.at(by_output[:, device], output[edges], torn_us[consumer[edges], device])
        return by_output[self.tensors.output]

    @property
    def native_arguments(self) -> tuple[Any, ...]:
        """The problem as the native core's classes take it."""
        return (
            self.graph.native,
            self.node_us,
            self.supported,
            self.transfer_us,
            self.transfer_us_per_byte,
            self.submodel_us,
            self.memory_bytes,
            self.groups,
            self.bonds,
            *self.fusions,
            self.rule,
        )

    @cached_property
    def _simulator(self) -> _native.Simulator:
        return _native.Simulator(*self.native_arguments)

    def evaluate(self, placements: NDArray[np.integer[Any]], threads: int = 1) -> Evaluation:
        """Simulates placements exactly as HETERO would split them.

        Args:
            placements: device numbers, [batch, groups] or one placement [groups].
            threads: threads for the batch.
        """
        batch = np.atleast_2d(np.asarray(placements, np.uint8))
        return Evaluation(**self._simulator.evaluate(batch, threads))

    def scores(self, placements: NDArray[np.integer[Any]], threads: int = 1) -> NDArray[np.float64]:
        """The objective of each placement, lower is better, inf where infeasible, µs, float64 [batch]."""
        return self.evaluate(placements, threads).score(self.objective)

    def split(self, placement: NDArray[np.integer[Any]]) -> dict[str, Any]:
        """HETERO's submodels for one placement [groups]: `submodel` [nodes], `submodel_device`, `sortable`, …"""
        return _native.split(self.graph.native, np.asarray(placement, np.uint8)[self.groups], self.rule)

    def affinity(self, placement: NDArray[np.integer[Any]]) -> dict[str, str]:
        """Friendly name → device name for one placement [groups]."""
        return {
            name: self.devices[device]
            for name, device in zip(self.graph.names, np.asarray(placement)[self.groups].tolist(), strict=True)
        }

    def placement_of(self, affinity: Mapping[str, str]) -> NDArray[np.uint8]:
        """The placement [groups] with these devices; a group goes where its first operation is.

        Raises:
            UserError: a node has no device, or one that is not a device of the problem.
        """
        placement = np.zeros(self.group_count, np.uint8)
        order = np.argsort(self.graph.kinds == NodeKind.OP, kind="stable")
        # Written in this order, the last to write is the first operation of the group.
        split = int((self.graph.kinds != NodeKind.OP).sum())
        for node in [*order[:split], *order[split:][::-1]]:
            name = self.graph.names[node]
            if affinity.get(name) not in self.devices:
                raise UserError(f"node '{name}' has device '{affinity.get(name)}', expected one of {self.devices}")
            placement[self.groups[node]] = self.devices.index(affinity[name])
        return placement

    def single(self, device: int) -> NDArray[np.uint8]:
        """Everything on one device, uint8 [groups]."""
        return np.full(self.group_count, device, np.uint8)

    def random(self, generator: np.random.Generator, count: int) -> NDArray[np.uint8]:
        """Random feasible placements: a die for each group, then repaired. uint8 [count, groups]."""
        weights = self.group_supported / self.group_supported.sum(axis=1, keepdims=True)
        thresholds = weights.cumsum(axis=1)
        draws = generator.random((count, self.group_count, 1))
        # Rounding can leave the last threshold below 1; a draw above it takes the last supported device.
        last = len(self.devices) - 1 - self.group_supported[:, ::-1].argmax(axis=1)
        chosen = np.minimum((draws >= thresholds).sum(axis=2), last).astype(np.uint8)
        return np.stack([self.repair(placement) for placement in chosen]) if count else chosen

    def where_supported(self, placements: NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
        """The placements with groups that their device does not run on the first that does, uint8 [..., groups]."""
        supported = self.group_supported[np.arange(self.group_count), placements]
        return np.where(supported, placements, self.group_supported.argmax(axis=1)).astype(np.uint8)

    def repair(self, placement: NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
        """The placement with some groups moved until HETERO runs it, see `legality.repair`. Returns uint8 [groups].

        Memory limits are not looked at.
        """
        return repair.repair(self.graph, self.groups, self.bonds, placement, self.group_supported, self.rule)

    def kept_bytes(self, counted: NDArray[np.integer[Any]]) -> list[int]:
        """What devices keep of so many bytes of the graph, [devices]."""
        return [int(n) for n in (counted if self.kept is None else np.floor(counted * self.kept))]

    def summary(self, placement: NDArray[np.integer[Any]]) -> dict[str, Any]:
        """The prediction for one placement, as users see it."""
        result = self.evaluate(placement)
        return {
            "latency_us": round(float(result.latency_us[0]), 3),
            "throughput_ips": round(1e6 / max(float(result.period_us[0]), 1e-9), 3),
            "memory_bytes": dict(zip(self.devices, self.kept_bytes(result.memory_bytes[0]), strict=True)),
            "submodels": int(result.submodels[0]),
            "transfer_bytes": int(result.transfer_bytes[0]),
        }

    def save(self, path: str | Path) -> None:
        """Writes the problem as .npz (arrays and JSON text, no pickles)."""
        arrays: dict[str, Any] = {"format": np.int64(FORMAT_VERSION)}
        for owner, skipped in ((self.graph, ()), (self, ("graph",))):
            for field in fields(owner):
                if field.name in skipped:
                    continue
                value = getattr(owner, field.name)
                prefix = "graph." if owner is self.graph else ""
                arrays[prefix + field.name] = value if isinstance(value, np.ndarray) else np.array(json.dumps(value))
        with atomic_file(path, "wb") as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> PlacementProblem:
        """Reads a problem that `save` wrote. Raises UserError where the file is none."""
        try:
            with np.load(path, allow_pickle=False) as data:
                if int(data["format"]) != FORMAT_VERSION:
                    raise UserError(f"'{path}' has problem format {int(data['format'])}, expected {FORMAT_VERSION}")
                values = {key: _plain(data[key]) for key in data.files if key != "format"}
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
            raise UserError(f"'{path}' is not a placement problem: {error}") from error
        graph = {key.removeprefix("graph."): values.pop(key) for key in list(values) if key.startswith("graph.")}
        for key in ("names", "types", "output_types", "variables"):
            graph[key] = tuple(graph[key])
        graph["output_shapes"] = tuple(tuple(shape) for shape in graph["output_shapes"])
        values["devices"] = tuple(values["devices"])
        try:
            return cls(graph=ComputationGraph(**graph), **values)
        except TypeError as error:
            raise UserError(f"'{path}' is not a placement problem of this release: {error}") from error


def topological_groups(problem: PlacementProblem) -> NDArray[np.int64]:
    """Groups in the order in which their first operation runs, int64 [groups]."""
    graph = problem.graph
    position = np.full(problem.group_count, graph.nodes)
    computing = np.isin(graph.kinds, (NodeKind.OP, NodeKind.SINK))
    np.minimum.at(position, problem.groups[computing], np.flatnonzero(computing))
    rest = position == graph.nodes
    first = np.full(problem.group_count, graph.nodes)
    np.minimum.at(first, problem.groups, np.arange(graph.nodes))
    return np.argsort(np.where(rest, first, position), kind="stable")


def _plain(value: NDArray[Any]) -> Any:
    if value.dtype.kind == "U":
        return json.loads(str(value))
    return value.item() if value.ndim == 0 else value


@dataclass(frozen=True, eq=False)
class Tensors:
    """Tensors whose consumers are not all in the producer's group; constants and model outputs never move.

    Attributes:
        output: number of the tensor among the graph's outputs, int32 [tensors].
        source: producing group, int32 [tensors].
        bytes: size, int64 [tensors].
        consumer_ptr: int32 [tensors + 1].
        consumers: consuming groups other than the producer's, each once, int32.
    """

    output: NDArray[np.int32]
    source: NDArray[np.int32]
    bytes: NDArray[np.int64]
    consumer_ptr: NDArray[np.int32]
    consumers: NDArray[np.int32]

    @classmethod
    def of(cls, graph: ComputationGraph, groups: NDArray[np.int32]) -> Tensors:
        """Collects them."""
        source, target = groups[graph.input_source], groups[graph.input_node]
        moves = (graph.kinds[graph.input_source] != NodeKind.CONSTANT) & (
            graph.kinds[graph.input_node] != NodeKind.RESULT
        )
        crossing = moves & (source != target)
        pairs = np.unique(np.stack([graph.input_output[crossing], target[crossing]], axis=1), axis=0)
        outputs, first = np.unique(pairs[:, 0], return_index=True)
        return cls(
            output=outputs.astype(np.int32),
            source=groups[graph.output_node[outputs]],
            bytes=graph.output_bytes[outputs],
            consumer_ptr=np.append(first, len(pairs)).astype(np.int32),
            consumers=pairs[:, 1].astype(np.int32),
        )

    def __len__(self) -> int:
        return len(self.source)
