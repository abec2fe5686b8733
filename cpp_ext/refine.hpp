// Refines a batch of placements by local search: each on coarse groups, the promising ones on colocation groups, and
// then from perturbed and recombined good placements (iterated local search on islands). placement_search.hpp has the
// search from one placement.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "levels.hpp"
#include "settings.hpp"

namespace ov_hsdag {

struct Refined {
    std::vector<std::uint8_t> placements;  // [batch, groups]
    std::vector<double> scores;            // [batch] µs by the simulator; infinite if infeasible
};

// Refines placements, [batch, groups]. No placement gets worse; an infeasible one is returned unchanged if no feasible
// one is found.
[[nodiscard]] Refined refine(const SearchSpace& space, std::span<const std::uint8_t> placements,
                             const SearchOptions& options);

}  // namespace ov_hsdag
