// The two levels on which placements are refined, and the translation of placements between them. The items of the fine
// level are colocation groups; those of the coarse level are coarse groups, which the caller makes (coarsen.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "additive.hpp"
#include "orders.hpp"
#include "problem.hpp"

namespace ov_hsdag {

using Placement = std::vector<std::uint8_t>;  // device number of each item of a level

// Returns values[index[i]] for each i.
template <typename T>
[[nodiscard]] std::vector<T> gathered(const std::vector<T>& values, std::span<const std::int32_t> index) {
    std::vector<T> result;
    for (const std::int32_t i : index) result.push_back(values[static_cast<std::size_t>(i)]);
    return result;
}

// The fine level of colocation groups and the coarse level of coarse groups, as in multilevel partitioning.
struct Levels {
    std::vector<std::int32_t> coarse_of;  // [groups] dense number of the coarse group
    AdditiveModel fine;
    AdditiveModel coarse;

    // coarse_groups: coarse group of each group as given, dense numbers. node_order: index in problem.node_orders().
    // Throws std::invalid_argument unless there is one coarse group for each group.
    Levels(const OrderedProblem& problem, std::span<const std::int32_t> coarse_groups, std::size_t node_order = 0);

    // Translates a placement of groups into one of coarse groups, each on the device where most of its time is spent,
    // among those that support it.
    [[nodiscard]] Placement coarsened(const Placement& placement) const;
    // Translates a placement of coarse groups into one of groups.
    [[nodiscard]] Placement expanded(const Placement& placement) const { return gathered(placement, coarse_of); }
};

// The data that all searches of a problem share: its groups in several orders, and the levels of each order.
class SearchSpace {
public:
    // coarse_groups: see `Levels`.
    SearchSpace(const Problem& problem, std::span<const std::int32_t> coarse_groups);

    const OrderedProblem ordered;
    const Levels levels;             // levels of the first order
    const bool little_memory;        // whether the memory limit of some device is too small for the whole model
    const bool lacks_operations;     // whether some device does not support some group
    const bool all_lack_operations;  // whether no device supports all groups

    // The levels of an order; numbers beyond the last order start again with the first. Thread safe.
    [[nodiscard]] const Levels& levels_of(std::size_t order) const;
    // The problem with groups numbered as in `ordered`.
    [[nodiscard]] const Problem& problem() const { return ordered.problem(); }
    [[nodiscard]] std::int32_t groups() const { return levels.fine.items; }
    [[nodiscard]] std::int32_t devices() const { return levels.fine.devices; }

private:
    std::vector<std::int32_t> coarse_groups_;
    mutable std::mutex mutex_;
    mutable std::vector<std::unique_ptr<const Levels>> others_;  // [orders] made when first needed
};

}  // namespace ov_hsdag
