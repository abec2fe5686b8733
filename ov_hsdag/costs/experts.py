"""What devices execute of a mixture of experts: all experts for all tokens, or only the routed ones.

A block is one layer's experts with their router, which chooses a few experts for each token (`ov_hsdag.model.experts`).
The model computes all experts for all tokens. Some plugins fuse a block and compute only the routed experts. Costs and
memory of their devices follow from another graph, in which the other experts cost nothing (`ChosenAlone`).
"""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.costs.profile import Profile
from ov_hsdag.model.experts import experts
from ov_hsdag.model.graph import ComputationGraph
from ov_hsdag.utils.lazy import ov

# The first release whose plugins compute only the routed experts of a mixture of experts (docs/reference/facts.md).
_EXPERTS_SINCE = (2025, 4)

# Element types of weights with which GPU plugins fuse a block of experts, on GPUs with matrix engines.
_GPU_EXPERT_TYPES = frozenset({"u4", "i4", "u8", "i8"})


def fuses_experts(profile: Profile, graph: ComputationGraph, names: Sequence[str]) -> list[bool]:
    """Whether each device's plugin computes only the routed experts of mixture-of-experts blocks.

    Since 2025.4, CPU plugins on x86-64 skip the others, and so do those of GPUs with matrix engines if the experts'
    weights have 4 or 8 bits.

    Args:
        profile: profile of the devices.
        graph: the graph of a model.
        names: names of the devices.

    Returns:
        A value for each device, in the order of `names`; all are False if the graph has no such blocks.
    """
    blocks = experts(graph)
    release = tuple(int(number) for number in re.findall(r"\d+", ov.__version__)[:2])  # (2026, 4)
    if not blocks or release < _EXPERTS_SINCE:
        return [False] * len(names)
    compressed_outputs = {output for output, name in enumerate(graph.output_types) if name in _GPU_EXPERT_TYPES}
    # The first block stands for all, as the layers of a model are compressed alike.
    weight_outputs = [range(graph.output_ptr[node], graph.output_ptr[node + 1]) for node in blocks[0].weights(graph)]
    compressed = any(compressed_outputs.intersection(outputs) for outputs in weight_outputs)
    on_x86 = platform.machine().lower() in ("x86_64", "amd64")
    devices = [profile.device(name) for name in names]
    return [
        (device.kind == "CPU" and on_x86) or (device.kind == "GPU" and compressed and device.has_matrix_engines)
        for device in devices
    ]


@dataclass(frozen=True, eq=False)
class ChosenAlone:
    """A graph for the costs of devices that compute only the routed experts of each block."""

    graph: ComputationGraph  # tensor bytes and flops count the executed experts only; weight bytes count all experts
    absent: NDArray[np.bool_]  # nodes that are not executed, bool [nodes]

    @classmethod
    def of(cls, graph: ComputationGraph) -> ChosenAlone:
        """Makes the graph from that of a model, `graph`, in which every expert computes for every token."""
        # Share of each output's bytes that remains, and share of each weight's bytes that is read.
        share, read = np.ones(graph.outputs), np.ones(graph.nodes)
        flops, absent = graph.flops.copy(), np.zeros(graph.nodes, bool)
        for block in experts(graph):
            computing = block.products(graph)
            absent[[block.tile, block.scatter]] = True
            flops[[*computing, block.sum]] *= block.chosen / block.all
            tiled = {block.tile}
            for node in computing.tolist():
                first, last = graph.input_ptr[node], graph.input_ptr[node + 1]
                sources = graph.input_source[first:last].tolist()
                if graph.types[node] == "Reshape" and sources[0] in tiled:
                    tiled.add(node)
                copies = 1 if node in tiled else block.chosen
                share[graph.output_ptr[node] : graph.output_ptr[node + 1]] = copies / block.all
            for node in block.weights(graph):
                read[node] = min(block.distinct / block.all, 1.0)
        share *= read[graph.output_node]
        size = np.where(share < 1, np.ceil(graph.output_bytes * share), graph.output_bytes).astype(np.int64)
        return cls(replace(graph, output_bytes=size, flops=flops), absent)


@dataclass(frozen=True, eq=False)
class ExecutedGraphs:
    """The graphs that the devices of a list execute; each is made once for all devices that execute it."""

    model_graph: ComputationGraph  # graph of the model, in which every expert computes for every token
    fusing: tuple[bool, ...]  # whether each device computes only the routed experts, see `fuses_experts`, [devices]

    @classmethod
    def of(cls, profile: Profile, graph: ComputationGraph, names: Sequence[str]) -> ExecutedGraphs:
        """Finds out which graphs devices execute.

        Args:
            profile: profile of the devices.
            graph: the graph of a model.
            names: names of the devices.

        Returns:
            The graphs of the devices.
        """
        return cls(graph, tuple(fuses_experts(profile, graph, names)))

    @cached_property
    def _chosen_alone(self) -> ChosenAlone:
        """What devices that compute only the routed experts execute; made when a device needs it."""
        return ChosenAlone.of(self.model_graph)

    def graph(self, fuses: bool) -> ComputationGraph:
        """The graph that devices execute which compute only the routed experts (True), or all experts (False)."""
        return self._chosen_alone.graph if fuses else self.model_graph

    @property
    def absent(self) -> NDArray[np.bool_]:
        """Nodes that a device does not execute, bool [nodes, devices]."""
        if not any(self.fusing):
            return np.zeros((self.model_graph.nodes, len(self.fusing)), bool)
        return np.logical_and.outer(self._chosen_alone.absent, np.array(self.fusing))

    @property
    def for_memory(self) -> ComputationGraph:
        """The graph whose tensors count for memory.

        Tensors have one size for all devices, so all experts count if one device computes all of them.
        """
        return self.graph(all(self.fusing))
