// Local refinement of placements.
//
// Moves are chosen by what adds up (additive.hpp) and accepted by the simulator:
//   - passes after Fiduccia and Mattheyses (1982): the best move of any item that has not moved yet, uphill too, then
//   back to
//     the best state on the way;
//   - runs: the consecutive items of a topological order that begin at a border between devices move together;
//   - flips: a connected part on one device moves to another as a whole; two devices swap what they have;
// first on coarse groups, then on legality groups, then from perturbed and recombined good placements.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "additive.hpp"
#include "graph.hpp"
#include "hetero.hpp"
#include "simulate.hpp"

namespace ov_hsdag {

struct RefineOptions {
    bool throughput = false;
    std::int64_t max_moves = 0;  // moves tried for the whole batch; 0: as many as the passes of each placement take
    double budget_ms = 0;        // wall time; 0: no limit. With it, results depend on the machine
    std::int32_t threads = 1;    // results do not depend on their number
    std::uint64_t seed = 0;
};

struct Refined {
    std::vector<std::uint8_t> placements;  // [batch, groups]
    std::vector<double> scores;            // [batch] µs by the simulator; infinite where infeasible
};

class Refiner {
public:
    // coarse: [groups] dense numbers of coarse groups.
    Refiner(const Graph& graph, Costs costs, SplitRule rule, std::span<const std::int32_t> coarse);

    // placements: [batch, groups]. No placement gets worse; one that is infeasible stays so where nothing feasible is
    // found.
    [[nodiscard]] Refined refine(std::span<const std::uint8_t> placements, const RefineOptions& options) const;

    [[nodiscard]] std::int32_t groups() const { return fine_.items; }
    [[nodiscard]] std::int32_t devices() const { return costs_.devices; }

private:
    friend class RefineWorker;

    const Graph& graph_;
    Costs costs_;
    SplitRule rule_;
    std::vector<std::int32_t> coarse_of_;  // [groups]
    AdditiveModel fine_;
    AdditiveModel coarse_;
};

}  // namespace ov_hsdag
