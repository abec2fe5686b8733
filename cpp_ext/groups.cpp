// Union-find with path halving. Merging keeps the smaller root, so that numbering needs only one pass.
#include "groups.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace ov_hsdag {

Groups::Groups(std::int32_t size) : parent_(static_cast<std::size_t>(size)) {
    std::iota(parent_.begin(), parent_.end(), 0);
}

std::int32_t Groups::root(std::int32_t item) {
    while (parent_[item] != item) {
        parent_[item] = parent_[parent_[item]];
        item = parent_[item];
    }
    return item;
}

void Groups::merge(std::int32_t a, std::int32_t b) {
    a = root(a);
    b = root(b);
    parent_[std::max(a, b)] = std::min(a, b);
}

std::vector<std::int32_t> Groups::numbers() {
    std::vector<std::int32_t> number(parent_.size());
    std::int32_t next = 0;
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(parent_.size()); ++i) {
        const std::int32_t r = root(i);
        number[i] = r == i ? next++ : number[r];
    }
    return number;
}

std::vector<std::int32_t> merge_groups(std::int32_t nodes, std::span<const std::int32_t> a,
                                       std::span<const std::int32_t> b) {
    if (a.size() != b.size()) throw std::invalid_argument("expected as many first as second nodes of pairs");
    Groups groups(nodes);
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (a[i] < 0 || a[i] >= nodes || b[i] < 0 || b[i] >= nodes) {
            throw std::invalid_argument("expected pairs of node numbers");
        }
        groups.merge(a[i], b[i]);
    }
    return groups.numbers();
}

}  // namespace ov_hsdag
