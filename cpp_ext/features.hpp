// Computes the structural features of nodes for the policy. Degrees, topological position, fractal dimension and
// closeness are those of Duan et al., "A Structure-Aware Framework for Learning Device Placements on Computation
// Graphs", NeurIPS 2024 (arXiv:2405.14185); depth and height are additions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ov_hsdag {

struct StructureFeatures {
    std::vector<std::int32_t> in_degree, out_degree;  // [nodes]
    // [nodes] position in the topological order that takes the lowest number among the ready nodes. In a cycle, which
    // groups of nodes may have, the lowest remaining number counts as ready.
    std::vector<std::int32_t> position;
    std::vector<std::int32_t> depth, height;  // [nodes] edges of the longest path from a source, and to a sink
    // [nodes] slope of the least squares line through (log r, log(number of nodes within r hops, including the node)),
    // for r = 1 … the largest distance, with edges in both directions. 0 if that distance is below 2.
    std::vector<double> fractal_dimension;
    // [nodes] closeness centrality over the paths that lead to the node, scaled by the share of nodes that reach it
    // (Wasserman and Faust 1994; networkx.closeness_centrality).
    std::vector<double> closeness;
};

// Computes the features of a graph. source, target: [edges] distinct pairs of different nodes. threads: number of
// threads. The time grows with the square of the number of nodes; 1,000 nodes take about 1 ms. Throws
// std::invalid_argument if an end of an edge is no node number.
StructureFeatures structure_features(std::int32_t nodes, std::span<const std::int32_t> source,
                                     std::span<const std::int32_t> target, std::int32_t threads);

}  // namespace ov_hsdag
