#include "placement_search.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "perturb.hpp"

namespace ov_hsdag {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Doublings of the power that stands for the maximum at first (AdditiveState::sharpen): what is close to the optimum is
// searched with more.
constexpr int kCoarseSharpness = 2;
constexpr int kFineSharpness = 4;
// Items that a run of colocation groups may have; one of coarse groups may have all.
constexpr std::int32_t kFineRun = 256;
// A coarse placement this close to the best is worth a finer search.
constexpr double kClose = 1.03;
// Runs that the simulator tries before it gives up on improving a placement by one.
constexpr std::size_t kTries = 12;

}  // namespace

PlacementSearch::PlacementSearch(const Problem& problem, const Levels& levels, bool throughput)
    : problem_(problem),
      levels_(levels),
      throughput_(throughput),
      simulator_(problem),
      fine_(levels.fine, throughput, kFineRun, kFineSharpness),
      coarse_(levels.coarse, throughput, levels.coarse.items, kCoarseSharpness),
      surcharge_(static_cast<std::size_t>(problem.devices), 0.0),
      reserved_(surcharge_.size(), 0.0) {}

void PlacementSearch::refine_coarse(Candidate& best, Budget& budget) {
    best.score = judge(best.placement, budget);
    Placement start = best.placement;
    levels_.make_supported(start);
    offer(best, start, budget);
    Candidate shifted{start, best.score, best.origin};
    improve_runs(shifted, true, budget);
    descend_coarse(best, start, 1.0, budget);
    if (better(shifted.score, best.score)) best = shifted;
}

void PlacementSearch::refine_fine(Candidate& best, Budget& budget) {
    judge(best.placement, budget);
    Placement start = best.placement;
    levels_.make_supported(start);
    descend_fine(best, start, 1.0, budget);
    improve_runs(best, false, budget);
}

void PlacementSearch::perturb_and_refine(Candidate& best, const Placement& other, std::mt19937_64& random,
                                         Budget& budget) {
    constexpr double kShares[] = {1.0, 1.0, 0.5, 0.0, 1.5};
    const double share = kShares[random() % std::size(kShares)];
    judge(best.placement, budget);
    // Small coarse graphs hide much of what colocation groups can do.
    if (random() % 2 == 0) {
        Placement start = best.placement;
        perturb(start, other, levels_.fine, random);
        if (random() % 3 == 0) {
            // What adds up misleads where submodels weigh much: by the simulator from here on.
            Candidate found{start, judge(start, budget), best.origin};
            improve_runs(found, false, budget);
            if (better(found.score, best.score)) best = found;
        } else {
            improve_fine(best, start, share, budget);
        }
        return;
    }
    Placement start = levels_.coarsened(best.placement);
    perturb(start, levels_.coarsened(other), levels_.coarse, random);
    const Candidate found = descend_coarse(best, levels_.expanded(start), share, budget);
    // Colocation groups are worth the time where the coarse search came close.
    if (found.score < kClose * best.score || !std::isfinite(best.score)) {
        improve_fine(best, found.placement, share, budget);
    }
}

double PlacementSearch::judge(const Placement& placement, Budget& budget) {
    const Evaluation& evaluation = simulator_.evaluate(placement.data());
    // Scattered placements close cycles, and HETERO's rule walks the graph once more for each cut that it adds: up to
    // thirty times the time of a simulation.
    budget.spend(static_cast<std::int64_t>(placement.size()) * (16 + evaluation.rounds) / 16);
    update_estimates(placement, evaluation);
    if ((evaluation.infeasible & ~kMemory) != 0) return kInfinity;
    if (evaluation.infeasible != 0) return kOverMemory * (1.0 + excess_of_memory(evaluation));
    return throughput_ ? evaluation.period_us : evaluation.latency_us;
}

double PlacementSearch::excess_of_memory(const Evaluation& evaluation) const {
    double excess = 0;
    for (std::size_t d = 0; d < reserved_.size(); ++d) {
        const auto limit = static_cast<double>(problem_.memory_limit[d]);
        if (limit < 0) continue;
        excess += std::max(0.0, static_cast<double>(evaluation.memory_bytes[d]) - limit) / (limit + 1.0);
    }
    return excess;
}

// Submodels cost what the simulator says; spread over the tensors that cross, they guide the next moves.
void PlacementSearch::update_estimates(const Placement& placement, const Evaluation& evaluation) {
    const AdditiveModel& model = levels_.fine;
    const std::vector<double>& submodel_us = problem_.submodel_us;
    const auto devices = static_cast<std::size_t>(model.devices);
    double additive = 0;
    double received = 0;
    std::vector<double> weight(devices, 0.0);
    for (std::size_t g = 0; g < placement.size(); ++g) {
        additive += model.item_us[g * devices + placement[g]];
        weight[placement[g]] += static_cast<double>(model.weight[g * devices + placement[g]]);
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
            additive += model.fusion_penalty_us[static_cast<std::size_t>(t) * devices + to];
            received += submodel_us[to];
        }
    }
    const double share = received > 0 ? (evaluation.latency_us - additive) / received : 1.0;
    for (std::size_t d = 0; d < devices; ++d) {
        surcharge_[d] = std::clamp(share, 0.25, 1.25) * submodel_us[d];
        reserved_[d] = std::max(0.0, static_cast<double>(evaluation.memory_bytes[d]) - weight[d]);
        // Where the estimate let through too much, more is held back.
        if ((evaluation.infeasible & kMemory) != 0) reserved_[d] *= 1.05;
    }
}

std::vector<double> PlacementSearch::surcharge(double share) const {
    std::vector<double> result = surcharge_;
    for (double& us : result) us *= share;
    return result;
}

void PlacementSearch::offer(Candidate& best, const Placement& placement, Budget& budget) {
    if (placement == best.placement) return;
    const double score = judge(placement, budget);
    if (better(score, best.score)) {
        best.score = score;
        best.placement = placement;
    }
}

Candidate PlacementSearch::descend_coarse(Candidate& best, const Placement& start, double share, Budget& budget) {
    coarse_.reset(levels_.coarsened(start), surcharge(share), reserved_);
    coarse_.descend(budget);
    Candidate found{levels_.expanded(coarse_.placement()), kInfinity, best.origin};
    found.score = found.placement == best.placement ? best.score : judge(found.placement, budget);
    if (better(found.score, best.score)) best = found;
    return found;
}

void PlacementSearch::descend_fine(Candidate& best, const Placement& start, double share, Budget& budget) {
    fine_.reset(start, surcharge(share), reserved_);
    fine_.descend(budget);
    offer(best, fine_.placement(), budget);
}

void PlacementSearch::improve_fine(Candidate& best, const Placement& start, double share, Budget& budget) {
    Candidate found{start, kInfinity, best.origin};
    descend_fine(found, start, share, budget);
    if (found.score < kClose * best.score) improve_runs(found, false, budget);
    if (better(found.score, best.score)) best = found;
}

// Runs and single items by the simulator. How many submodels a move makes cannot be seen from what adds up, but what
// adds up is a lower bound: the most promising are tried until the bound says that no other is better.
void PlacementSearch::improve_runs(Candidate& best, bool coarse, Budget& budget) {
    Neighbourhoods& level = coarse ? coarse_ : fine_;
    for (bool improved = true; improved && budget.left();) {
        improved = false;
        const Placement start = coarse ? levels_.coarsened(best.placement) : best.placement;
        if (coarse && levels_.expanded(start) != best.placement) return;
        level.reset(start, surcharge(0.0), reserved_);
        // What adds up says little about the memory of live tensors: limits are met by trying more.
        const std::size_t tries = best.score < kOverMemory ? kTries : 8 * kTries;
        for (const Run& run : level.promising_runs(best.score, tries, budget)) {
            if (!better(run.us, best.score) || !budget.left()) break;
            Placement moved = start;
            level.apply(run, moved);
            const double before = best.score;
            offer(best, coarse ? levels_.expanded(moved) : moved, budget);
            improved = improved || better(best.score, before);
        }
    }
}

}  // namespace ov_hsdag
