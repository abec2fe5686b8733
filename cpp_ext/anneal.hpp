// Simulated annealing on the additive cost model (additive.hpp) after Kirkpatrick, Gelatt, Vecchi, "Optimization by
// simulated annealing", Science 220, 1983. Single moves are accepted even if they raise the cost, less often as the
// temperature falls. So it can leave local minima in which descents stop.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <vector>

#include "additive.hpp"
#include "budget.hpp"
#include "settings.hpp"

namespace ov_hsdag {

// Anneals placements of the items of one level. It keeps a reference to the model. Use one per thread.
class Annealing {
public:
    Annealing(const AdditiveModel& model, bool throughput, const SearchSettings::Annealing& settings)
        : model_(model), throughput_(throughput), settings_(settings), state_(model, throughput) {}

    // Returns new surcharges for the rest of a run, [devices] µs, or none to keep those that it has. The surcharges of
    // the start stand for the submodels of the start, and a run leads away from it.
    using Renew = std::function<std::optional<std::vector<double>>(const std::vector<std::uint8_t>& placement)>;

    // Anneals a placement, [items], and returns the best placement by the smoothed objective.
    //
    // heat: factor of the settings' temperatures. surcharge_us, reserved: see AdditiveState::reset. moves: about the
    // largest number of moves that the run takes; with fewer than its sweeps need it cools faster. budget: moves that
    // are tried are subtracted. renew: called with the placement at the end of each stage.
    [[nodiscard]] std::vector<std::uint8_t> run(const std::vector<std::uint8_t>& placement, double heat,
                                                const std::vector<double>& surcharge_us,
                                                const std::vector<double>& reserved, std::mt19937_64& random,
                                                std::int64_t moves, Budget& budget, const Renew& renew = {});

private:
    // Draws a device for an item, most often that of a neighbour.
    [[nodiscard]] std::uint8_t propose(std::int32_t item, std::mt19937_64& random) const;
    // Draws an item of `device` that could go to `to` in exchange; negative if a few tries find none. Full or balanced
    // devices can only change by exchanges.
    [[nodiscard]] std::int32_t partner(std::uint8_t device, std::uint8_t to, std::mt19937_64& random) const;
    // The relative increase of the objective by a move, from the scores before and after it.
    [[nodiscard]] double growth(double before, double after) const;

    const AdditiveModel& model_;
    bool throughput_;
    SearchSettings::Annealing settings_;
    AdditiveState state_;
};

}  // namespace ov_hsdag
