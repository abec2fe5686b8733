// Renumbers coarse groups in the order of the problem and makes the additive models of both levels. Levels of
// further orders are made when they are first needed.
#include "levels.hpp"

#include <algorithm>
#include <stdexcept>

#include "simulate.hpp"

namespace ov_hsdag {
namespace {

// The coarse group of each group in the problem's order, numbered in the order of their first groups, [groups].
std::vector<std::int32_t> ordered_coarse_groups(const OrderedProblem& problem,
                                                std::span<const std::int32_t> coarse_groups) {
    const std::size_t groups = problem.numbers().size();
    if (coarse_groups.size() != groups) throw std::invalid_argument("expected one coarse group per group");
    const auto is_number = [&](std::int32_t number) {
        return number >= 0 && static_cast<std::size_t>(number) < groups;
    };
    if (!std::all_of(coarse_groups.begin(), coarse_groups.end(), is_number)) {
        throw std::invalid_argument("expected coarse group numbers from 0, no more than groups");
    }
    std::vector<std::int32_t> result = problem.ordered(coarse_groups);
    std::vector<std::int32_t> number(groups, -1);
    std::int32_t next = 0;
    for (std::int32_t& coarse : result) {
        std::int32_t& renumbered = number[coarse];
        if (renumbered < 0) renumbered = next++;
        coarse = renumbered;
    }
    return result;
}

// Whether the whole model exceeds the memory limit of some device.
bool exceeds_a_device(const Problem& problem) {
    const auto limited = [](std::int64_t limit) { return limit >= 0; };
    if (std::none_of(problem.memory_limit.begin(), problem.memory_limit.end(), limited)) return false;
    Simulator simulator(problem);
    for (std::int32_t device = 0; device < problem.devices; ++device) {
        if (!limited(problem.memory_limit[device])) continue;
        const Placement whole(static_cast<std::size_t>(problem.groups()), static_cast<std::uint8_t>(device));
        if ((simulator.evaluate(whole.data()).infeasible & kMemory) != 0) return true;
    }
    return false;
}

// Whether no device supports all items of a model.
bool none_supports_all(const AdditiveModel& model) {
    for (std::size_t device = 0; device < static_cast<std::size_t>(model.devices); ++device) {
        bool all = true;
        for (std::int32_t item = 0; item < model.items && all; ++item) all = model.supports(item, device);
        if (all) return false;
    }
    return true;
}

}  // namespace

Levels::Levels(const OrderedProblem& problem, std::span<const std::int32_t> coarse_groups, std::size_t node_order)
    : coarse_of(ordered_coarse_groups(problem, coarse_groups)),
      fine(problem.problem(), problem.problem().group, problem.node_orders()[node_order]),
      coarse(problem.problem(), gathered(coarse_of, problem.problem().group), problem.node_orders()[node_order]) {}

SearchSpace::SearchSpace(const Problem& problem, std::span<const std::int32_t> coarse_groups)
    : ordered(problem),
      levels(ordered, coarse_groups),
      little_memory(exceeds_a_device(problem)),
      lacks_operations(std::find(levels.fine.supported.begin(), levels.fine.supported.end(), 0) !=
                       levels.fine.supported.end()),
      all_lack_operations(none_supports_all(levels.fine)),
      coarse_groups_(coarse_groups.begin(), coarse_groups.end()),
      others_(ordered.node_orders().size()) {}

const Levels& SearchSpace::levels_of(std::size_t order) const {
    order %= others_.size();
    if (order == 0) return levels;
    const std::scoped_lock lock(mutex_);
    if (!others_[order]) others_[order] = std::make_unique<const Levels>(ordered, coarse_groups_, order);
    return *others_[order];
}

Placement Levels::coarsened(const Placement& placement) const {
    return coarse.elected(coarse.summed(fine.votes(placement), coarse_of));
}

}  // namespace ov_hsdag
