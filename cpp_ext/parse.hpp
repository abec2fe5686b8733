// Graph parsing: from edge scores to clusters of nodes, as in Song et al., "Graph Parsing Networks", ICLR 2024
// (arXiv:2402.14393).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ov_hsdag {

// Each node's dominant edge is its highest scored incident edge (the lower edge number where scores are equal); nodes
// that dominant edges connect form a cluster. Repeated `levels` times on the quotient graph, whose edges have the
// highest score of the edges they stand for. The last level merges along the highest scored dominant edges only, as
// many as leave `min_clusters`. source, target: [edges] any pairs of nodes; direction, order and repetition make no
// difference to what is connected. Returns [nodes] dense cluster numbers, in the order of the clusters' first nodes.
// Throws std::invalid_argument for arrays that do not fit together and for scores that are not finite.
std::vector<std::int32_t> parse(std::int32_t nodes, std::span<const std::int32_t> source,
                                std::span<const std::int32_t> target, std::span<const float> score, std::int32_t levels,
                                std::int32_t min_clusters);

}  // namespace ov_hsdag
