// Computes a numbering of a problem's nodes that does not depend on their given numbers.
//
// Colours are refined until nodes of equal colour have neighbours of equal colours (1-dimensional Weisfeiler-Leman, by
// partition refinement as in McKay, "Practical graph isomorphism", Congressus Numerantium 30, 1981). While several
// nodes share a colour, one of them is given a new colour, and refinement continues. In models such nodes are copies of
// each other, so that the choice among them makes no difference; other choices are not tried.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "problem.hpp"

namespace ov_hsdag {

// A topological order of the nodes, [nodes]: depth first backwards from the outputs, the longest branch first, then by
// colour. Renumbering the nodes in this order gives the same problem for every original numbering.
//
// labels: [nodes] further data that distinguishes nodes, in addition to the problem's. Throws std::invalid_argument
// unless there is one for each node.
[[nodiscard]] std::vector<std::int32_t> canonical_order(const Problem& problem, std::span<const std::int64_t> labels);

}  // namespace ov_hsdag
