// Independent searches of one problem, which end when they agree: how long it takes follows from the problem.
//
// Searches with seeds and orders of their own take turns of equal numbers of moves, each turn as long as all before it.
// Of n equal independent searches the expected gain of one more is at most (second best - best) / n: leaving out each
// of the n in turn, only the best one's absence costs anything, and costs that much. They end when this is below
// `expected_regret` of the best, and the best has moved by no more in the last turn. For throughput on more than two
// devices they do not agree on what they all began with. Where they never agree, they exchange what they have found for
// the last of `most_moves`. Moves are counted, not time: a seed finds the same on
// every machine, on any number of cores.
#pragma once

#include <cstdint>
#include <span>

#include "levels.hpp"
#include "multilevel.hpp"
#include "settings.hpp"

namespace ov_hsdag {

// options: `max_moves` of the first turn of each search; seeds from `seed` on; so many threads at most. starts: [count,
// groups] placements that each search tries as well. Improvements and phases are those of the search that found the
// best; cycles of all.
[[nodiscard]] MultilevelResult search_until_agreed(const SearchSpace& space, std::span<const std::uint8_t> starts,
                                                   const SearchOptions& options);

}  // namespace ov_hsdag
