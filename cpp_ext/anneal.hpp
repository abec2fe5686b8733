// Simulated annealing on what adds up (additive.hpp): single moves, uphill too, the fewer the later (Kirkpatrick,
// Gelatt, Vecchi, "Optimization by simulated annealing", Science 220, 1983). Descents stop in the valley that they
// begin in; annealing leaves it.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "additive.hpp"
#include "budget.hpp"
#include "settings.hpp"

namespace ov_hsdag {

// Anneals placements of one level's items. It refers to the model. One per thread.
class Annealing {
public:
    Annealing(const AdditiveModel& model, bool throughput, const SearchSettings::Annealing& settings)
        : model_(model), throughput_(throughput), settings_(settings), state_(model, throughput) {}

    // Anneals a placement [items], from the settings' temperatures times `heat` on; see AdditiveState::reset for the
    // other two. Returns the best placement on the way by the smoothed objective.
    [[nodiscard]] std::vector<std::uint8_t> run(const std::vector<std::uint8_t>& placement, double heat,
                                                const std::vector<double>& surcharge_us,
                                                const std::vector<double>& reserved, std::mt19937_64& random,
                                                Budget& budget);

private:
    // A device for an item: most often that of a neighbour.
    [[nodiscard]] std::uint8_t propose(std::int32_t item, std::mt19937_64& random) const;
    // An item of the device that may go to another one in exchange, where a few tries find one: full devices, and
    // balanced ones, change by exchanges.
    [[nodiscard]] std::int32_t partner(std::uint8_t device, std::uint8_t to, std::mt19937_64& random) const;
    // By what share a move makes the objective larger.
    [[nodiscard]] double growth(double before, double after) const;

    const AdditiveModel& model_;
    bool throughput_;
    SearchSettings::Annealing settings_;
    AdditiveState state_;
};

}  // namespace ov_hsdag
