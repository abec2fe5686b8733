// Independent multilevel searches ("descents") of one problem, which end when they agree. So their number of moves
// depends on how hard the problem is.
//
// The searches have different seeds and orders of nodes. They run in turns, each as long as all turns before it. With n
// equal independent searches, the expected gain of one more search is at most (second best score - best score) / n: if
// each of the n is left out in turn, only the absence of the best one costs anything, and it costs this difference.
// Two searches often share a local optimum, so that the third best score takes the place of the second. The searches
// agree when this gain is below `expected_regret` of the best score, and the best score has not improved by more than
// that in the last turn. On more than two devices, for throughput or in little memory, they do not agree on the score
// of their first cycles, unless each has tried as many moves as there are placements. If they do not agree,
// they exchange their placements and search on, for the last share `together` of `most_moves`. That
// number is multiplied by `times_in_doubt` if the expected gain is at least `large_regret` when they would exchange
// them. Large graphs have only `large_descents` searches with one turn. They exchange placements and have a second one
// if the expected gain is at least `large_regret`; `times_in_doubt` is the factor of their moves as well. Moves are
// counted, not time, so that a seed gives the same result on every machine and on any number of cores.
#pragma once

#include <cstdint>
#include <span>

#include "levels.hpp"
#include "multilevel.hpp"
#include "settings.hpp"

namespace ov_hsdag {

// Searches until the searches agree or their moves are spent.
//
// starts: [count, groups] placements that each search tries as well; may be empty. options: `max_moves` is the number
// of moves of each search in the first turn; search k has seed + k; `threads` is the largest number of threads. Returns
// the best placement, with the improvements and phases of the search that found it, the cycles of all searches, and the
// elites of all searches. Throws std::invalid_argument if `max_moves` is not positive, or a setting is out of range.
[[nodiscard]] MultilevelResult search_until_agreed(const SearchSpace& space, std::span<const std::uint8_t> starts,
                                                   const SearchOptions& options);

}  // namespace ov_hsdag
