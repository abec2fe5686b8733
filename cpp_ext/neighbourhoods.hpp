// The moves of refinement, on what adds up (additive.hpp), and a descent through them.
//   - passes after Fiduccia and Mattheyses ("A Linear-Time Heuristic for Improving Network Partitions", DAC 1982): the
//     best move of any item that has not moved yet, uphill too, then back to the best state on the way;
//   - flips: a connected part on one device moves to another as a whole; two devices swap what they have;
//   - runs: consecutive items of a topological order, from a partition boundary on, move together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "additive.hpp"
#include "budget.hpp"
#include "settings.hpp"

namespace ov_hsdag {

// Consecutive items of the order, from `first` in steps of 1 or -1, that move to one device.
struct Run {
    std::int32_t first = 0;
    std::int32_t count = 0;
    std::int32_t step = 1;
    std::uint8_t device = 0;
    double us = 0;  // the additive objective after it
};

// The neighbourhoods of a placement of one level's items. They refer to the model. One per thread.
class Neighbourhoods {
public:
    // longest_run: items that a run may have. sharpness: doublings of the power that stands for the maximum
    // (AdditiveState::sharpen) with which a descent begins.
    Neighbourhoods(const AdditiveModel& model, bool throughput, const SearchSettings::Moves& settings,
                   std::int32_t longest_run, int sharpness);

    // The placement from which the next search starts; see AdditiveState::reset.
    void reset(const std::vector<std::uint8_t>& placement, const std::vector<double>& surcharge_us,
               const std::vector<double>& reserved);
    [[nodiscard]] const std::vector<std::uint8_t>& placement() const { return state_.placement(); }
    // The additive objective of it, µs.
    [[nodiscard]] double us() const { return state_.us(); }

    // Passes until one does not improve the placement, at most so many.
    void passes(int most, Budget& budget);
    // Passes, flips and runs in turn until none of them improves the placement.
    void descend(Budget& budget);
    // Runs and single items after which the additive objective is better than `bound`: at most `most`, the best first.
    // The placement stays as it is.
    [[nodiscard]] std::vector<Run> promising_runs(double bound, std::size_t most, Budget& budget);
    // Makes a run's moves in a placement of the model's items.
    void apply(const Run& run, std::vector<std::uint8_t>& placement) const;

private:
    struct Step {
        std::int32_t item;
        std::uint8_t from;
    };

    // A move that waits for its turn. Of an item's entries the one with its stamp counts.
    struct Entry {
        double change;  // of the score, when the entry was made
        std::int32_t item;
        std::uint32_t stamp;
        std::uint8_t device;
    };

    static bool later(const Entry& a, const Entry& b);
    void enqueue(std::int32_t item, bool sorted);
    std::int32_t enqueue_neighbours(std::int32_t item);
    bool pass(Budget& budget);
    void flips(Budget& budget);
    void best_run(Budget& budget);

    template <typename Target>
    void try_flip(const std::vector<std::int32_t>& items, Target target, Budget& budget);
    template <typename Visit>
    void for_each_run(Budget& budget, Visit visit);

    void move(std::int32_t item, std::uint8_t device);
    void undo(std::size_t kept);

    const AdditiveModel& model_;
    SearchSettings::Moves settings_;
    bool throughput_;
    std::int32_t longest_run_;
    int sharpness_;
    AdditiveState state_;
    std::vector<Step> trail_;            // moves since the last point of return
    std::vector<Entry> queue_;           // heap, the least change first
    std::vector<std::uint32_t> stamp_;   // [items] of the entry that counts
    std::vector<std::uint8_t> locked_;   // [items] moved in this pass
    std::vector<std::int64_t> touched_;  // [items] last move that saw the item
    std::int64_t touches_ = 0;
};

}  // namespace ov_hsdag
