// Topological orders of a problem's nodes that follow from its structure and costs alone: however a file numbers the
// nodes, searches see the same problem.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "problem.hpp"

namespace ov_hsdag {

// Hashes of a value, and of two.
[[nodiscard]] std::uint64_t mixed(std::uint64_t value);
[[nodiscard]] std::uint64_t mixed(std::uint64_t a, std::uint64_t b);

// A hash of what each node costs and of the sizes of its outputs, [nodes].
[[nodiscard]] std::vector<std::uint64_t> node_costs(const Problem& problem);

// Depth first from the outputs back, so that branches stay together; the longest branch first, ties by `keys`, [nodes].
[[nodiscard]] std::vector<std::int32_t> branch_order(const Problem& problem, std::vector<std::uint64_t> keys);

// Several topological orders, [nodes] each. The first is depth first from the outputs back, so that branches stay
// together and what has no inputs (a weight) comes right before its first reader. Ties are broken by a hash of each
// node's costs and surroundings; node numbers decide only between nodes that it cannot tell apart.
[[nodiscard]] std::vector<std::vector<std::int32_t>> node_orders(const Problem& problem);

// Items in the order in which their first operations run, [items]. item: [nodes] dense numbers. node_order: [nodes].
[[nodiscard]] std::vector<std::int32_t> item_order(const Problem& problem, std::span<const std::int32_t> item,
                                                   std::span<const std::int32_t> node_order);

// Another depth first order in which inputs of a node come in random order: branches stay together, their order
// differs. from: one of `node_orders`.
[[nodiscard]] std::vector<std::int32_t> random_branch_order(const Problem& problem, std::span<const std::int32_t> from,
                                                            std::mt19937_64& random);

// A problem with its groups numbered in the first of its orders, and the way there and back.
class OrderedProblem {
public:
    explicit OrderedProblem(const Problem& problem);

    // Its nodes are numbered as they were.
    [[nodiscard]] const Problem& problem() const { return problem_; }
    [[nodiscard]] const std::vector<std::vector<std::int32_t>>& node_orders() const { return orders_; }
    // The orders of the groups that follow from these, each once: [groups] numbers in `problem()`.
    [[nodiscard]] std::vector<std::vector<std::int32_t>> group_orders() const;
    // [groups] numbers in `problem()` of the groups as given.
    [[nodiscard]] const std::vector<std::int32_t>& numbers() const { return number_; }

    // [rows, groups] values by the given numbers → by those of `problem()`, and back.
    template <typename T>
    [[nodiscard]] std::vector<T> ordered(std::span<const T> values) const {
        std::vector<T> result(values.size());
        for (std::size_t at = 0; at < values.size(); ++at) result[moved(at)] = values[at];
        return result;
    }
    template <typename T>
    [[nodiscard]] std::vector<T> as_given(std::span<const T> values) const {
        std::vector<T> result(values.size());
        for (std::size_t at = 0; at < values.size(); ++at) result[at] = values[moved(at)];
        return result;
    }

private:
    [[nodiscard]] std::size_t moved(std::size_t at) const {
        return at - at % number_.size() + static_cast<std::size_t>(number_[at % number_.size()]);
    }

    Problem problem_;
    std::vector<std::vector<std::int32_t>> orders_;
    std::vector<std::int32_t> number_;  // [groups as given]
};

}  // namespace ov_hsdag
