// Minimum cut between a source and a sink of a directed flow network.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ov_hsdag {

// The nodes that a maximum flow leaves unreachable from the source: [nodes], 1 on the sink's side of a minimum cut. Of
// several minimum cuts it is the one with the smallest source side, so the result does not depend on the order of
// edges.
//
// start, end, capacity: [edges]; a capacity is not negative, and infinite where the edge must not be cut. Parallel
// edges add up. Throws std::invalid_argument for arrays that do not fit together, and where every cut is infinite.
//
// Dinic's algorithm ("Algorithm for solution of a problem of maximum flow in networks with power estimation", Soviet
// Math. Doklady 11, 1970): blocking flows in the layered residual network, O(nodes^2 * edges) at worst.
std::vector<std::uint8_t> sink_side_of_min_cut(std::int32_t nodes, std::int32_t source, std::int32_t sink,
                                               std::span<const std::int32_t> start, std::span<const std::int32_t> end,
                                               std::span<const double> capacity);

}  // namespace ov_hsdag
