// Multilevel search: coarsens the cost model, places the coarsest level, and refines the placement level by level
// (Walshaw, "Multilevel refinement for combinatorial optimisation problems", Annals of Operations Research 131, 2004).
// One such cycle follows another. The best placements so far, the pool, are the starts of further cycles.
//
// A further cycle never merges items that its start has on different devices (Sanders and Schulz, "Engineering
// multilevel graph partitioning algorithms", ESA 2011). A cycle that combines two placements of the pool never merges
// items that either of them has on different devices (by the same authors, "Distributed evolutionary graph
// partitioning", ALENEX 2012).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "levels.hpp"
#include "settings.hpp"

namespace ov_hsdag {

// The phases of which a search measures the time: contracting edges; partitions and the coarsest level; finer levels
// and local search.
enum class Phase { kCoarsen, kPlace, kRefine };

// A placement that is better than all before it.
struct Improvement {
    double ms;     // time since the search began
    double score;  // µs, see Judge::score
};

struct MultilevelResult {
    Placement placement;                // [groups] the best placement
    double score;                       // µs by the simulator; infinite if no feasible placement was found
    std::vector<Improvement> progress;  // each new best feasible placement, in the order of time
    std::int64_t cycles = 0;            // number of cycles
    std::vector<Placement> elites;      // the feasible placements of the pool, the best first
    std::vector<double> elite_scores;   // [elites] µs by the simulator
    std::array<double, 3> phase_ms{};   // [phases] by the number of the phase
};

// A multilevel search that can be continued. Call `begin` once, before the other functions. Placements have the
// caller's numbers of groups. It keeps a reference to the space.
class MultilevelSearch {
public:
    MultilevelSearch(const SearchSpace& space, const SearchOptions& options);
    ~MultilevelSearch();

    // Searches until the options' budget is spent. starts: [count, groups] placements that are tried as well; may be
    // empty.
    void begin(std::span<const std::uint8_t> starts);
    // Continues the search for a further number of moves.
    void go_on(std::int64_t moves);
    // Tries placements of other searches, [count, groups], and keeps those that are good enough for the pool.
    void offer(std::span<const std::uint8_t> placements);
    // The score of the best placement (Judge::score), µs; at least kOverMemory if it exceeds memory limits.
    [[nodiscard]] double score() const;
    // The score of the best placement after the first cycle, which draws nothing at random.
    [[nodiscard]] double first_cycle_score() const;
    // The results so far.
    [[nodiscard]] MultilevelResult result();

private:
    class Search;
    const SearchSpace& space_;
    std::unique_ptr<Search> search_;
};

// Runs one search from begin to end. starts: [count, groups] placements that are tried as well; may be empty. Throws
// std::invalid_argument if the options limit neither moves nor time, or a setting is out of range.
[[nodiscard]] MultilevelResult multilevel_search(const SearchSpace& space, std::span<const std::uint8_t> starts,
                                                 const SearchOptions& options);

// Contracts the coarse groups to about `target` items; more remain if no further edges can be contracted. Returns the
// item of each colocation group, dense numbers, [groups].
[[nodiscard]] std::vector<std::int32_t> contracted(const SearchSpace& space, std::int32_t target);

}  // namespace ov_hsdag
