// Coarse groups: chains of colocation groups.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph.hpp"

namespace ov_hsdag {

// The co-location rule of HSDAG (Duan et al., "A Structure-Aware Framework for Learning Device Placements on
// Computation Graphs", NeurIPS 2024, arXiv:2405.14185, section on graph coarsening) on top of given groups: where A's
// only successor is B and B's only predecessor is A, they become one group. Two groups merge only when `label` agrees
// (devices that support them), and, which the paper does not have, while what is merged weighs at most `most`: a model
// that is one long chain would be one group, on which nothing is left to place. group: [nodes] dense numbers; label,
// weight: [groups]. Returns [nodes] dense group numbers.
std::vector<std::int32_t> colocate_chains(const Graph& graph, std::span<const std::int32_t> group,
                                          std::span<const std::int64_t> label, std::span<const double> weight,
                                          double most);

}  // namespace ov_hsdag
