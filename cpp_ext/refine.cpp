#include "refine.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>
#include <thread>
#include <tuple>

#include "groups.hpp"

namespace ov_hsdag {
namespace {

using Clock = std::chrono::steady_clock;
using Placement = std::vector<std::uint8_t>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Scores from here on are of placements that exceed memory limits, the less the better.
constexpr double kOverMemory = 1e15;
// Smaller differences are rounding.
constexpr double kRelative = 1e-9;
// Rounds of passes, flips and runs on one level.
constexpr int kRounds = 12;
// Doublings of the power that stands for the maximum (AdditiveState::sharpen), at first and in the end.
constexpr int kSoft = 2;
constexpr int kSharp = 5;
// A coarse placement this close to the best is worth a finer search.
constexpr double kClose = 1.03;
// A pass ends after so many moves without a new best.
constexpr std::size_t kPatience = 40;
// Moves that one search for runs may try, and items that a run on the finer level may have.
constexpr std::int64_t kRunMoves = 20'000;
constexpr std::int32_t kFineRun = 256;
// Runs that the simulator tries before it gives up on improving a placement by one.
constexpr std::size_t kTries = 12;
// Searches from perturbed placements share the budget equally; their number is part of the result.
constexpr std::int32_t kIslands = 2;
constexpr std::size_t kElites = 6;

bool better(double a, double b) { return a < b - kRelative * std::abs(b) || (std::isfinite(a) && !std::isfinite(b)); }

struct Budget {
    std::int64_t moves;
    Clock::time_point end;

    void spend(std::int64_t count) { moves -= count; }
    [[nodiscard]] bool left() const { return moves > 0 && (end == Clock::time_point::max() || Clock::now() < end); }
};

struct Candidate {
    Placement placement;  // [groups]
    double score = kInfinity;
    std::size_t origin = 0;
};

std::vector<std::int32_t> item_of_nodes(const std::vector<std::int32_t>& group, std::span<const std::int32_t> coarse) {
    std::vector<std::int32_t> item(group.size());
    for (std::size_t node = 0; node < group.size(); ++node) {
        if (static_cast<std::size_t>(group[node]) >= coarse.size()) {
            throw std::invalid_argument("expected one coarse group per group");
        }
        item[node] = coarse[static_cast<std::size_t>(group[node])];
    }
    return item;
}

}  // namespace

// What one thread needs.
class RefineWorker {
public:
    RefineWorker(const Refiner& refiner, bool throughput)
        : refiner_(refiner),
          throughput_(throughput),
          simulator_(refiner.graph_, refiner.costs_, refiner.rule_),
          fine_(refiner.fine_, throughput),
          coarse_(refiner.coarse_, throughput),
          surcharge_(static_cast<std::size_t>(refiner.costs_.devices), 0.0),
          reserved_(surcharge_.size(), 0.0) {}

    // The simulator's score (infinite where infeasible for other reasons than memory), after which submodels and live
    // tensors are accounted for as they are in this placement.
    double judge(const Placement& placement, Budget& budget) {
        budget.spend(static_cast<std::int64_t>(placement.size()));
        const Evaluation& evaluation = simulator_.evaluate(placement.data());
        calibrate(placement, evaluation);
        if ((evaluation.infeasible & ~kMemory) != 0) return kInfinity;
        if (evaluation.infeasible != 0) {
            double excess = 0;
            for (std::size_t d = 0; d < reserved_.size(); ++d) {
                const auto limit = static_cast<double>(refiner_.costs_.memory_limit[d]);
                if (limit < 0) continue;
                excess += std::max(0.0, static_cast<double>(evaluation.memory_bytes[d]) - limit) / (limit + 1.0);
            }
            return kOverMemory * (1.0 + excess);
        }
        return throughput_ ? evaluation.period_us : evaluation.latency_us;
    }

    void offer(Candidate& best, const Placement& placement, Budget& budget) {
        if (placement == best.placement) return;
        const double score = judge(placement, budget);
        if (better(score, best.score)) {
            best.score = score;
            best.placement = placement;
        }
    }

    // From the placement itself, with everything where it is supported; on coarse groups.
    void refine_coarse(Candidate& best, Budget& budget) {
        best.score = judge(best.placement, budget);
        Placement start = best.placement;
        make_supported(start);
        offer(best, start, budget);
        Candidate shifted{start, best.score, best.origin};
        exact_runs(shifted, true, budget);
        descend_coarse(best, start, 1.0, budget);
        if (better(shifted.score, best.score)) best = shifted;
    }

    void refine_fine(Candidate& best, Budget& budget) {
        judge(best.placement, budget);
        Placement start = best.placement;
        make_supported(start);
        descend_fine(best, start, 1.0, budget);
        exact_runs(best, false, budget);
    }

    void perturb_and_refine(Candidate& best, const Placement& other, std::mt19937_64& random, Budget& budget) {
        constexpr double kShares[] = {1.0, 1.0, 0.5, 0.0, 1.5};
        const double share = kShares[random() % std::size(kShares)];
        judge(best.placement, budget);
        // Small coarse graphs hide much of what legality groups can do.
        if (random() % 2 == 0) {
            Placement start = best.placement;
            perturb(start, other, refiner_.fine_, random);
            if (random() % 3 == 0) {
                // What adds up misleads where submodels weigh much: by the simulator from here on.
                Candidate found{start, judge(start, budget), best.origin};
                exact_runs(found, false, budget);
                if (better(found.score, best.score)) best = found;
            } else {
                improve_fine(best, start, share, budget);
            }
            return;
        }
        Placement start = coarse_placement(best.placement);
        perturb(start, coarse_placement(other), refiner_.coarse_, random);
        const Candidate found = descend_coarse(best, expand(start), share, budget);
        // Legality groups are worth the time where the coarse search came close.
        if (found.score < kClose * best.score || !std::isfinite(best.score)) {
            improve_fine(best, found.placement, share, budget);
        }
    }

private:
    void improve_fine(Candidate& best, const Placement& start, double share, Budget& budget) {
        Candidate found{start, kInfinity, best.origin};
        descend_fine(found, start, share, budget);
        if (found.score < kClose * best.score) exact_runs(found, false, budget);
        if (better(found.score, best.score)) best = found;
    }

    Candidate descend_coarse(Candidate& best, const Placement& start, double share, Budget& budget) {
        const Placement coarse = coarse_placement(start);
        coarse_.reset(coarse.data(), scaled(share), reserved_);
        descend(coarse_, refiner_.coarse_, refiner_.coarse_.items, kSoft, budget);
        Candidate found{expand(coarse_.placement()), kInfinity, best.origin};
        found.score = found.placement == best.placement ? best.score : judge(found.placement, budget);
        if (better(found.score, best.score)) best = found;
        return found;
    }

    void descend_fine(Candidate& best, const Placement& start, double share, Budget& budget) {
        fine_.reset(start.data(), scaled(share), reserved_);
        descend(fine_, refiner_.fine_, kFineRun, kSharp - 1, budget);
        offer(best, fine_.placement(), budget);
    }

    std::vector<double> scaled(double share) const {
        std::vector<double> result = surcharge_;
        for (double& us : result) us *= share;
        return result;
    }

    // Submodels cost what the simulator says; spread over the tensors that cross, they guide the next moves.
    void calibrate(const Placement& placement, const Evaluation& evaluation) {
        const AdditiveModel& model = refiner_.fine_;
        const auto devices = static_cast<std::size_t>(model.devices);
        double additive = 0;
        double received = 0;
        std::vector<double> weight(devices, 0.0);
        for (std::size_t g = 0; g < placement.size(); ++g) {
            additive += model.item_us[g * devices + placement[g]];
            weight[placement[g]] += static_cast<double>(model.weight[g]);
        }
        for (std::int32_t t = 0; t < model.tensors(); ++t) {
            const std::uint8_t from = placement[model.source[t]];
            std::uint64_t sent = std::uint64_t{1} << from;
            for (std::int32_t c = model.consumer_ptr[t]; c < model.consumer_ptr[t + 1]; ++c) {
                const std::uint8_t to = placement[model.consumer[c]];
                if (((sent >> to) & 1) != 0) continue;
                sent |= std::uint64_t{1} << to;
                const std::size_t link = from * devices + to;
                additive += model.transfer_us[link] + model.transfer_us_per_byte[link] * model.bytes[t];
                additive += model.torn_us[static_cast<std::size_t>(t) * devices + to];
                received += refiner_.costs_.submodel_us[to];
            }
        }
        const std::vector<double>& submodel_us = refiner_.costs_.submodel_us;
        const double share = received > 0 ? (evaluation.latency_us - additive) / received : 1.0;
        for (std::size_t d = 0; d < devices; ++d) {
            surcharge_[d] = std::clamp(share, 0.25, 1.25) * submodel_us[d];
            reserved_[d] = std::max(0.0, static_cast<double>(evaluation.memory_bytes[d]) - weight[d]);
            // Where the estimate let through too much, more is held back.
            if ((evaluation.infeasible & kMemory) != 0) reserved_[d] *= 1.05;
        }
    }

    void make_supported(Placement& placement) const {
        const AdditiveModel& model = refiner_.fine_;
        const auto devices = static_cast<std::size_t>(model.devices);
        for (std::size_t g = 0; g < placement.size(); ++g) {
            if (model.supported[g * devices + placement[g]] != 0) continue;
            double least = kInfinity;
            for (std::size_t d = 0; d < devices; ++d) {
                if (model.supported[g * devices + d] == 0 || model.item_us[g * devices + d] >= least) continue;
                least = model.item_us[g * devices + d];
                placement[g] = static_cast<std::uint8_t>(d);
            }
        }
    }

    // Each coarse group where most of its time is spent, among the devices that support it.
    Placement coarse_placement(const Placement& placement) const {
        const AdditiveModel& coarse = refiner_.coarse_;
        const auto devices = static_cast<std::size_t>(coarse.devices);
        std::vector<double> votes(static_cast<std::size_t>(coarse.items) * devices, 0.0);
        for (std::size_t g = 0; g < placement.size(); ++g) {
            const double us = refiner_.fine_.item_us[g * devices + placement[g]];
            votes[static_cast<std::size_t>(refiner_.coarse_of_[g]) * devices + placement[g]] += us + 1e-3;
        }
        Placement result(static_cast<std::size_t>(coarse.items), 0);
        for (std::size_t c = 0; c < result.size(); ++c) {
            double most = -1;
            for (std::size_t d = 0; d < devices; ++d) {
                if (coarse.supported[c * devices + d] == 0 || votes[c * devices + d] <= most) continue;
                most = votes[c * devices + d];
                result[c] = static_cast<std::uint8_t>(d);
            }
        }
        return result;
    }

    Placement expand(const Placement& coarse) const {
        Placement result(refiner_.coarse_of_.size());
        for (std::size_t g = 0; g < result.size(); ++g) result[g] = coarse[refiner_.coarse_of_[g]];
        return result;
    }

    void descend(AdditiveState& state, const AdditiveModel& model, std::int32_t longest_run, int sharpness,
                 Budget& budget) {
        for (int round = 0; round < kRounds && budget.left(); ++round) {
            state.sharpen(sharpness);
            const double before = state.score();
            while (pass(state, budget)) {
            }
            flips(state, model, budget);
            runs(state, model, longest_run, budget);
            if (better(state.score(), before)) continue;
            if (!throughput_ || sharpness == kSharp) break;
            ++sharpness;
        }
    }

    bool pass(AdditiveState& state, Budget& budget) {
        const double before = state.score();
        double best = before;
        std::size_t kept = 0;
        trail_.clear();
        state.begin_pass();
        budget.spend(static_cast<std::int64_t>(state.placement().size()));
        while (trail_.size() - kept <= kPatience && budget.left()) {
            const AdditiveState::Move move = state.best_move();
            if (move.item < 0) break;
            trail_.push_back({move.item, state.device(move.item)});
            budget.spend(2 + state.move_in_pass(move.item, move.device) +
                         static_cast<std::int64_t>(state.placement().size()) / 32);
            if (better(state.score(), best)) {
                best = state.score();
                kept = trail_.size();
            }
        }
        undo(state, kept);
        return better(best, before);
    }

    // Takes back the moves of the trail beyond the first `kept`.
    void undo(AdditiveState& state, std::size_t kept) {
        while (trail_.size() > kept) {
            state.move(trail_.back().item, trail_.back().from);
            trail_.pop_back();
        }
    }

    bool supported(const AdditiveModel& model, std::int32_t item, std::size_t device) const {
        return model.supported[static_cast<std::size_t>(item) * static_cast<std::size_t>(model.devices) + device] != 0;
    }

    void flips(AdditiveState& state, const AdditiveModel& model, Budget& budget) {
        Groups parts(model.items);
        for (std::int32_t t = 0; t < model.tensors(); ++t) {
            for (std::int32_t c = model.consumer_ptr[t]; c < model.consumer_ptr[t + 1]; ++c) {
                if (state.device(model.source[t]) == state.device(model.consumer[c])) {
                    parts.merge(model.source[t], model.consumer[c]);
                }
            }
        }
        const std::vector<std::int32_t> part = parts.numbers();
        const std::int32_t count = model.items == 0 ? 0 : *std::max_element(part.begin(), part.end()) + 1;
        std::vector<std::vector<std::int32_t>> members(static_cast<std::size_t>(count));
        for (std::int32_t item = 0; item < model.items; ++item) members[part[item]].push_back(item);
        budget.spend(model.items);
        for (const std::vector<std::int32_t>& items : members) {
            for (std::size_t d = 0; d < static_cast<std::size_t>(model.devices); ++d) {
                try_flip(state, model, items, [d](std::uint8_t) { return static_cast<std::uint8_t>(d); }, budget);
            }
        }
        std::vector<std::int32_t> all(static_cast<std::size_t>(model.items));
        std::iota(all.begin(), all.end(), 0);
        for (std::uint8_t a = 0; a < model.devices; ++a) {
            try_flip(state, model, all, [a](std::uint8_t) { return a; }, budget);
            for (std::uint8_t b = a + 1; b < model.devices; ++b) {
                const auto swap = [a, b](std::uint8_t d) { return d == a ? b : d == b ? a : d; };
                try_flip(state, model, all, swap, budget);
            }
        }
    }

    template <typename Target>
    void try_flip(AdditiveState& state, const AdditiveModel& model, const std::vector<std::int32_t>& items,
                  Target target, Budget& budget) {
        if (!budget.left()) return;
        const double before = state.score();
        trail_.clear();
        for (const std::int32_t item : items) {
            const std::uint8_t to = target(state.device(item));
            if (to == state.device(item)) continue;
            if (!supported(model, item, to)) continue;
            trail_.push_back({item, state.device(item)});
            state.move(item, to);
        }
        budget.spend(static_cast<std::int64_t>(2 * trail_.size()));
        if (!trail_.empty() && !better(state.score(), before)) undo(state, 0);
    }

    // Consecutive items of the order, from `first` in steps of 1 or -1.
    struct Run {
        std::int32_t first = 0;
        std::int32_t count = 0;
        std::int32_t step = 1;
        std::uint8_t device = 0;
        double us = 0;
    };

    void move_run(AdditiveState& state, const AdditiveModel& model, const Run& run) const {
        for (std::int32_t i = 0, k = run.first; i < run.count; ++i, k += run.step) {
            if (supported(model, model.order[k], run.device)) state.move(model.order[k], run.device);
        }
    }

    // visit(run) with the state after each run that begins at a border between devices or at an end of the order.
    template <typename Visit>
    void for_each_run(AdditiveState& state, const AdditiveModel& model, std::int32_t longest, Budget& budget,
                      Visit visit) {
        const std::int32_t n = model.items;
        std::vector<std::int32_t> borders;
        for (std::int32_t k = 0; k <= n; ++k) {
            if (k == 0 || k == n || state.device(model.order[k - 1]) != state.device(model.order[k]))
                borders.push_back(k);
        }
        const std::int64_t moves_each = 2 * std::int64_t{std::min(longest, n)} * model.devices;
        const auto most =
            static_cast<std::size_t>(std::max<std::int64_t>(kRunMoves / std::max<std::int64_t>(moves_each, 1), 4));
        const std::size_t stride = (borders.size() + most - 1) / most;
        for (std::size_t b = 0; b < borders.size() && budget.left(); b += stride) {
            for (const std::int32_t step : {1, -1}) {
                for (std::uint8_t d = 0; d < model.devices; ++d) {
                    Run run{step > 0 ? borders[b] : borders[b] - 1, 0, step, d, 0};
                    trail_.clear();
                    for (std::int32_t k = run.first; k >= 0 && k < n && run.count < longest; k += step) {
                        const std::int32_t item = model.order[k];
                        ++run.count;
                        if (state.device(item) == d) {
                            if (trail_.empty()) break;
                            continue;
                        }
                        if (!supported(model, item, d)) continue;
                        trail_.push_back({item, state.device(item)});
                        state.move(item, d);
                        visit(run);
                    }
                    budget.spend(static_cast<std::int64_t>(2 * trail_.size()));
                    undo(state, 0);
                }
            }
        }
    }

    void runs(AdditiveState& state, const AdditiveModel& model, std::int32_t longest, Budget& budget) {
        double best = state.score();
        Run chosen;
        for_each_run(state, model, longest, budget, [&](const Run& run) {
            if (!better(state.score(), best)) return;
            best = state.score();
            chosen = run;
        });
        move_run(state, model, chosen);
    }

    // Runs and single items by the simulator. How many submodels a move makes cannot be seen from what adds up, but
    // what adds up is a lower bound: the most promising are tried until the bound says that no other is better.
    void exact_runs(Candidate& best, bool coarse, Budget& budget) {
        const AdditiveModel& model = coarse ? refiner_.coarse_ : refiner_.fine_;
        AdditiveState& state = coarse ? coarse_ : fine_;
        std::vector<Run> found;
        for (bool improved = true; improved && budget.left();) {
            improved = false;
            const Placement start = coarse ? coarse_placement(best.placement) : best.placement;
            if (coarse && expand(start) != best.placement) return;
            state.reset(start.data(), scaled(0.0), reserved_);
            found.clear();
            const auto note = [&](const Run& run) {
                if (!better(state.us(), best.score)) return;
                found.push_back(run);
                found.back().us = state.us();
            };
            for_each_run(state, model, coarse ? model.items : kFineRun, budget, note);
            for (std::int32_t k = 0; k < model.items; ++k) {
                const std::int32_t item = model.order[k];
                const std::uint8_t from = state.device(item);
                for (std::uint8_t d = 0; d < model.devices; ++d) {
                    if (d == from || !supported(model, item, d)) continue;
                    state.move(item, d);
                    note({k, 1, 1, d, 0});
                    state.move(item, from);
                }
            }
            budget.spend(std::int64_t{2} * model.items * (model.devices - 1));
            // What adds up says little about the memory of live tensors: limits are met by trying more.
            const std::size_t tries = std::min(found.size(), best.score < kOverMemory ? kTries : 8 * kTries);
            std::partial_sort(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(tries), found.end(),
                              [](const Run& a, const Run& b) {
                                  return std::tie(a.us, a.first, a.count, a.step, a.device) <
                                         std::tie(b.us, b.first, b.count, b.step, b.device);
                              });
            found.resize(tries);
            for (const Run& run : found) {
                if (!better(run.us, best.score) || !budget.left()) break;
                Placement moved = start;
                for (std::int32_t i = 0, k = run.first; i < run.count; ++i, k += run.step) {
                    if (supported(model, model.order[k], run.device)) moved[model.order[k]] = run.device;
                }
                const double before = best.score;
                offer(best, coarse ? expand(moved) : moved, budget);
                improved = improved || better(best.score, before);
            }
        }
    }

    // placement, other: [items] of the model.
    void perturb(Placement& placement, const Placement& other, const AdditiveModel& model,
                 std::mt19937_64& random) const {
        const auto n = static_cast<std::uint64_t>(model.items);
        const auto devices = static_cast<std::uint64_t>(model.devices);
        const auto put = [&](std::size_t k, std::uint8_t device) {
            const std::int32_t item = model.order[k];
            if (supported(model, item, device)) placement[item] = device;
        };
        const std::uint64_t kind = random() % 5;
        if (kind == 0 && placement != other) {
            // One part of the order from each of two good placements.
            const std::uint64_t a = random() % n;
            const std::uint64_t b = a + 1 + random() % n;
            for (std::uint64_t k = a; k < b; ++k) put(k % n, other[model.order[k % n]]);
        } else if (kind <= 2) {
            const std::uint64_t times = 1 + random() % 3;
            for (std::uint64_t i = 0; i < times; ++i) {
                const std::uint64_t begin = random() % n;
                const std::uint64_t length = 1 + random() % (1 + n / (2 + random() % 8));
                const auto device = static_cast<std::uint8_t>(random() % devices);
                for (std::uint64_t k = begin; k < std::min(begin + length, n); ++k) put(k, device);
            }
        } else if (kind == 3) {
            // Stages: each device takes over from the one before it.
            std::vector<std::uint64_t> cuts;
            for (std::uint64_t d = 1; d < std::min<std::uint64_t>(devices, 8); ++d) cuts.push_back(random() % n);
            std::sort(cuts.begin(), cuts.end());
            std::vector<std::uint8_t> turn(static_cast<std::size_t>(devices));
            std::iota(turn.begin(), turn.end(), std::uint8_t{0});
            for (std::size_t i = turn.size(); i > 1; --i) std::swap(turn[i - 1], turn[random() % i]);
            for (std::uint64_t k = 0; k < n; ++k) {
                put(k, turn[static_cast<std::size_t>(std::upper_bound(cuts.begin(), cuts.end(), k) - cuts.begin())]);
            }
        } else {
            const auto a = static_cast<std::uint8_t>(random() % devices);
            const auto b = static_cast<std::uint8_t>(random() % devices);
            const std::uint64_t begin = random() % n;
            const std::uint64_t end = begin + 1 + random() % (n - begin);
            for (std::uint64_t k = begin; k < end; ++k) {
                const std::uint8_t device = placement[model.order[k]];
                put(k, device == a ? b : device == b ? a : device);
            }
        }
    }

    struct Step {
        std::int32_t item;
        std::uint8_t from;
    };

    const Refiner& refiner_;
    bool throughput_;
    Simulator simulator_;
    AdditiveState fine_, coarse_;
    std::vector<double> surcharge_, reserved_;  // [devices]
    std::vector<Step> trail_;
};

Refiner::Refiner(const Graph& graph, Costs costs, SplitRule rule, std::span<const std::int32_t> coarse)
    : graph_(graph),
      costs_(std::move(costs)),
      rule_(rule),
      coarse_of_(coarse.begin(), coarse.end()),
      fine_(graph, costs_, costs_.group),
      coarse_(graph, costs_, item_of_nodes(costs_.group, coarse)) {
    if (static_cast<std::size_t>(fine_.items) != coarse_of_.size()) {
        throw std::invalid_argument("expected one coarse group per group");
    }
}

Refined Refiner::refine(std::span<const std::uint8_t> placements, const RefineOptions& options) const {
    const auto width = static_cast<std::size_t>(fine_.items);
    const std::size_t batch = width == 0 ? 0 : placements.size() / width;
    Refined result;
    result.placements.assign(placements.begin(), placements.end());
    result.scores.assign(batch, kInfinity);
    if (batch == 0) return result;

    const auto end = options.budget_ms > 0
                         ? Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                              std::chrono::duration<double, std::milli>(options.budget_ms))
                         : Clock::time_point::max();
    constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max() / 4;
    const std::int64_t total = options.max_moves > 0 ? options.max_moves : kNoLimit;

    std::vector<Candidate> candidates(batch);
    std::vector<std::size_t> twin(batch);  // the first candidate with the same placement
    std::vector<std::size_t> distinct;
    for (std::size_t i = 0; i < batch; ++i) {
        candidates[i].placement.assign(placements.begin() + static_cast<std::ptrdiff_t>(i * width),
                                       placements.begin() + static_cast<std::ptrdiff_t>((i + 1) * width));
        candidates[i].origin = i;
        twin[i] = i;
        for (const std::size_t j : distinct) {
            if (candidates[j].placement == candidates[i].placement) {
                twin[i] = j;
                break;
            }
        }
        if (twin[i] == i) distinct.push_back(i);
    }

    const auto on_threads = [&](std::size_t items, const auto& work) {
        std::atomic<std::size_t> next{0};
        const auto loop = [&] {
            RefineWorker worker(*this, options.throughput);
            for (std::size_t i = next++; i < items; i = next++) work(worker, i);
        };
        std::vector<std::jthread> pool;
        for (std::size_t i = 1; i < std::min(static_cast<std::size_t>(std::max(options.threads, 1)), items); ++i) {
            pool.emplace_back(loop);
        }
        loop();
    };

    // Budgets are divided beforehand, so that threads cannot change what is found.
    std::atomic<std::int64_t> spent{0};
    const auto for_each = [&](const std::vector<std::size_t>& chosen, std::int64_t budget, const auto& work) {
        on_threads(chosen.size(), [&](RefineWorker& worker, std::size_t i) {
            const std::int64_t share = budget / static_cast<std::int64_t>(chosen.size());
            Budget left{share, end};
            work(worker, candidates[chosen[i]], left);
            spent += share - left.moves;
        });
    };
    const bool limited = options.max_moves > 0 || options.budget_ms > 0;
    for_each(distinct, limited ? total / 5 * 2 : total, [](RefineWorker& worker, Candidate& candidate, Budget& budget) {
        worker.refine_coarse(candidate, budget);
    });
    std::stable_sort(distinct.begin(), distinct.end(),
                     [&](std::size_t a, std::size_t b) { return candidates[a].score < candidates[b].score; });
    std::vector<std::size_t> promising;
    for (const std::size_t i : distinct) {
        const bool known = std::any_of(promising.begin(), promising.end(), [&](std::size_t j) {
            return candidates[j].placement == candidates[i].placement;
        });
        if (!limited || (!known && promising.size() < kElites)) promising.push_back(i);
    }
    for_each(promising, limited ? (total - spent) / 2 : total,
             [](RefineWorker& worker, Candidate& candidate, Budget& budget) { worker.refine_fine(candidate, budget); });

    const std::int64_t left = total - spent;
    if (limited && left > 0) {
        std::vector<Candidate> elites;
        for (const std::size_t i : promising) elites.push_back(candidates[i]);
        std::stable_sort(elites.begin(), elites.end(),
                         [](const Candidate& a, const Candidate& b) { return a.score < b.score; });
        std::vector<Candidate> kept;
        for (const Candidate& candidate : elites) {
            const bool known = std::any_of(kept.begin(), kept.end(), [&](const Candidate& other) {
                return other.placement == candidate.placement;
            });
            if (!known && kept.size() < kElites) kept.push_back(candidate);
        }
        std::vector<std::vector<Candidate>> islands(kIslands, kept);
        on_threads(kIslands, [&](RefineWorker& worker, std::size_t island) {
            std::vector<Candidate>& pool = islands[island];
            std::mt19937_64 random(options.seed * kIslands + island);
            Budget budget{left / kIslands, end};
            while (budget.left()) {
                // The better a placement, the more often it is the start.
                const std::size_t chosen = std::min(random() % pool.size(), random() % pool.size());
                Candidate next = pool[chosen];
                worker.perturb_and_refine(next, pool[random() % pool.size()].placement, random, budget);
                if (better(next.score, pool[chosen].score)) {
                    pool[chosen] = next;
                    std::stable_sort(pool.begin(), pool.end(),
                                     [](const Candidate& a, const Candidate& b) { return a.score < b.score; });
                }
            }
        });
        for (const std::vector<Candidate>& pool : islands) {
            for (const Candidate& candidate : pool) {
                if (better(candidate.score, candidates[candidate.origin].score))
                    candidates[candidate.origin] = candidate;
            }
        }
    }
    for (std::size_t i = 0; i < batch; ++i) {
        const Candidate& candidate = candidates[twin[i]];
        if (candidate.score >= kOverMemory) continue;  // still infeasible: as it was given
        std::copy(candidate.placement.begin(), candidate.placement.end(),
                  result.placements.begin() + static_cast<std::ptrdiff_t>(i * width));
        result.scores[i] = candidate.score;
    }
    return result;
}

}  // namespace ov_hsdag
