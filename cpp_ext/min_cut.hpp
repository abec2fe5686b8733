// Computes a minimum cut between a source and a sink of a directed flow network. With two devices the best placement
// for latency in the additive cost model is such a cut.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ov_hsdag {

// Returns [nodes], 1 for nodes on the sink's side of a minimum cut: those that cannot be reached from the source in the
// residual network of a maximum flow. Of several minimum cuts it is the one with the smallest source side, so that the
// result does not depend on the order of edges.
//
// start, end, capacity: [edges]; capacities are not negative, and infinite for edges that must not be cut. Capacities
// of parallel edges are added. Throws std::invalid_argument if the arrays do not fit each other, or every cut is
// infinite.
//
// Dinic's algorithm ("Algorithm for solution of a problem of maximum flow in networks with power estimation", Soviet
// Math. Doklady 11, 1970): blocking flows in the layered residual network, O(nodes^2 * edges) at worst.
std::vector<std::uint8_t> sink_side_of_min_cut(std::int32_t nodes, std::int32_t source, std::int32_t sink,
                                               std::span<const std::int32_t> start, std::span<const std::int32_t> end,
                                               std::span<const double> capacity);

}  // namespace ov_hsdag
