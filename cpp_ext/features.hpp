// Where a node stands in its graph: the structural features of the policy. Degrees, topological position, fractal
// dimension and closeness are those of Duan et al., "A Structure-Aware Framework for Learning Device Placements on
// Computation Graphs", NeurIPS 2024 (arXiv:2405.14185); depth and height are ours.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ov_hsdag {

struct StructureFeatures {
    std::vector<std::int32_t> in_degree, out_degree;  // [nodes]
    // Place in the topological order that takes the lowest number among the nodes that are ready. Where the graph has
    // cycles (groups of nodes can), the lowest number that is left counts as ready.
    std::vector<std::int32_t> position;
    std::vector<std::int32_t> depth, height;  // [nodes] edges of the longest path from a source, to a sink
    // Slope of the least squares line through (log r, log(nodes within r hops, the node included)), r = 1 … the largest
    // distance; edges in both directions. 0 where that distance is below 2.
    std::vector<double> fractal_dimension;
    // Closeness centrality over the paths that lead to the node, scaled by the share of nodes that reach it (Wasserman
    // and Faust 1994; networkx.closeness_centrality).
    std::vector<double> closeness;
};

// source, target: [edges] distinct pairs of different nodes. Throws std::invalid_argument for others than node numbers.
// Takes time in proportion to the square of the nodes, about 1 ms for 1,000.
StructureFeatures structure_features(std::int32_t nodes, std::span<const std::int32_t> source,
                                     std::span<const std::int32_t> target, std::int32_t threads);

}  // namespace ov_hsdag
