// The loop of judged annealing. The energy of a placement is log(objective) + weight * excess of memory; the weight
// grows while the temperature falls, so that early placements may exceed the limits and late ones hardly do.
#include "judged_annealing.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "draws.hpp"

namespace ov_hsdag {
namespace {

// The cost of a placement to annealing. weight: price of the excess of memory.
double energy(const Judge::Softened& judged, double weight) {
    return std::log(std::max(judged.us, 1e-9)) + weight * judged.excess;
}

}  // namespace

Placement JudgedAnnealing::run(const Hierarchy& hierarchy, const Placement& start, double heat, std::mt19937_64& random,
                               std::int64_t moves, Budget& budget) {
    const AdditiveModel& model = hierarchy.model(hierarchy.levels() - 1);
    const std::vector<std::int32_t> item_of_group = hierarchy.items();
    const std::int64_t steps_of_stage = std::int64_t{settings_.sweeps} * model.items / settings_.stages;
    const std::int64_t moves_of_stage = moves / settings_.stages;
    const double hottest = settings_.hottest * heat;
    const double cooling = std::pow(settings_.coldest / hottest, 1.0 / settings_.stages);
    const double growth = std::pow(settings_.strict / settings_.gentle, 1.0 / settings_.stages);
    double temperature = hottest;
    double weight = settings_.gentle;
    Placement current = hierarchy.coarsest(start);
    Judge::Softened now = judge_.softened(start, budget);
    Placement best = start;
    double best_us = now.excess > 0 ? std::numeric_limits<double>::infinity() : now.us;
    for (std::int32_t stage = 0; stage < settings_.stages && budget.left(); ++stage) {
        const std::int64_t left_after_stage = budget.moves() - moves_of_stage;
        for (std::int64_t step = 0; step < steps_of_stage && budget.moves() > left_after_stage && budget.left();
             ++step) {
            trial_ = current;
            propose(model, random);
            if (trial_ == current) continue;
            const Placement placement = gathered(trial_, item_of_group);
            const Judge::Softened next = judge_.softened(placement, budget);
            if (!std::isfinite(next.us)) continue;
            const double grown = energy(next, weight) - energy(now, weight);
            if (!accepts(grown, temperature, random)) continue;
            std::swap(current, trial_);
            now = next;
            if (now.excess > 0 || !better(now.us, best_us)) continue;
            best_us = now.us;
            best = placement;
        }
        temperature *= cooling;
        weight *= growth;
    }
    return best;
}

void JudgedAnnealing::propose(const AdditiveModel& model, std::mt19937_64& random) {
    const auto items = static_cast<std::uint64_t>(model.items);
    const auto item_at = [&](std::size_t position) { return static_cast<std::size_t>(model.order[position]); };
    const std::size_t position = random() % items;
    const std::uint8_t device = draw_device(model, position, random);
    const std::uint64_t kind = random() % 8;
    if (kind < 4) {
        put(model, item_at(position), device);
    } else if (kind < 6) {
        const std::size_t other = random() % items;
        const std::uint8_t here = trial_[item_at(position)];
        put(model, item_at(position), trial_[item_at(other)]);
        put(model, item_at(other), here);
    } else {
        const std::size_t length = 2 + random() % std::max<std::uint64_t>(items / 4, 1);
        for (std::size_t k = position; k < std::min(position + length, static_cast<std::size_t>(items)); ++k) {
            put(model, item_at(k), device);
        }
    }
}

void JudgedAnnealing::put(const AdditiveModel& model, std::size_t item, std::uint8_t device) {
    if (model.supports(static_cast<std::int32_t>(item), device)) trial_[item] = device;
}

std::uint8_t JudgedAnnealing::draw_device(const AdditiveModel& model, std::size_t position,
                                          std::mt19937_64& random) const {
    const std::uint64_t drawn = random();
    if (drawn % 4 == 0) return static_cast<std::uint8_t>((drawn >> 8) % static_cast<std::uint64_t>(model.devices));
    const auto items = static_cast<std::uint64_t>(model.items);
    const std::uint64_t next = drawn % 4 == 1 ? position + 1 : position + items - 1;
    return trial_[static_cast<std::size_t>(model.order[next % items])];
}

}  // namespace ov_hsdag
