// The refinement of a batch in three steps: coarse search of each distinct placement, fine search of the promising
// ones, and islands, which perturb the best. Equal placements of the batch are refined once.
#include "refine.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <limits>
#include <random>
#include <utility>

#include "budget.hpp"
#include "parallel.hpp"
#include "placement_search.hpp"

namespace ov_hsdag {
namespace {

// Whether one of the candidates has the placement.
bool has_placement(const std::vector<Candidate>& candidates, const Placement& placement) {
    return std::any_of(candidates.begin(), candidates.end(),
                       [&](const Candidate& candidate) { return candidate.placement == placement; });
}

// Refines one batch. Budgets are divided beforehand, so that the number of threads does not change the result.
class BatchRefinement {
public:
    BatchRefinement(const SearchSpace& space, std::span<const std::uint8_t> placements, const SearchOptions& options)
        : space_(space),
          options_(options),
          width_(static_cast<std::size_t>(space.groups())),
          most_elites_(static_cast<std::size_t>(options.settings.local.elites)),
          limited_(options.max_moves > 0 || options.budget_ms > 0),
          moves_(options.max_moves > 0 ? options.max_moves : std::numeric_limits<std::int64_t>::max() / 4) {
        if (options.budget_ms > 0) end_ms_ = now_ms(false) + options.budget_ms;
        read(placements);
    }

    // Refines all distinct candidates on coarse groups, with two fifths of the moves, and sorts distinct_ by score.
    void refine_coarse() {
        for_each(distinct_, limited_ ? moves_ / 5 * 2 : moves_,
                 [](PlacementSearch& search, Candidate& candidate, Budget& budget) {
                     search.refine_coarse(candidate, budget);
                 });
        std::stable_sort(distinct_.begin(), distinct_.end(),
                         [&](std::size_t a, std::size_t b) { return by_score(candidates_[a], candidates_[b]); });
    }

    // Refines all candidates on colocation groups, or only the best few if moves are limited.
    void refine_fine() {
        for (const std::size_t i : distinct_) {
            const bool repeated = std::any_of(promising_.begin(), promising_.end(), [&](std::size_t j) {
                return candidates_[j].placement == candidates_[i].placement;
            });
            if (!limited_ || (!repeated && promising_.size() < most_elites_)) promising_.push_back(i);
        }
        for_each(promising_, limited_ ? (moves_ - spent_) / 2 : moves_,
                 [](PlacementSearch& search, Candidate& candidate, Budget& budget) {
                     search.refine_fine(candidate, budget);
                 });
    }

    // Spends the rest of the budget on perturbations of the best candidates; does nothing without a limit, as it would
    // never end.
    void search_islands() {
        const std::int64_t left = moves_ - spent_;
        if (!limited_ || left <= 0 || promising_.empty()) return;
        // The number of islands influences the result, so that it does not depend on the number of threads.
        const auto count = static_cast<std::size_t>(options_.settings.local.islands);
        std::vector<std::vector<Candidate>> islands(count, elites());
        parallel_for(count, threads(), [&](std::size_t) {
            return [&](std::size_t island) {
                PlacementSearch search = searching(space_.levels_of(island % 2));
                std::mt19937_64 random(options_.seed * count + island);
                Budget budget(left / static_cast<std::int64_t>(count), end_ms_);
                while (budget.left()) search.improve_one(islands[island], random, budget);
            };
        });
        for (const std::vector<Candidate>& pool : islands) {
            for (const Candidate& candidate : pool) {
                Candidate& origin = candidates_[candidate.origin];
                if (better(candidate.score, origin.score)) origin = candidate;
            }
        }
    }

    // The refined placements and their scores. placements: as given, [batch, groups].
    [[nodiscard]] Refined result(std::span<const std::uint8_t> placements) const {
        Judge judge(space_.problem(), space_.levels.fine, options_.throughput);
        Refined result;
        result.placements.assign(placements.begin(), placements.end());
        result.scores.assign(candidates_.size(), std::numeric_limits<double>::infinity());
        for (std::size_t i = 0; i < candidates_.size(); ++i) {
            const Candidate& candidate = candidates_[twin_[i]];
            if (candidate.score >= kOverMemory) continue;  // still infeasible: the given placement is returned
            std::copy(candidate.placement.begin(), candidate.placement.end(),
                      result.placements.begin() + static_cast<std::ptrdiff_t>(i * width_));
            result.scores[i] = twin_[i] == i ? judge.exact_score(candidate.placement) : result.scores[twin_[i]];
        }
        return result;
    }

private:
    // Fills candidates_, twin_ and distinct_.
    void read(std::span<const std::uint8_t> placements) {
        const std::size_t batch = width_ == 0 ? 0 : placements.size() / width_;
        candidates_.resize(batch);
        twin_.resize(batch);
        for (std::size_t i = 0; i < batch; ++i) {
            const auto row = placements.subspan(i * width_, width_);
            candidates_[i].placement.assign(row.begin(), row.end());
            candidates_[i].origin = i;
            const auto same = std::find_if(distinct_.begin(), distinct_.end(), [&](std::size_t j) {
                return candidates_[j].placement == candidates_[i].placement;
            });
            twin_[i] = same == distinct_.end() ? i : *same;
            if (twin_[i] == i) distinct_.push_back(i);
        }
    }

    // Calls work(search, candidate, budget) for the chosen candidates; `moves` are divided equally among them.
    template <typename Work>
    void for_each(const std::vector<std::size_t>& chosen, std::int64_t moves, const Work& work) {
        parallel_for(chosen.size(), threads(), [&](std::size_t) {
            return [&, search = searching(space_.levels)](std::size_t i) mutable {
                const std::int64_t share = moves / static_cast<std::int64_t>(chosen.size());
                Budget budget(share, end_ms_);
                work(search, candidates_[chosen[i]], budget);
                spent_ += share - budget.moves();
            };
        });
    }

    // The best different candidates of those that were refined on both levels, the best first.
    [[nodiscard]] std::vector<Candidate> elites() const {
        std::vector<Candidate> sorted;
        for (const std::size_t i : promising_) sorted.push_back(candidates_[i]);
        std::stable_sort(sorted.begin(), sorted.end(), by_score);
        std::vector<Candidate> result;
        for (const Candidate& candidate : sorted) {
            if (result.size() < most_elites_ && !has_placement(result, candidate.placement))
                result.push_back(candidate);
        }
        return result;
    }

    // A search on the levels with the options of this refinement.
    [[nodiscard]] PlacementSearch searching(const Levels& levels) const {
        return {space_.problem(), levels, options_.throughput, options_.settings};
    }
    [[nodiscard]] std::size_t threads() const { return static_cast<std::size_t>(std::max(options_.threads, 1)); }

    const SearchSpace& space_;
    const SearchOptions& options_;
    std::size_t width_, most_elites_;
    bool limited_;                        // whether moves or time are limited
    std::int64_t moves_;                  // limit of moves for the whole batch
    double end_ms_ = Budget::kNoEnd;      // end by wall time (now_ms)
    std::atomic<std::int64_t> spent_{0};  // moves so far

    std::vector<Candidate> candidates_;   // [batch]
    std::vector<std::size_t> twin_;       // [batch] the first candidate with the same given placement
    std::vector<std::size_t> distinct_;   // candidates that are the first with their placement
    std::vector<std::size_t> promising_;  // the distinct candidates that are refined on both levels
};

}  // namespace

Refined refine(const SearchSpace& space, std::span<const std::uint8_t> placements, const SearchOptions& options) {
    const std::vector<std::uint8_t> ordered = space.ordered.ordered(placements);
    BatchRefinement batch(space, ordered, options);
    batch.refine_coarse();
    batch.refine_fine();
    batch.search_islands();
    Refined refined = batch.result(ordered);
    refined.placements = space.ordered.as_given<std::uint8_t>(refined.placements);
    return refined;
}

}  // namespace ov_hsdag
