// Strongly connected components of a directed graph.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ov_hsdag {

// After Tarjan, "Depth-first search and linear graph algorithms", SIAM J. Comput. 1(2), 1972, with explicit stacks:
// graphs can be thousands of nodes long. Keeps its memory from call to call.
class StrongComponents {
public:
    // Edges in compressed rows: node i goes to target[ptr[i] … ptr[i + 1] - 1]. Afterwards `component` has the number
    // of each node's component [nodes], -1 for a node that is on no cycle with others. Returns the number of components
    // that have several nodes.
    std::int32_t find(std::span<const std::int32_t> ptr, std::span<const std::int32_t> target,
                      std::vector<std::int32_t>& component);

private:
    std::vector<std::int32_t> order_, low_, stack_, frame_, frame_edge_;
    std::vector<std::uint8_t> on_stack_;
};

}  // namespace ov_hsdag
