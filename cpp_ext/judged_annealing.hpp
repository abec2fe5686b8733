// Simulated annealing by the simulator's score, in little memory. Live tensors decide there what fits on a device, and
// the additive cost model (anneal.hpp) does not know them. A step takes as long as tens to hundreds of moves on that
// model, so that most runs move items of a coarse level.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "additive.hpp"
#include "budget.hpp"
#include "hierarchy.hpp"
#include "judge.hpp"
#include "problem.hpp"
#include "settings.hpp"

namespace ov_hsdag {

// Anneals placements. It keeps a reference to the judge. Use one per thread.
class JudgedAnnealing {
public:
    JudgedAnnealing(Judge& judge, const SearchSettings::JudgedAnnealing& settings)
        : judge_(judge), settings_(settings) {}

    // Anneals a placement, [groups], by moves of the hierarchy's coarsest items, and returns the best placement within
    // the memory limits that it met; the start if it met none. heat: factor of the settings' highest temperature.
    // moves: about the largest number of moves that the run takes; with fewer than its sweeps need it cools faster.
    // budget: the cost of the simulations is subtracted.
    [[nodiscard]] Placement run(const Hierarchy& hierarchy, const Placement& start, double heat,
                                std::mt19937_64& random, std::int64_t moves, Budget& budget);

private:
    // Changes `trial_` at random: one item, an exchange of two items, or consecutive items of the model's order.
    void propose(const AdditiveModel& model, std::mt19937_64& random);
    // Gives an item another device if that supports it.
    void put(const AdditiveModel& model, std::size_t item, std::uint8_t device);
    // Draws a device for an item: mostly one that a neighbour in the order has, else any.
    [[nodiscard]] std::uint8_t draw_device(const AdditiveModel& model, std::size_t position,
                                           std::mt19937_64& random) const;

    Judge& judge_;
    SearchSettings::JudgedAnnealing settings_;
    Placement trial_;  // [items of the coarsest level] the proposed placement
};

}  // namespace ov_hsdag
