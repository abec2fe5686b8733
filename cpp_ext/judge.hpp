// The simulator's verdict on placements, and what it tells a search that goes by what adds up (additive.hpp).
#pragma once

#include <cstdint>
#include <vector>

#include "additive.hpp"
#include "budget.hpp"
#include "levels.hpp"
#include "problem.hpp"
#include "simulate.hpp"

namespace ov_hsdag {

// Scores from here on are of placements that exceed memory limits, the less the better.
inline constexpr double kOverMemory = 1e15;

// It refers to the problem and to the additive model of its colocation groups. One per thread.
class Judge {
public:
    Judge(const Problem& problem, const AdditiveModel& groups, bool throughput);

    // The simulator's score, µs, rounded to ten digits, so that sums in another order are equal: infinite where
    // infeasible for other reasons than memory. After it, submodels and live tensors are accounted for as they are in
    // this placement. placement: [groups]
    double score(const Placement& placement, Budget& budget);
    // The same to the last bit, and nothing is accounted for.
    double exact_score(const Placement& placement);
    // The share of the most work by default that the cycles of one placement may take from here on, infinite for no
    // limit: placements that take more are infeasible to this judge.
    void limit_work(double share);

    // [devices] what stands for submodels in what adds up: what a device pays more for each tensor that it receives,
    // µs; `share` of it.
    [[nodiscard]] std::vector<double> surcharge(double share) const;
    // [devices] what stands for live tensors: bytes of memory that weights cannot have.
    [[nodiscard]] const std::vector<double>& reserved() const { return estimates_.reserved; }

    // Both, as they are after a placement.
    struct Estimates {
        std::vector<double> surcharge, reserved;
    };
    [[nodiscard]] const Estimates& estimates() const { return estimates_; }
    void go_by(const Estimates& estimates) { estimates_ = estimates; }

private:
    [[nodiscard]] double score_of(const Evaluation& evaluation) const;
    void update_estimates(const Placement& placement, const Evaluation& evaluation);
    [[nodiscard]] double excess_of_memory(const Evaluation& evaluation) const;

    const Problem& problem_;
    const AdditiveModel& model_;
    bool throughput_;
    std::int64_t most_work_;
    Simulator simulator_;
    Estimates estimates_;
};

}  // namespace ov_hsdag
