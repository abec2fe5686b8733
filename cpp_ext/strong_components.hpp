// Finds strongly connected components of a directed graph. Components of several nodes are what cycles consist of.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ov_hsdag {

// The algorithm of Tarjan, "Depth-first search and linear graph algorithms", SIAM J. Comput. 1(2), 1972. It uses
// explicit stacks, as paths can have thousands of nodes, and reuses its memory from call to call.
class StrongComponents {
public:
    // ptr, target: edges in compressed rows, from node i to target[ptr[i] … ptr[i + 1] - 1]. component: set to the
    // component of each node, [nodes], -1 for a node that is on no cycle with others. Returns the number of components
    // with several nodes.
    std::int32_t find(std::span<const std::int32_t> ptr, std::span<const std::int32_t> target,
                      std::vector<std::int32_t>& component);

private:
    std::vector<std::int32_t> order_, low_, stack_, frame_, frame_edge_;
    std::vector<std::uint8_t> on_stack_;
};

}  // namespace ov_hsdag
