// Graph parsing: clusters nodes by scores of edges, as in Song et al., "Graph Parsing Networks", ICLR 2024
// (arXiv:2402.14393).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ov_hsdag {

// Clusters nodes along dominant edges. The dominant edge of a node is the incident edge with the highest score (of
// equal ones the lowest edge number); nodes that dominant edges connect form a cluster. This is repeated `levels` times
// on the quotient graph, whose edges have the highest score of the edges that they represent. The last level merges
// only along the dominant edges with the highest scores, so that `min_clusters` remain.
//
// source, target: [edges] any pairs of nodes; direction, order and repetition do not change which nodes are connected.
// score: [edges]. Returns the cluster of each node, dense numbers in the order of the clusters' first nodes, [nodes].
// Throws std::invalid_argument if the arrays do not fit each other, or a score is not finite.
std::vector<std::int32_t> parse(std::int32_t nodes, std::span<const std::int32_t> source,
                                std::span<const std::int32_t> target, std::span<const float> score, std::int32_t levels,
                                std::int32_t min_clusters);

}  // namespace ov_hsdag
