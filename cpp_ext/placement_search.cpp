// The search from one placement. A descent on the additive cost model finds a placement, the simulator scores it,
// and runs of moves that the simulator accepts improve it further. `share` is the factor of the judge's estimate of
// submodels.
#include "placement_search.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "draws.hpp"
#include "perturb.hpp"

namespace ov_hsdag {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

double draw_share(std::mt19937_64& random) {
    constexpr double kShares[] = {1.0, 1.0, 0.5, 0.0, 1.5};
    return kShares[random() % std::size(kShares)];
}

PlacementSearch::PlacementSearch(const Problem& problem, const Levels& levels, bool throughput,
                                 const SearchSettings& settings)
    : levels_(levels),
      settings_(settings.local),
      judge_(problem, levels.fine, throughput),
      fine_(levels.fine, throughput, settings.moves, settings_.fine_run, settings.moves.fine_sharpness),
      coarse_(levels.coarse, throughput, settings.moves, levels.coarse.items, settings.moves.coarse_sharpness) {}

void PlacementSearch::refine_coarse(Candidate& best, Budget& budget) {
    best.score = judge_.score(best.placement, budget);
    Placement start = best.placement;
    levels_.fine.make_supported(start);
    offer(best, start, budget);
    Candidate shifted{start, best.score, best.origin};
    improve_runs(shifted, true, budget);
    descend_coarse(best, start, 1.0, budget);
    if (better(shifted.score, best.score)) best = shifted;
}

void PlacementSearch::refine_fine(Candidate& best, Budget& budget) {
    judge_.score(best.placement, budget);
    Placement start = best.placement;
    levels_.fine.make_supported(start);
    descend_fine(best, start, 1.0, budget);
    improve_runs(best, false, budget);
}

void PlacementSearch::perturb_and_refine(Candidate& best, const Placement& other, std::mt19937_64& random,
                                         Budget& budget) {
    const double share = draw_share(random);
    judge_.score(best.placement, budget);
    // Small coarse graphs hide many placements of colocation groups, so that one search in two is on these.
    if (random() % 2 == 0) {
        Placement start = best.placement;
        perturb(start, other, levels_.fine, random);
        if (random() % 3 == 0) {
            // The additive cost model misleads if submodels are expensive, so that the simulator decides from here on.
            Candidate found{start, judge_.score(start, budget), best.origin};
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
    // A search on colocation groups is worth its time if the coarse search came close.
    if (found.score < settings_.close * best.score || !std::isfinite(best.score)) {
        improve_fine(best, found.placement, share, budget);
    }
}

void PlacementSearch::improve_one(std::vector<Candidate>& population, std::mt19937_64& random, Budget& budget) {
    const std::size_t chosen = draw_early(population.size(), random);
    Candidate next = population[chosen];
    perturb_and_refine(next, population[random() % population.size()].placement, random, budget);
    if (!better(next.score, population[chosen].score)) return;
    population[chosen] = std::move(next);
    std::stable_sort(population.begin(), population.end(), by_score);
}

void PlacementSearch::offer(Candidate& best, const Placement& placement, Budget& budget) {
    if (placement == best.placement) return;
    const double score = judge_.score(placement, budget);
    if (better(score, best.score)) {
        best.score = score;
        best.placement = placement;
    }
}

Candidate PlacementSearch::descend_coarse(Candidate& best, const Placement& start, double share, Budget& budget) {
    coarse_.reset(levels_.coarsened(start), judge_.surcharge(share), judge_.reserved());
    coarse_.descend(budget);
    Candidate found{levels_.expanded(coarse_.placement()), kInfinity, best.origin};
    found.score = found.placement == best.placement ? best.score : judge_.score(found.placement, budget);
    if (better(found.score, best.score)) best = found;
    return found;
}

void PlacementSearch::descend_fine(Candidate& best, const Placement& start, double share, Budget& budget) {
    fine_.reset(start, judge_.surcharge(share), judge_.reserved());
    fine_.descend(budget);
    offer(best, fine_.placement(), budget);
}

void PlacementSearch::improve_fine(Candidate& best, const Placement& start, double share, Budget& budget) {
    Candidate found{start, kInfinity, best.origin};
    descend_fine(found, start, share, budget);
    if (found.score < settings_.close * best.score) improve_runs(found, false, budget);
    if (better(found.score, best.score)) best = found;
}

// Improves a candidate by runs and single items that the simulator accepts. The additive cost model does not know the
// submodels, but it is a lower bound: the most promising moves are tried until the bound shows that no other is better.
void PlacementSearch::improve_runs(Candidate& best, bool coarse, Budget& budget) {
    Neighbourhoods& level = coarse ? coarse_ : fine_;
    for (bool improved = true; improved && budget.left();) {
        improved = false;
        const Placement start = coarse ? levels_.coarsened(best.placement) : best.placement;
        if (coarse && levels_.expanded(start) != best.placement) return;
        level.reset(start, judge_.surcharge(0.0), judge_.reserved());
        // The additive cost model knows little about live tensors, so that more runs are tried if limits are exceeded.
        const auto tries = static_cast<std::size_t>(best.score < kOverMemory ? settings_.tries : 8 * settings_.tries);
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
