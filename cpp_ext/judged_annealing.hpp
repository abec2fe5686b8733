// Simulated annealing by the simulator's score, in little memory and of small problems for throughput. In little memory
// live tensors decide what fits on a device, and the additive cost model (anneal.hpp) does not know them. For
// throughput, independent searches by the additive model may agree on its local optimum. A step takes as long as tens
// to hundreds of moves on that model, so that large problems have few steps.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "additive.hpp"
#include "budget.hpp"
#include "judge.hpp"
#include "problem.hpp"
#include "settings.hpp"

namespace ov_hsdag {

// Anneals placements of colocation groups. It keeps references to the model and the judge. Use one per thread.
class JudgedAnnealing {
public:
    JudgedAnnealing(const AdditiveModel& model, Judge& judge, const SearchSettings::JudgedAnnealing& settings)
        : model_(model), judge_(judge), settings_(settings) {}

    // Anneals a placement, [groups], and returns the best placement within the memory limits that it met; the start if
    // it met none. heat: factor of the settings' highest temperature. moves: about the largest number of moves that the
    // run takes; with fewer than its sweeps need it cools faster. budget: the cost of the simulations is subtracted.
    [[nodiscard]] Placement run(const Placement& start, double heat, std::mt19937_64& random, std::int64_t moves,
                                Budget& budget);

private:
    // Changes `trial_` at random: one group, an exchange of two groups, or consecutive groups of the order.
    void propose(std::mt19937_64& random);
    // Gives a group another device if that supports it.
    void put(std::size_t item, std::uint8_t device);
    // Draws a device for a group: mostly one that a neighbour in the order has, else any.
    [[nodiscard]] std::uint8_t draw_device(std::size_t position, std::mt19937_64& random) const;

    const AdditiveModel& model_;
    Judge& judge_;
    SearchSettings::JudgedAnnealing settings_;
    Placement trial_;  // [groups] the proposed placement
};

}  // namespace ov_hsdag
