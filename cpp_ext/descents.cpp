// The searches and the test whether they agree. Each search is a MultilevelSearch with its own seed; parallel_for runs
// one turn of all of them.
#include "descents.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "budget.hpp"
#include "judge.hpp"
#include "parallel.hpp"

namespace ov_hsdag {
namespace {

// The independent searches, sorted by score after each turn.
class Descents {
public:
    Descents(const SearchSpace& space, const SearchOptions& options)
        : settings_(options.settings.effort), threads_(static_cast<std::size_t>(std::max(options.threads, 1))) {
        const std::int32_t count = large(space, settings_) ? settings_.large_descents : settings_.descents;
        for (std::int32_t k = 0; k < count; ++k) {
            SearchOptions seeded = options;
            seeded.seed += static_cast<std::uint64_t>(k);
            searches_.push_back(std::make_unique<MultilevelSearch>(space, seeded));
        }
    }

    // Runs the first turn. starts: [count, groups].
    void begin(std::span<const std::uint8_t> starts) {
        for_each([&](MultilevelSearch& search) { search.begin(starts); });
        sort();
    }

    // Runs a further turn, in which each search has `moves` moves.
    void go_on(std::int64_t moves) {
        for_each([&](MultilevelSearch& search) { search.go_on(moves); });
        sort();
    }

    // Offers the elites of all searches to each search, so that it can combine them with its own, and runs a further
    // turn, in which each search has `moves` moves.
    void go_on_together(std::int64_t moves) {
        std::vector<Placement> kept;
        for (const auto& search : searches_) {
            const MultilevelResult result = search->result();
            kept.insert(kept.end(), result.elites.begin(), result.elites.end());
        }
        for (const auto& search : searches_) {
            for (const Placement& placement : kept) search->offer(placement);
        }
        sort();
        go_on(moves);
    }

    // Whether there is only one search, which has none to agree with.
    [[nodiscard]] bool alone() const { return searches_.size() < 2; }
    // Whether a problem has so many groups that it has fewer searches, of one turn or two.
    [[nodiscard]] static bool large(const SearchSpace& space, const SearchSettings::Effort& effort) {
        return space.groups() > effort.most_groups;
    }
    // The best score of all searches, µs.
    [[nodiscard]] double best() const { return searches_.front()->score(); }

    // Whether the best score is no better than after the first cycle. If so, equal scores of searches do not count as
    // agreement, as the first cycles of all searches are alike.
    [[nodiscard]] bool at_first_cycle() const {
        double first = std::numeric_limits<double>::infinity();
        for (const auto& search : searches_) first = std::min(first, search->first_cycle_score());
        return best() >= (1.0 - settings_.expected_regret) * first;
    }

    // The expected gain of one more search, as a share of the best score: the distance of the third best score, divided
    // by the number of searches. Two of four searches often share a local optimum. Of two searches, the second best
    // counts. The gain is 1 if the search that counts exceeds the memory limits.
    [[nodiscard]] double expected_regret() const {
        constexpr std::size_t kThird = 2;
        const double score = searches_[std::min(kThird, searches_.size() - 1)]->score();
        if (score >= kOverMemory) return 1.0;
        return (score / best() - 1.0) / static_cast<double>(searches_.size());
    }

    // The result of the best search, with the cycles and elites of all.
    [[nodiscard]] MultilevelResult result() const {
        MultilevelResult result = searches_.front()->result();
        for (std::size_t k = 1; k < searches_.size(); ++k) {
            const MultilevelResult other = searches_[k]->result();
            result.cycles += other.cycles;
            for (std::size_t e = 0; e < other.elites.size(); ++e) add(result, other.elites[e], other.elite_scores[e]);
        }
        return result;
    }

private:
    // Calls work(search) for each search, on several threads.
    template <typename Work>
    void for_each(const Work& work) {
        parallel_for(searches_.size(), threads_,
                     [&](std::size_t) { return [&](std::size_t k) { work(*searches_[k]); }; });
    }

    // Sorts the searches by score, the best first; searches with equal scores keep their order.
    void sort() {
        std::stable_sort(searches_.begin(), searches_.end(),
                         [](const auto& a, const auto& b) { return better(a->score(), b->score()); });
    }

    // Inserts an elite into the sorted list, behind those that are no worse, unless the list has it already.
    static void add(MultilevelResult& result, const Placement& elite, double score) {
        if (std::find(result.elites.begin(), result.elites.end(), elite) != result.elites.end()) return;
        const auto place = std::upper_bound(result.elite_scores.begin(), result.elite_scores.end(), score);
        result.elites.insert(result.elites.begin() + (place - result.elite_scores.begin()), elite);
        result.elite_scores.insert(place, score);
    }

    SearchSettings::Effort settings_;
    std::size_t threads_;
    std::vector<std::unique_ptr<MultilevelSearch>> searches_;  // the best first
};

}  // namespace

MultilevelResult search_until_agreed(const SearchSpace& space, std::span<const std::uint8_t> starts,
                                     const SearchOptions& options) {
    if (options.max_moves <= 0) throw std::invalid_argument("expected a number of moves");
    options.settings.check();
    const SearchSettings::Effort& effort = options.settings.effort;
    Descents descents(space, options);
    descents.begin(starts);
    std::int64_t most = effort.most_moves;
    // Number of moves after which searches that disagree exchange placements.
    const auto apart = [&] { return static_cast<std::int64_t>((1.0 - effort.together) * static_cast<double>(most)); };
    // Agreement on the result of the first cycle counts with two devices, and for latency where each device can hold
    // the model: it is often the optimum then, and searches find the optimum soon. It also counts for a problem that
    // has no more placements than a search has moved to.
    const bool hard = space.devices() > 2 && (options.throughput || space.little_memory);
    const double placements = std::pow(space.devices(), space.groups());
    std::int64_t spent = options.max_moves;
    const std::int64_t most_in_doubt = effort.most_moves * effort.times_in_doubt;
    if (Descents::large(space, effort)) {
        // One turn may have gone into infeasible placements, and both searches still have a simple placement.
        const bool too_short = (hard || space.lacks_operations) && descents.at_first_cycle();
        const bool in_doubt = too_short || descents.expected_regret() >= effort.large_regret;
        if (!descents.alone() && in_doubt && effort.times_in_doubt > 1) {
            descents.go_on_together(spent * (effort.times_in_doubt - 1));
        }
        // While nothing is feasible, a further turn often helps, as the best placement exceeds memory limits by little.
        for (std::int32_t k = 0; k < effort.turns_over_memory && descents.best() >= kOverMemory; ++k) {
            descents.go_on_together(spent);
        }
        return descents.result();
    }
    bool agreed = descents.alone();
    while (!agreed && spent < apart()) {
        const double before = descents.best();
        const std::int64_t turn = std::min(spent, apart() - spent);
        descents.go_on(turn);
        spent += turn;
        const double moved = std::isfinite(before) ? before / descents.best() - 1.0 : std::isfinite(descents.best());
        const double regret = descents.expected_regret();
        agreed = moved <= effort.expected_regret && regret <= effort.expected_regret &&
                 !(hard && placements > static_cast<double>(spent) && descents.at_first_cycle());
        if (spent >= apart() && regret >= effort.large_regret) most = most_in_doubt;
    }
    if (!agreed && spent < most) {
        descents.go_on_together(most - spent);
    }
    return descents.result();
}

}  // namespace ov_hsdag
