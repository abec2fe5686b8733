// Merges chains of colocation groups into coarse groups.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph.hpp"

namespace ov_hsdag {

// Applies the co-location rule of HSDAG (Duan et al., "A Structure-Aware Framework for Learning Device Placements on
// Computation Graphs", NeurIPS 2024, arXiv:2405.14185, section on graph coarsening) to groups: if B is the only
// successor of A, and A the only predecessor of B, they become one group. Both must have equal labels (devices that
// support them). Unlike in the paper, the weight of a merged group is limited; otherwise a model that is one long chain
// would become a single group.
//
// group: [nodes] dense numbers. label, weight: [groups]. most: largest weight of a merged group. Returns the coarse
// group of each node, dense numbers, [nodes].
std::vector<std::int32_t> colocate_chains(const Graph& graph, std::span<const std::int32_t> group,
                                          std::span<const std::int64_t> label, std::span<const double> weight,
                                          double most);

}  // namespace ov_hsdag
