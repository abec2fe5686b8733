// Scores placements by the simulator, and derives estimates for searches that use the additive cost model
// (additive.hpp). The estimates stand for what that model lacks: the cost of submodels, and the memory of live tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "additive.hpp"
#include "budget.hpp"
#include "levels.hpp"
#include "problem.hpp"
#include "simulate.hpp"

namespace ov_hsdag {

// Scores of at least this value are those of placements that exceed memory limits; less excess has a lower score.
inline constexpr double kOverMemory = 1e15;

// Keeps references to the problem and to the additive model of its colocation groups. Use one per thread.
class Judge {
public:
    Judge(const Problem& problem, const AdditiveModel& groups, bool throughput);

    // The simulator's score of a placement, [groups], in µs. It is rounded to ten digits, so that it does not depend on
    // the order of additions, and infinite if the placement is infeasible for another reason than memory. Updates the
    // estimates to the submodels and live tensors of this placement. budget: the cost of the simulation is subtracted.
    double score(const Placement& placement, Budget& budget);
    // The score without rounding; estimates are not updated.
    double exact_score(const Placement& placement);
    // The objective of a placement whether or not it keeps to the memory limits, µs, infinite if it is infeasible for
    // another reason; and how far it exceeds them, as shares of the limits, summed over devices.
    struct Softened {
        double us, excess;
    };
    // Estimates are not updated. budget: as for `score`.
    Softened softened(const Placement& placement, Budget& budget);
    // Limits the work of breaking a placement's cycles to a share of the default limit; above 1 for a higher limit.
    // Placements that take more are infeasible to this judge.
    void limit_work(double share);

    // The estimate of submodels in the additive cost model: µs that a device pays for each tensor that it receives,
    // times `share`, [devices]. own: weight of the number of submodels that each device has for a tensor, from 0 to 1;
    // the rest is that of all devices together. For latency they are the same.
    [[nodiscard]] std::vector<double> surcharge(double share, double own = 0.0) const;
    // The estimate of live tensors: bytes of memory on each device that are not available to weights, [devices].
    [[nodiscard]] const std::vector<double>& reserved() const { return estimates_.reserved; }

    // Both estimates, as they are after the placement that was scored last.
    struct Estimates {
        std::vector<double> surcharge, own_surcharge;  // [devices] µs for each received tensor: by all, by its own
        std::vector<double> reserved;                  // [devices] bytes
    };
    [[nodiscard]] const Estimates& estimates() const { return estimates_; }
    // Replaces the estimates by those of an earlier placement, from which a search goes on.
    void use_estimates(const Estimates& estimates) { estimates_ = estimates; }

private:
    // Simulates a placement, and subtracts the cost from the budget.
    const Evaluation& evaluate(const Placement& placement, Budget& budget);
    // The score of an evaluation without rounding, see `score`.
    [[nodiscard]] double score_of(const Evaluation& evaluation) const;
    void update_estimates(const Placement& placement, const Evaluation& evaluation);
    // The bytes beyond the memory limits as shares of the limits, summed over devices.
    [[nodiscard]] double excess_of_memory(const Evaluation& evaluation) const;

    const Problem& problem_;
    const AdditiveModel& model_;
    bool throughput_;
    std::int64_t most_work_;  // limit of the work of one split (Splitter::split)
    Simulator simulator_;
    Estimates estimates_;
};

}  // namespace ov_hsdag
