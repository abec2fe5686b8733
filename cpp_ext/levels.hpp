// The two levels on which placements are refined, and the way between them.
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

using Placement = std::vector<std::uint8_t>;  // device numbers of a level's items

// values[index[i]] for each i.
template <typename T>
[[nodiscard]] std::vector<T> gathered(const std::vector<T>& values, std::span<const std::int32_t> index) {
    std::vector<T> result;
    for (const std::int32_t i : index) result.push_back(values[static_cast<std::size_t>(i)]);
    return result;
}

// Colocation groups are the fine level, coarse groups of them the coarse one, as in multilevel partitioning.
struct Levels {
    std::vector<std::int32_t> coarse_of;  // [groups] dense number of the coarse group
    AdditiveModel fine;
    AdditiveModel coarse;

    // coarse_groups: [groups as given] dense numbers. Throws std::invalid_argument where there is not one for each
    // group. node_order: of the problem's.
    Levels(const OrderedProblem& problem, std::span<const std::int32_t> coarse_groups, std::size_t node_order = 0);

    // Each coarse group where most of its time is spent, among the devices that support it. [groups] → [coarse groups]
    [[nodiscard]] Placement coarsened(const Placement& placement) const;
    // [coarse groups] → [groups]
    [[nodiscard]] Placement expanded(const Placement& placement) const { return gathered(placement, coarse_of); }
};

// What all searches of a problem work on: its groups in orders of their own, with levels of each of the orders.
class SearchSpace {
public:
    // coarse_groups: as for `Levels`.
    SearchSpace(const Problem& problem, std::span<const std::int32_t> coarse_groups)
        : ordered(problem),
          levels(ordered, coarse_groups),
          coarse_groups_(coarse_groups.begin(), coarse_groups.end()),
          others_(ordered.node_orders().size()) {}

    const OrderedProblem ordered;
    const Levels levels;  // of the first order

    // Levels of an order, those of the first one again after the last. May be called by several threads.
    [[nodiscard]] const Levels& levels_of(std::size_t order) const;
    [[nodiscard]] const Problem& problem() const { return ordered.problem(); }
    [[nodiscard]] std::int32_t groups() const { return levels.fine.items; }
    [[nodiscard]] std::int32_t devices() const { return levels.fine.devices; }

private:
    std::vector<std::int32_t> coarse_groups_;
    mutable std::mutex mutex_;
    mutable std::vector<std::unique_ptr<const Levels>> others_;  // [orders] made when they are first wanted
};

}  // namespace ov_hsdag
