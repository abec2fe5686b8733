// Disjoint sets of nodes (union-find). Colocation, coarsening and searches use them to merge nodes or items by pairs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ov_hsdag {

// Disjoint sets of the numbers below `size`, at first one each. The root of a set is its smallest member.
class Groups {
public:
    explicit Groups(std::int32_t size);
    // The smallest member of the item's set.
    std::int32_t root(std::int32_t item);
    // Joins the sets of two items.
    void merge(std::int32_t a, std::int32_t b);
    // The set of each item, dense numbers in the order of the sets' first members, [items].
    std::vector<std::int32_t> numbers();

private:
    std::vector<std::int32_t> parent_;
};

// Merges the groups of all pairs of nodes (a[i], b[i]). Returns the group of each node, dense numbers in the order of
// the groups' first nodes, [nodes]. Throws std::invalid_argument if a and b differ in length, or have no node number.
std::vector<std::int32_t> merge_groups(std::int32_t nodes, std::span<const std::int32_t> a,
                                       std::span<const std::int32_t> b);

}  // namespace ov_hsdag
