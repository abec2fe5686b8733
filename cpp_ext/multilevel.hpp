// Multilevel search: coarsen, place the coarsest graph, refine while uncoarsening; then again from what was found.
//
// Walshaw, "Multilevel refinement for combinatorial optimisation problems", Annals of Operations Research 131, 2004;
// further cycles keep apart what the placement has apart, as in Sanders and Schulz, "Engineering multilevel graph
// partitioning algorithms", ESA 2011, and what either of two placements has apart, as in their "Distributed
// evolutionary graph partitioning", ALENEX 2012.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "levels.hpp"
#include "settings.hpp"

namespace ov_hsdag {

// What time is spent on: contracting edges; partitions and the coarsest level; finer levels and local search.
enum class Phase { kCoarsen, kPlace, kRefine };

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
    std::array<double, 3> phase_ms{};   // [phases]
};

// One search that can go on. Placements are of the groups as given; the space stays alive as long.
class MultilevelSearch {
public:
    MultilevelSearch(const SearchSpace& space, const SearchOptions& options);
    ~MultilevelSearch();

    // Until the options' budget is spent. starts: [count, groups] placements that are tried as well.
    void begin(std::span<const std::uint8_t> starts);
    // So many moves more.
    void go_on(std::int64_t moves);
    // Tries placements [count, groups] of others.
    void offer(std::span<const std::uint8_t> placements);
    // Of the best placement, as it judges them.
    [[nodiscard]] double score() const;
    // Of the best placement that `begin` had before the first cycle: a single device, a partition, or a given start.
    [[nodiscard]] double start_score() const;
    [[nodiscard]] MultilevelResult result();

private:
    class Search;
    const SearchSpace& space_;
    std::unique_ptr<Search> search_;
};

// starts: [count, groups] placements that are tried as well. One of the two limits must be given.
[[nodiscard]] MultilevelResult multilevel_search(const SearchSpace& space, std::span<const std::uint8_t> starts,
                                                 const SearchOptions& options);

// [groups] dense numbers of the items that the coarse groups are contracted to: about `target`, or as many as cannot be
// contracted further.
[[nodiscard]] std::vector<std::int32_t> contracted(const SearchSpace& space, std::int32_t target);

}  // namespace ov_hsdag
