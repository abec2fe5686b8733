// Tarjan's algorithm with explicit stacks. `frame_` has the path of the depth first search, `stack_` the nodes that
// are in no component yet.
#include "strong_components.hpp"

#include <algorithm>
#include <cstddef>

namespace ov_hsdag {

std::int32_t StrongComponents::find(std::span<const std::int32_t> ptr, std::span<const std::int32_t> target,
                                    std::vector<std::int32_t>& component) {
    const std::size_t nodes = ptr.size() - 1;
    std::int32_t components = 0;
    std::int32_t next = 0;
    component.assign(nodes, -1);
    on_stack_.assign(nodes, 0);
    order_.assign(nodes, -1);
    low_.assign(nodes, 0);
    stack_.clear();
    frame_.clear();
    frame_edge_.assign(ptr.begin(), ptr.end() - 1);
    const auto open = [&](std::int32_t node) {
        order_[node] = low_[node] = next++;
        on_stack_[node] = 1;
        stack_.push_back(node);
        frame_.push_back(node);
    };
    for (std::int32_t start = 0; start < static_cast<std::int32_t>(nodes); ++start) {
        if (order_[start] >= 0) continue;
        open(start);
        while (!frame_.empty()) {
            const std::int32_t at = frame_.back();
            if (frame_edge_[at] < ptr[static_cast<std::size_t>(at) + 1]) {
                const std::int32_t to = target[static_cast<std::size_t>(frame_edge_[at]++)];
                if (order_[to] < 0) {
                    open(to);
                } else if (on_stack_[to] != 0) {
                    low_[at] = std::min(low_[at], order_[to]);
                }
                continue;
            }
            frame_.pop_back();
            if (!frame_.empty()) low_[frame_.back()] = std::min(low_[frame_.back()], low_[at]);
            if (low_[at] != order_[at]) continue;
            const bool alone = stack_.back() == at;
            while (true) {
                const std::int32_t member = stack_.back();
                stack_.pop_back();
                on_stack_[member] = 0;
                if (!alone) component[member] = components;
                if (member == at) break;
            }
            if (!alone) ++components;
        }
    }
    return components;
}

}  // namespace ov_hsdag
