// A numbering of a problem's nodes that follows from the problem alone.
//
// Colours are refined until nodes of one colour have alike neighbours (1-dimensional Weisfeiler-Leman, by partition
// refinement as in McKay, "Practical graph isomorphism", Congressus Numerantium 30, 1981). While some nodes share a
// colour, one of them gets a colour of its own. In models those are copies of each other, and which one is chosen makes
// no difference; no other choice is tried.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "problem.hpp"

namespace ov_hsdag {

// A topological order of the nodes, [nodes]: depth first from the outputs back, the longest branch first, then by
// colour. However the nodes are numbered, renumbering them in this order makes the same problem. labels: [nodes] what
// tells nodes apart beyond what the problem holds. Throws std::invalid_argument where there is not one for each node.
[[nodiscard]] std::vector<std::int32_t> canonical_order(const Problem& problem, std::span<const std::int64_t> labels);

}  // namespace ov_hsdag
