// Computes topological orders of a problem's nodes that depend only on its structure and costs, so that searches do not
// depend on how a file numbers the nodes.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "problem.hpp"

namespace ov_hsdag {

// The hash of a value, and of a pair of values.
[[nodiscard]] std::uint64_t mixed(std::uint64_t value);
[[nodiscard]] std::uint64_t mixed(std::uint64_t a, std::uint64_t b);

// A hash of each node's costs and of the sizes of its outputs, [nodes].
[[nodiscard]] std::vector<std::uint64_t> node_costs(const Problem& problem);

// The topological order that goes depth first backwards from the outputs, so that branches stay together, [nodes]. The
// longest branch comes first; ties are broken by `keys`, [nodes].
[[nodiscard]] std::vector<std::int32_t> branch_order(const Problem& problem, std::vector<std::uint64_t> keys);

// Several topological orders, [nodes] each. The first one goes depth first backwards from the outputs, so that branches
// stay together, and nodes without inputs (weights) come right before their first readers. Ties are broken by a hash of
// each node's costs and neighbourhood; node numbers decide only between nodes with equal hashes.
[[nodiscard]] std::vector<std::vector<std::int32_t>> node_orders(const Problem& problem);

// The items in the order in which their first operations run, [items]. item: item of each node, dense numbers, [nodes].
// node_order: the nodes in order, [nodes].
[[nodiscard]] std::vector<std::int32_t> item_order(const Problem& problem, std::span<const std::int32_t> item,
                                                   std::span<const std::int32_t> node_order);

// A depth first order with the inputs of each node in random order: branches stay together, but in another order. from:
// one of `node_orders`.
[[nodiscard]] std::vector<std::int32_t> random_branch_order(const Problem& problem, std::span<const std::int32_t> from,
                                                            std::mt19937_64& random);

// A problem with groups renumbered in the first of its orders, and the translation to and from the given numbers.
class OrderedProblem {
public:
    explicit OrderedProblem(const Problem& problem);

    // The problem with renumbered groups; numbers of nodes are unchanged.
    [[nodiscard]] const Problem& problem() const { return problem_; }
    // The orders of nodes by ov_hsdag::node_orders.
    [[nodiscard]] const std::vector<std::vector<std::int32_t>>& node_orders() const { return orders_; }
    // The orders of groups that follow from the node orders, without repetitions: numbers in `problem()`, [groups].
    [[nodiscard]] std::vector<std::vector<std::int32_t>> group_orders() const;
    // The number in `problem()` of each group as given, [groups].
    [[nodiscard]] const std::vector<std::int32_t>& numbers() const { return number_; }

    // Translate values [rows, groups] from given numbers to those of `problem()`, and back.
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
    // The place in values [rows, groups] of `problem()` for a place in the given values.
    [[nodiscard]] std::size_t moved(std::size_t at) const {
        return at - at % number_.size() + static_cast<std::size_t>(number_[at % number_.size()]);
    }

    Problem problem_;
    std::vector<std::vector<std::int32_t>> orders_;
    std::vector<std::int32_t> number_;  // [groups as given]
};

}  // namespace ov_hsdag
