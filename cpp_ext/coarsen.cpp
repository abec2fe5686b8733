// Finds the only successor and the only predecessor of each group, follows the chains, and merges their groups while
// the weight stays within the limit.
#include "coarsen.hpp"

#include <stdexcept>

#include "groups.hpp"

namespace ov_hsdag {
std::vector<std::int32_t> colocate_chains(const Graph& graph, std::span<const std::int32_t> group,
                                          std::span<const std::int64_t> label, std::span<const double> weight,
                                          double most) {
    constexpr std::int32_t kNone = -1;
    constexpr std::int32_t kSeveral = -2;
    const auto count = static_cast<std::int32_t>(label.size());
    if (weight.size() != label.size()) throw std::invalid_argument("expected one weight per group");
    if (group.size() != static_cast<std::size_t>(graph.nodes()))
        throw std::invalid_argument("expected one group per node");
    for (const std::int32_t g : group) {
        if (g < 0 || g >= count) throw std::invalid_argument("expected one label per group");
    }
    std::vector<std::int32_t> successor(static_cast<std::size_t>(count), kNone);
    std::vector<std::int32_t> predecessor(static_cast<std::size_t>(count), kNone);
    const auto note = [](std::int32_t& slot, std::int32_t value) {
        if (slot == kNone) slot = value;
        if (slot != value) slot = kSeveral;
    };
    for (std::int32_t e = 0; e < graph.edges(); ++e) {
        const std::int32_t from = group[graph.source[e]];
        const std::int32_t to = group[graph.target[e]];
        if (from == to) continue;
        note(successor[from], to);
        note(predecessor[to], from);
    }
    const auto chained = [&](std::int32_t g) {  // the successor that may join the chain of g
        const std::int32_t next = successor[g];
        return next >= 0 && predecessor[next] == g && label[g] == label[next] ? next : kNone;
    };
    std::vector<std::uint8_t> inside(static_cast<std::size_t>(count), 0);  // 1: not the first of its chain
    for (std::int32_t g = 0; g < count; ++g) {
        if (const std::int32_t next = chained(g); next >= 0) inside[next] = 1;
    }
    Groups groups(count);
    for (std::int32_t g = 0; g < count; ++g) {
        if (inside[g]) continue;
        double merged = weight[g];
        for (std::int32_t at = g, next = chained(g); next >= 0; at = next, next = chained(next)) {
            merged += weight[next];
            if (merged <= most) {
                groups.merge(at, next);
            } else {
                merged = weight[next];
            }
        }
    }
    // Groups are renumbered in the order of their first nodes, like the caller's groups.
    std::vector<std::int32_t> renumber(static_cast<std::size_t>(count), kNone);
    std::vector<std::int32_t> result(group.size());
    std::int32_t next = 0;
    for (std::size_t node = 0; node < group.size(); ++node) {
        std::int32_t& number = renumber[groups.root(group[node])];
        if (number == kNone) number = next++;
        result[node] = number;
    }
    return result;
}

}  // namespace ov_hsdag
