// The annealing loop. A step draws an item and a device, and sometimes a partner that goes the other way. It is
// accepted by the rule of Metropolis; the temperature falls in stages.
#include "anneal.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "draws.hpp"

namespace ov_hsdag {
namespace {

constexpr std::int32_t kNobody = -1;  // no partner for an exchange

// Costs of steps in units of a descent's moves, by their duration: trying a move, trying an exchange, making either.
constexpr std::int64_t kTrial = 3;
constexpr std::int64_t kExchangeTrial = 8;
constexpr std::int64_t kChange = 3;

}  // namespace

std::vector<std::uint8_t> Annealing::run(const std::vector<std::uint8_t>& placement, double heat,
                                         const std::vector<double>& surcharge_us, const std::vector<double>& reserved,
                                         std::mt19937_64& random, std::int64_t moves, Budget& budget,
                                         const Renew& renew) {
    state_.reset(placement.data(), surcharge_us, reserved);
    state_.sharpen(settings_.sharpness);
    const std::int64_t steps_of_stage = std::int64_t{settings_.sweeps} * model_.items / settings_.stages;
    const std::int64_t moves_of_stage = moves / settings_.stages;
    const double cooling = std::pow(settings_.coldest / (settings_.hottest * heat), 1.0 / settings_.stages);
    double temperature = settings_.hottest * heat;
    double best_us = state_.us();
    std::vector<std::uint8_t> best = placement;
    for (std::int32_t stage = 0; stage < settings_.stages && budget.left(); ++stage, temperature *= cooling) {
        double score = state_.score();
        const std::int64_t left_after_stage = budget.moves() - moves_of_stage;
        for (std::int64_t step = 0; step < steps_of_stage && budget.moves() > left_after_stage; ++step) {
            const auto item = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(model_.items));
            const std::uint8_t device = propose(item, random);
            if (device == state_.device(item) || !model_.supports(item, device)) continue;
            const std::uint8_t from = state_.device(item);
            const std::int32_t other = random() % 4 == 0 ? partner(device, from, random) : kNobody;
            double after = state_.score_after(item, device);
            if (other != kNobody) {
                state_.move(item, device);
                after = state_.score_after(other, from);
            }
            budget.spend(other == kNobody ? kTrial : kExchangeTrial);
            const double grown = growth(score, after);
            if (!accepts(grown, temperature, random)) {
                state_.move(item, from);
                continue;
            }
            state_.move(item, device);
            if (other != kNobody) state_.move(other, from);
            budget.spend(kChange);
            score = after;
            if (const double us = state_.us(); better(us, best_us)) {
                best_us = us;
                best = state_.placement();
            }
        }
        if (const std::optional<std::vector<double>> surcharge = renew ? renew(state_.placement()) : std::nullopt) {
            const std::vector<std::uint8_t> current = state_.placement();
            state_.reset(best.data(), *surcharge, reserved);
            best_us = state_.us();
            state_.reset(current.data(), *surcharge, reserved);
        }
        // Renews the scale of the powers, which is the work of the busiest device, and removes rounding errors of sums.
        state_.sharpen(settings_.sharpness);
    }
    return best;
}

std::int32_t Annealing::partner(std::uint8_t device, std::uint8_t to, std::mt19937_64& random) const {
    constexpr int kTries = 8;
    for (int tried = 0; tried < kTries; ++tried) {
        const auto item = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(model_.items));
        if (state_.device(item) == device && model_.supports(item, to)) return item;
    }
    return kNobody;
}

std::uint8_t Annealing::propose(std::int32_t item, std::mt19937_64& random) const {
    const std::int32_t produced = model_.produced_ptr[item + 1] - model_.produced_ptr[item];
    const std::int32_t received = model_.received_ptr[item + 1] - model_.received_ptr[item];
    const auto all = static_cast<std::uint64_t>(produced + received);
    const std::uint64_t drawn = random();
    // The low bits decide whether to draw any device, the high bits draw it.
    if (all == 0 || drawn % 16 == 0) {
        return static_cast<std::uint8_t>((drawn >> 8) % static_cast<std::uint64_t>(model_.devices));
    }
    const auto which = static_cast<std::int32_t>((drawn >> 8) % all);
    if (which >= produced) {
        return state_.device(model_.source[model_.received[model_.received_ptr[item] + which - produced]]);
    }
    const std::int32_t tensor = model_.produced[model_.produced_ptr[item] + which];
    const std::int32_t begin = model_.consumer_ptr[tensor];
    const auto readers = static_cast<std::uint64_t>(model_.consumer_ptr[tensor + 1] - begin);
    return state_.device(model_.consumer[begin + static_cast<std::int32_t>((drawn >> 36) % readers)]);
}

double Annealing::growth(double before, double after) const {
    if (!throughput_) return (after - before) / std::max(before, 1e-30);
    // The score is a sum of powers; the objective is about its root, so the logarithm is divided by the exponent.
    return std::log(after / std::max(before, 1e-300)) / std::exp2(settings_.sharpness);
}

}  // namespace ov_hsdag
