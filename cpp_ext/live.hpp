// Memory of live tensors in parts of an order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "problem.hpp"

namespace ov_hsdag {

// Bytes that the tensors of a part take at its peak, [cuts, cuts], from row to column, if the part is one submodel:
// what it receives stays alive, and so does what others receive of it (Simulator). place: [groups] in the order. cuts:
// places where parts may begin or end, ascending, both ends of the order among them. Nodes of a group count as run when
// it does. Takes one walk over the graph, and for each cut one over the tensors that cross it.
std::vector<double> live_peaks(const Problem& problem, std::span<const std::int32_t> place,
                               std::span<const std::int32_t> cuts);

}  // namespace ov_hsdag
