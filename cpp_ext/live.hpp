// Computes the memory of live tensors in parts of an order of colocation groups, for all pairs of cuts at once. A cut
// is a place in the order at which a part may begin or end.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "problem.hpp"

namespace ov_hsdag {

// The peak of bytes of live tensors for each part from cut i to cut j, [cuts, cuts], if the part is one submodel; 0 for
// j <= i. Tensors that it receives, and those that others receive from it, stay alive until its end, as in the
// simulator. All nodes of a group run at the place of the group.
//
// place: position of each group in the order, [groups]. cuts: places where parts may begin or end, ascending, including
// both ends of the order. It takes one walk over the graph, and for each cut one over the tensors that cross it.
std::vector<double> live_peaks(const Problem& problem, std::span<const std::int32_t> place,
                               std::span<const std::int32_t> cuts);

}  // namespace ov_hsdag
