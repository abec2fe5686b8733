// Multilevel search: coarsen, place the coarsest graph, refine while uncoarsening; then again from what was found.
//
// Walshaw, "Multilevel refinement for combinatorial optimisation problems", Annals of Operations Research 131, 2004;
// further cycles keep apart what the placement has apart, as in Sanders and Schulz, "Engineering multilevel graph
// partitioning algorithms", ESA 2011, and what either of two placements has apart, as in their "Distributed
// evolutionary graph partitioning", ALENEX 2012.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "additive.hpp"
#include "levels.hpp"
#include "orders.hpp"
#include "problem.hpp"

namespace ov_hsdag {

struct MultilevelOptions {
    bool throughput = false;
    std::int64_t max_moves = 0;   // moves tried; 0: no limit
    double budget_ms = 0;         // 0: no limit. With it, results depend on the machine
    bool processor_time = false;  // what `budget_ms` and the times of improvements are of; otherwise wall time
    std::uint64_t seed = 0;
    std::int32_t target = 160;  // items of the coarsest level
    // [groups] groups with other labels stay apart while coarsening; empty: all may merge.
    std::span<const std::uint64_t> labels;
};

struct Improvement {
    double ms;     // since the search began
    double score;  // µs
};

struct MultilevelResult {
    Placement placement;                // [groups] the best
    double score;                       // µs by the simulator; infinite where nothing feasible was found
    std::vector<Improvement> progress;  // each new best
    std::int64_t cycles = 0;            // uncoarsenings
    std::vector<Placement> elites;      // the best feasible ones that were found, the best first
    std::vector<double> elite_scores;   // [elites]
};

class Multilevel {
public:
    // coarse_groups: [groups] dense numbers, the coarse level of searches without a hierarchy (placement_search.hpp).
    // Throws std::invalid_argument where there is not one for each group.
    Multilevel(const Problem& problem, std::span<const std::int32_t> coarse_groups);

    // starts: [count, groups] placements that are tried as well. rating: how much the ends of each tensor between
    // groups belong together, in the order of the graph's output ports; empty: heavy edges. One of the two limits must
    // be given.
    [[nodiscard]] MultilevelResult search(std::span<const std::uint8_t> starts, std::span<const double> rating,
                                          const MultilevelOptions& options) const;

    // [groups] dense numbers of the items that the coarse groups are contracted to: about `target`, or as many as
    // cannot be contracted further.
    [[nodiscard]] std::vector<std::int32_t> contracted(std::int32_t target) const;

    [[nodiscard]] std::int32_t groups() const { return levels_.fine.items; }
    [[nodiscard]] std::int32_t devices() const { return levels_.fine.devices; }
    // Tensors between groups.
    [[nodiscard]] std::int32_t tensors() const { return levels_.fine.tensors(); }

private:
    OrderedProblem problem_;
    Levels levels_, other_levels_;  // of two orders
};

}  // namespace ov_hsdag
