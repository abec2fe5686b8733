// Local refinement of a batch of placements: each on coarse groups, the promising ones on colocation groups, and then
// from perturbed and recombined good placements (iterated local search on islands). placement_search.hpp is the search
// from one placement.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "levels.hpp"
#include "orders.hpp"
#include "problem.hpp"

namespace ov_hsdag {

struct RefineOptions {
    bool throughput = false;
    std::int64_t max_moves = 0;   // moves tried for the whole batch; 0: as many as the passes of each placement take
    double budget_ms = 0;         // 0: no limit. With it, results depend on the machine
    bool processor_time = false;  // what `budget_ms` is of; otherwise wall time
    std::int32_t threads = 1;     // results do not depend on their number
    std::uint64_t seed = 0;
};

struct Refined {
    std::vector<std::uint8_t> placements;  // [batch, groups]
    std::vector<double> scores;            // [batch] µs by the simulator; infinite where infeasible
};

class Refiner {
public:
    // coarse_groups: [groups] dense numbers. Throws std::invalid_argument where there is not one for each group.
    Refiner(const Problem& problem, std::span<const std::int32_t> coarse_groups);

    // placements: [batch, groups]. No placement gets worse; one that is infeasible stays so where nothing feasible is
    // found.
    [[nodiscard]] Refined refine(std::span<const std::uint8_t> placements, const RefineOptions& options) const;

    [[nodiscard]] std::int32_t groups() const { return levels_.fine.items; }
    [[nodiscard]] std::int32_t devices() const { return levels_.fine.devices; }

private:
    OrderedProblem problem_;
    Levels levels_, other_levels_;  // of two orders
};

}  // namespace ov_hsdag
