// The moves of refinement on the additive cost model (additive.hpp), and a descent that uses all of them.
//   - Passes after Fiduccia and Mattheyses ("A Linear-Time Heuristic for Improving Network Partitions", DAC 1982) make
//     the best move of any item that has not moved yet, even if it raises the cost, and then return to the best state.
//   - Flips move a connected part on one device to another as a whole, or swap the items of two devices.
//   - Runs move consecutive items of a topological order, beginning at a partition boundary, together.
//   - Slides move a part along the order: it takes items ahead of it, and leaves as many behind it to another device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "additive.hpp"
#include "budget.hpp"
#include "settings.hpp"

namespace ov_hsdag {

// Consecutive items of the order that move to one device.
struct Run {
    std::int32_t first = 0;   // position of the first item
    std::int32_t count = 0;   // number of items
    std::int32_t step = 1;    // 1 or -1: direction from `first`
    std::uint8_t device = 0;  // the new device
    double us = 0;            // the additive objective after the run, µs
};

// A part that moves along the order: it leaves items at one end, and takes as many behind its other end.
struct Slide {
    std::int32_t left = 0;   // position of the first item that it leaves
    std::int32_t taken = 0;  // position of the first item that it takes
    std::int32_t count = 0;  // number of items that it leaves, and that it takes
    std::int32_t step = 1;   // 1: towards the end of the order, -1: towards its begin
    std::uint8_t from = 0;   // the part's device, which the items that it takes get
    std::uint8_t to = 0;     // the device that the items that it leaves get
};

// Searches the neighbourhoods of a placement of one level's items. Keeps a reference to the model. Use one per thread.
class Neighbourhoods {
public:
    // longest_run: largest number of items in a run. sharpness: exponent of the power that approximates the maximum, in
    // doublings (AdditiveState::sharpen), with which a descent begins.
    Neighbourhoods(const AdditiveModel& model, bool throughput, const SearchSettings::Moves& settings,
                   std::int32_t longest_run, int sharpness);

    // Sets the placement from which the next search starts; see AdditiveState::reset.
    void reset(const std::vector<std::uint8_t>& placement, const std::vector<double>& surcharge_us,
               const std::vector<double>& reserved);
    [[nodiscard]] const std::vector<std::uint8_t>& placement() const { return state_.placement(); }
    // The additive objective of the placement, µs.
    [[nodiscard]] double us() const { return state_.us(); }

    // Makes passes until one does not improve the placement, at most `most`.
    void passes(int most, Budget& budget);
    // Makes passes, flips, runs and slides in turn until none of them improves the placement.
    void descend(Budget& budget);
    // The runs, including single items, after which the additive objective is better than `bound`, at most `most`, the
    // best first. The placement is not changed.
    [[nodiscard]] std::vector<Run> promising_runs(double bound, std::size_t most, Budget& budget);
    // Makes a run's moves in a placement of the model's items.
    void apply(const Run& run, std::vector<std::uint8_t>& placement) const;

private:
    // A move that can be undone.
    struct Step {
        std::int32_t item;
        std::uint8_t from;  // the device before the move
    };

    // A move in the queue. It is valid if its stamp is the latest one of the item.
    struct Entry {
        double change;  // of the score, when the entry was made
        std::int32_t item;
        std::uint32_t stamp;
        std::uint8_t device;
    };

    // The order of the heap: whether entry a comes after entry b.
    static bool later(const Entry& a, const Entry& b);
    // sorted: whether the queue is a heap already and stays one.
    void enqueue(std::int32_t item, bool sorted);
    std::int32_t enqueue_neighbours(std::int32_t item);
    // Makes one pass. Returns whether it improved the score.
    bool pass(Budget& budget);
    // Tries all flips, and keeps each that improves the score.
    void flips(Budget& budget);
    // Makes the run that improves the score most, if any does.
    void best_run(Budget& budget);
    // Makes the slide that improves the score most, if any does.
    void best_slide(Budget& budget);

    // Moves each of the items to target(its device) if the new device supports it; undoes this unless it improves the
    // score.
    template <typename Target>
    void try_flip(const std::vector<std::int32_t>& items, Target target, Budget& budget);
    template <typename Visit>
    void for_each_run(Budget& budget, Visit visit);
    template <typename Visit>
    void for_each_slide(Budget& budget, Visit visit);
    // The positions in the order where parts begin, and its end.
    [[nodiscard]] std::vector<std::int32_t> boundaries() const;
    // The stride over boundaries with which a search for runs or slides makes at most `run_moves` moves, but for a few
    // boundaries in any case. boundaries: their number. moves_each: number of moves at one boundary.
    [[nodiscard]] std::size_t stride(std::size_t boundaries, std::int64_t moves_each) const;
    // Moves an item to a device unless it is there or the device does not support it, and notes the move in trail_.
    void move_if_supported(std::int32_t item, std::uint8_t device);
    // Moves the item that a slide leaves as its number `k`, and the one that it takes.
    void slide_by_one(const Slide& slide, std::int32_t k);

    // Makes a move and notes it in trail_.
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
    std::vector<std::uint32_t> stamp_;   // [items] stamp of the valid entry
    std::vector<std::uint8_t> locked_;   // [items] 1: moved in this pass
    std::vector<std::int64_t> touched_;  // [items] number of the last move that updated the item
    std::int64_t touches_ = 0;           // number of moves that updated others
};

}  // namespace ov_hsdag
