"""Reads the published instances of device placement by Tarnawski et al. as placement problems.

"Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS 2020: operator and layer graphs of BERT,
ResNet-50, GNMT and Inception-v3 on three or six accelerators with a memory limit, and a CPU, from
https://github.com/msr-fiddle/dnn-partitioning. Their objective is the largest load of a device. Our search minimizes
our simulator's period; where the two differ, ours is the larger one, so that the search optimizes an upper bound:

- In their model an accelerator writes a tensor once, even if several others read it. In ours it sends the tensor to
  each of them.
- In their contiguous splits a device takes part once in each inference. HETERO runs several submodels on a device, one
  after the other, so that placements need not be contiguous. Both models count the work of a device for one inference,
  however many inferences are in flight.

The following is equal in both models. Operations of one color class share a device. The weights of an accelerator's
operations fit into its memory. Each device receives a tensor once. A transfer keeps both of its ends busy, except the
CPU (`PlacementProblem.transfer_share`). Submodels have no cost.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.graph import NodeKind
from ov_hsdag.problem.problem import PlacementProblem
from research.graphs import graph_of, problem_on

CPU = 0
"""Device number of the CPU in placements of an instance, as in their programme; accelerators follow."""

# Optima of contiguous splits in ms, by their dynamic programme (throughput-dp/dp.cpp), so that it need not be run.
CONTIGUOUS = {
    "LayerGraphs/bert24": 17.78990625,
    "LayerGraphs/gnmt": 32.910658203124996,
    # Their programme needs more memory than we had; the same recursion without storing its 232 million pairs of ideals.
    "LayerGraphs/inceptionv3": 51.551863586426,
    "LayerGraphs/resnet50": 33.774666015625,
    "OperatorGraphs/bert_l-12": 147.47798444934838,
    "OperatorGraphs/bert_l-3": 27.9185676799125,
    "OperatorGraphs/bert_l-6": 29.57950580645155,
    "OperatorGraphs/resnet50": 124.34884977404485,
}

# The largest load of the best known placement in ms, which `place` has to reach. The values are older than the rule
# that ends a search by agreement.
BEST_KNOWN = {
    "LayerGraphs/bert24": 17.79,
    "LayerGraphs/gnmt": 31.79,
    "LayerGraphs/inceptionv3": 51.56,
    "LayerGraphs/resnet50": 33.375,
    "OperatorGraphs/bert_l-12": 130.04,
    "OperatorGraphs/bert_l-3": 21.91,
    "OperatorGraphs/bert_l-6": 28.335,
    "OperatorGraphs/resnet50": 124.35,
}

_UNIT = 1e-9
"""Transfer time of a byte. Instances give times of transfers: these become bytes at this time each, and all times in ms
are read as µs."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Instance:
    """One of their instances, with nodes in a topological order."""

    accelerators: int  # number of accelerators
    cpus: int  # number of CPU cores
    memory: float  # memory limit of each accelerator, bytes
    ids: tuple[int, ...]  # ids of the nodes in the file, [nodes]
    cpu_ms: Floats  # time of each node on a CPU, [nodes]
    accelerator_ms: Floats  # time of each node on an accelerator, [nodes]
    supported: NDArray[np.bool_]  # whether an accelerator runs the node, [nodes]
    size: Floats  # bytes of the node on an accelerator, [nodes]
    colors: NDArray[np.int32]  # nodes of one color share a device, dense numbers, [nodes]
    cost_ms: Floats  # time of moving a node's tensor between an accelerator and the CPU's memory, [nodes]
    edges: NDArray[np.int32]  # source and target, [edges, 2]

    @classmethod
    def load(cls, path: Path) -> Instance:
        """Reads a file of an instance.

        Raises:
            ValueError: the edges have a cycle, or two edges of a node differ in cost.
        """
        data = json.loads(path.read_text())
        by_id = {node["id"]: node for node in data["nodes"]}
        cost: dict[int, float] = {}
        for edge in data["edges"]:
            if abs(cost.setdefault(edge["sourceId"], edge["cost"]) - edge["cost"]) > 1e-6:
                raise ValueError(f"{path}: node {edge['sourceId']} has edges of two costs")
        pairs = [(edge["sourceId"], edge["destId"]) for edge in data["edges"]]
        ids = _topological(list(by_id), pairs)
        place = {identifier: k for k, identifier in enumerate(ids)}
        nodes = [by_id[identifier] for identifier in ids]
        colors = [("color", node["colorClass"]) if "colorClass" in node else ("node", node["id"]) for node in nodes]
        numbers: dict[tuple[str, int], int] = {}
        return cls(
            accelerators=data["maxFPGAs"],
            cpus=data["maxCPUs"],
            memory=data["maxSizePerFPGA"],
            ids=tuple(ids),
            cpu_ms=np.array([node["cpuLatency"] for node in nodes], float),
            accelerator_ms=np.array([node["fpgaLatency"] for node in nodes], float),
            supported=np.array([bool(node["supportedOnFpga"]) for node in nodes]),
            size=np.array([node.get("size", 0.0) for node in nodes], float),
            colors=np.array([numbers.setdefault(color, len(numbers)) for color in colors], np.int32),
            cost_ms=np.array([cost.get(identifier, 0.0) for identifier in ids], float),
            edges=np.array(sorted({(place[a], place[b]) for a, b in pairs}), np.int32).reshape(-1, 2),
        )

    def problem(self) -> PlacementProblem:
        """Converts the instance into a placement problem: device 0 is one core of the CPU; accelerators follow."""
        nodes, devices = len(self.ids), 1 + self.accelerators
        names = tuple(str(identifier) for identifier in self.ids)
        moved = np.rint(self.cost_ms / _UNIT).astype(np.int64)
        feeds = [self.edges[self.edges[:, 1] == node, 0].tolist() for node in range(nodes)]  # sorted, as edges are
        types = ("Operation",) * nodes
        graph = graph_of([NodeKind.OP] * nodes, feeds, names=names, types=types, output_bytes=moved)
        held = np.repeat(np.ceil(self.size).astype(np.int64)[:, None], devices, axis=1)
        held[:, CPU] = 0
        per_byte = np.full((devices, devices), _UNIT)
        np.fill_diagonal(per_byte, 0.0)
        return problem_on(
            graph,
            np.column_stack([self.cpu_ms] + [self.accelerator_ms] * self.accelerators),
            devices=("CPU", *(f"GPU.{k}" for k in range(self.accelerators))),
            objective="throughput",
            supported=np.column_stack([np.ones(nodes, bool)] + [self.supported] * self.accelerators),
            groups=self.colors,
            transfer_us_per_byte=per_byte,
            memory_bytes=np.array([-1] + [int(self.memory)] * self.accelerators, np.int64),
            held_bytes=held,
            live_bytes=np.zeros(nodes, np.int64),
            transfer_share=np.array([0.0] + [1.0] * self.accelerators),
        )

    def loads(self, device: NDArray[np.integer[Any]]) -> Floats:
        """The load of each device by their definition, ms, [1 + accelerators].

        Args:
            device: device of each node, `CPU` or the number of an accelerator from 1, [nodes].

        Raises:
            ValueError: nodes of one color are on several devices, or an accelerator has a node that it does not run,
                or exceeds its memory.
        """
        color_device = np.full(int(self.colors.max()) + 1, -1)
        color_device[self.colors] = device
        if (color_device[self.colors] != device).any():
            raise ValueError("nodes of one color class are on several devices")
        if (~self.supported & (device != CPU)).any():
            raise ValueError("an accelerator has a node that it does not run")
        width = 1 + self.accelerators
        size = np.bincount(device, self.size, width)
        if (size[1:] > self.memory).any():
            raise ValueError("an accelerator has more than its memory")
        load: Floats = np.bincount(device, np.where(device == CPU, self.cpu_ms, self.accelerator_ms), width).astype(
            float
        )
        source, target = self.edges.T
        cut = device[source] != device[target]
        sent = np.unique(source[cut])
        np.add.at(load, device[sent], self.cost_ms[sent])
        received = np.unique(np.column_stack([source, device[target]])[cut], axis=0)
        np.add.at(load, received[:, 1], self.cost_ms[received[:, 0]])
        load[CPU] = np.bincount(device, self.cpu_ms, width)[CPU]  # transfers do not keep the CPU busy
        return load

    def placement(self, split: dict[str, Any]) -> NDArray[np.int64]:
        """Converts a split in their format into a placement.

        Args:
            split: lists "cpus" and "fpgas" of parts, each with the ids of its "nodes".

        Returns:
            Device of each node, `CPU` or the number of an accelerator from 1, [nodes].

        Raises:
            ValueError: the split lacks a node.
        """
        place = {identifier: k for k, identifier in enumerate(self.ids)}
        device = np.full(len(self.ids), -1)
        for part in split["cpus"]:
            device[[place[identifier] for identifier in part["nodes"]]] = CPU
        for number, part in enumerate(split["fpgas"], start=1):
            device[[place[identifier] for identifier in part["nodes"]]] = number
        if (device < 0).any():
            raise ValueError("the split leaves out nodes")
        return device


def _topological(ids: list[int], pairs: list[tuple[int, int]]) -> list[int]:
    """Sorts nodes topologically, depth first, so that branches stay together.

    Args:
        ids: ids of the nodes.
        pairs: ids of source and target of each edge.

    Returns:
        The ids in order.

    Raises:
        ValueError: the edges have a cycle.
    """
    readers: dict[int, list[int]] = {identifier: [] for identifier in ids}
    sources: dict[int, list[int]] = {identifier: [] for identifier in ids}
    for a, b in pairs:
        readers[a].append(b)
        sources[b].append(a)
    # Long branches first, so that weights come right before the nodes that read them.
    depth = dict.fromkeys(ids, 0)
    ready = [identifier for identifier in ids if not sources[identifier]]
    waits = {identifier: len(sources[identifier]) for identifier in ids}
    for node in ready:
        for reader in readers[node]:
            depth[reader] = max(depth[reader], depth[node] + 1)
            waits[reader] -= 1
            if not waits[reader]:
                ready.append(reader)
    if len(ready) < len(ids):
        raise ValueError("the edges have a cycle")
    for node in ids:
        sources[node].sort(key=lambda source: (-depth[source], source))
    order: list[int] = []
    done: set[int] = set()
    # Like OpenVINO's order of a model: backwards from the outputs, with sources right before the node that reads them.
    for end in ids:
        if readers[end] or end in done:
            continue
        stack = [(end, iter(sources[end]))]
        while stack:
            node, rest = stack[-1]
            following = next((source for source in rest if source not in done), None)
            if following is None:
                stack.pop()
                done.add(node)
                order.append(node)
            else:
                stack.append((following, iter(sources[following])))
    return order


def expert_load(instance: Instance, path: Path, clone: Path) -> float | None:
    """The largest load of the split that human experts made.

    Args:
        instance: the instance in `path`.
        path: its file in the clone.
        clone: clone of their repository.

    Returns:
        The load in ms; None where the experts made no split.
    """
    human = clone / "human-experts" / f"{path.name.removesuffix('.json')}_expert.json"
    if path.parent.name != "LayerGraphs" or not human.exists():
        return None
    return float(instance.loads(instance.placement(json.loads(human.read_text()))).max())
