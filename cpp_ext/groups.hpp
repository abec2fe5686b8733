// Disjoint sets of nodes (union-find).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ov_hsdag {

// Disjoint sets of the numbers below `size`; the root of a set is its smallest member.
class Groups {
public:
    explicit Groups(std::int32_t size);
    std::int32_t root(std::int32_t item);
    void merge(std::int32_t a, std::int32_t b);
    // Dense numbers [items], in the order of the groups' first members.
    std::vector<std::int32_t> numbers();

private:
    std::vector<std::int32_t> parent_;
};

// Merges the groups of every pair (a[i], b[i]) of nodes. Returns [nodes] dense group numbers, in the order in which the
// groups' first nodes stand in the graph.
std::vector<std::int32_t> merge_groups(std::int32_t nodes, std::span<const std::int32_t> a,
                                       std::span<const std::int32_t> b);

}  // namespace ov_hsdag
