"""Finds blocks of experts (mixtures of experts), in which each token passes through a few of many experts.

A router chooses the experts of each token and weighs their results. OpenVINO's models compute all experts for all
tokens: a Tile copies the tokens for each expert, and the results are multiplied with the router's weights and added.
The native core recognises the blocks (cpp_ext/experts.hpp), because it keeps each of them together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.graph import ComputationGraph


@dataclass(frozen=True, eq=False)
class Experts:
    """A block of experts of a graph."""

    nodes: NDArray[np.int32]  # nodes of the block with its router, without weights, int32, ascending
    tile: int  # the node that makes a copy of the tokens for each expert
    scatter: int  # the node that scatters the router's weights of the chosen experts into a vector for all experts
    sum: int  # the node that adds the experts' results
    all: int  # number of experts
    chosen: int  # number of experts that each token passes through
    tokens: int  # number of tokens of one inference, all sequences together

    @property
    def distinct(self) -> float:
        """Expected number of experts with at least one token, if tokens choose at random.

        It is E (1 - (1 - k / E) ^ T) with E experts, k of them for each token, and T tokens.
        """
        return self.all * (1.0 - (1.0 - self.chosen / self.all) ** self.tokens)

    def products(self, graph: ComputationGraph) -> NDArray[np.int32]:
        """Finds the nodes that compute for each expert, from the tile to the product with the router's weights.

        Args:
            graph: the graph of the block.

        Returns:
            Numbers of the nodes, int32, sorted. They include the tile, but neither the sum nor the router.
        """
        inside = {self.tile}
        for node in self.nodes.tolist():
            first, last = graph.input_ptr[node], graph.input_ptr[node + 1]
            if node != self.sum and inside.intersection(graph.input_source[first:last].tolist()):
                inside.add(node)
        return np.array(sorted(inside), np.int32)

    def weights(self, graph: ComputationGraph) -> list[int]:
        """Finds the experts' weights: the constants that `products` read, and the nodes that decompress them.

        Scalars and vectors are left out, as they do not have a part for each expert.

        Args:
            graph: the graph of the block.

        Returns:
            Numbers of the nodes, sorted.
        """
        constant = graph.legality.constant
        weight_nodes: set[int] = set()
        ahead = self.products(graph).tolist()
        while ahead:
            node = ahead.pop()
            for edge in range(graph.input_ptr[node], graph.input_ptr[node + 1]):
                source = int(graph.input_source[edge])
                several = len(graph.output_shapes[graph.input_output[edge]]) > 1
                if constant[source] and several and source not in weight_nodes:
                    weight_nodes.add(source)
                    ahead.append(source)
        return sorted(weight_nodes)


def experts(graph: ComputationGraph) -> tuple[Experts, ...]:
    """Returns the blocks of experts of a graph, in its order.

    Blocks whose numbers of experts do not follow from the shapes are left out.
    """
    blocks = []
    for tile, scatter, total, nodes in graph.legality.experts:
        shape = graph.output_shapes[graph.output_ptr[scatter]]
        indices = graph.output_shapes[graph.input_output[graph.input_ptr[scatter] + 1]]
        if shape and indices and 0 < indices[-1] < shape[-1]:
            blocks.append(Experts(nodes, tile, scatter, total, shape[-1], indices[-1], math.prod(indices[:-1])))
    return tuple(blocks)
