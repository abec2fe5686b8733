"""Blocks of experts (mixtures of experts): each token goes through a few of many.

The native core recognises them (cpp_ext/experts.hpp), as it keeps each of them together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.graph import ComputationGraph


@dataclass(frozen=True, eq=False)
class Experts:
    """A block of experts of a graph."""

    nodes: NDArray[np.int32]  # of the block, its router included, weights left out, int32, ascending
    tile: int  # the node that makes a copy of the tokens for each expert
    scatter: int  # the node that puts the weights of the chosen experts among those of all
    sum: int  # the node that adds up what the experts give
    all: int  # number of experts
    chosen: int  # of them by each token
    tokens: int  # of one inference, all sequences together

    @property
    def distinct(self) -> float:
        """Experts that some token chooses, where each token chooses at random: E (1 - (1 - k / E) ^ T)."""
        return self.all * (1.0 - (1.0 - self.chosen / self.all) ** self.tokens)

    def products(self, graph: ComputationGraph) -> NDArray[np.int32]:
        """What computes for each expert: from the tile to the product with the router's weights, int32, ascending."""
        inside = {self.tile}
        for node in self.nodes.tolist():
            first, last = graph.input_ptr[node], graph.input_ptr[node + 1]
            if node != self.sum and inside.intersection(graph.input_source[first:last].tolist()):
                inside.add(node)
        return np.array(sorted(inside), np.int32)

    def weights(self, graph: ComputationGraph) -> list[int]:
        """Constants that products read, with what decompresses them, as far as they have a part for each expert."""
        constant = graph.legality.constant
        found: set[int] = set()
        ahead = self.products(graph).tolist()
        while ahead:
            node = ahead.pop()
            for edge in range(graph.input_ptr[node], graph.input_ptr[node + 1]):
                source = int(graph.input_source[edge])
                several = len(graph.output_shapes[graph.input_output[edge]]) > 1
                if constant[source] and several and source not in found:
                    found.add(source)
                    ahead.append(source)
        return sorted(found)


def experts(graph: ComputationGraph) -> tuple[Experts, ...]:
    """The blocks of experts of a graph, in its order; those whose sizes say nothing are left out."""
    found = []
    for tile, scatter, total, nodes in graph.legality.experts:
        shape = graph.output_shapes[graph.output_ptr[scatter]]
        indices = graph.output_shapes[graph.input_output[graph.input_ptr[scatter] + 1]]
        if shape and indices and 0 < indices[-1] < shape[-1]:
            found.append(Experts(nodes, tile, scatter, total, shape[-1], indices[-1], math.prod(indices[:-1])))
    return tuple(found)


@dataclass(frozen=True, eq=False)
class ChosenAlone:
    """A graph as devices compute it that fuse blocks of experts: of each block the chosen experts alone."""

    graph: ComputationGraph  # all sizes and operations are those of what is computed and read; sizes of weights are not
    absent: NDArray[np.bool_]  # nodes that are not executed at all, bool [nodes]

    @classmethod
    def of(cls, graph: ComputationGraph) -> ChosenAlone:
        """The form of a graph."""
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
