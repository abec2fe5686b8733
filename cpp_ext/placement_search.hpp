// The search from one placement. Moves are chosen by the additive cost model (neighbourhoods.hpp) and accepted by the
// simulator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "budget.hpp"
#include "judge.hpp"
#include "levels.hpp"
#include "neighbourhoods.hpp"
#include "problem.hpp"
#include "settings.hpp"

namespace ov_hsdag {

// A placement that a search improves.
struct Candidate {
    Placement placement;  // [groups]
    double score = std::numeric_limits<double>::infinity();
    std::size_t origin = 0;  // number of the placement from which it comes
};

// The order of candidates, the best first.
inline bool by_score(const Candidate& a, const Candidate& b) { return a.score < b.score; }

// Draws the factor of the judge's estimate of submodels (Judge::surcharge) for the moves of one cycle.
[[nodiscard]] double draw_share(std::mt19937_64& random);

// Local search from a candidate. Searches never make a candidate worse, and their results do not depend on earlier
// searches of the object. It keeps references to the problem and the levels. Use one per thread.
class PlacementSearch {
public:
    PlacementSearch(const Problem& problem, const Levels& levels, bool throughput, const SearchSettings& settings);

    // Searches on coarse groups, from the candidate itself and from the candidate with items on devices that support
    // them. Sets the score.
    void refine_coarse(Candidate& best, Budget& budget);
    // Searches on colocation groups; the candidate must have a score.
    void refine_fine(Candidate& best, Budget& budget);
    // Searches on a random level from a perturbation of the candidate, which may take a part of `other`.
    void perturb_and_refine(Candidate& best, const Placement& other, std::mt19937_64& random, Budget& budget);
    // Perturbs and refines one candidate of a population, and replaces it if the result is better. The population is
    // sorted by score, the best first, and stays so; better candidates are chosen more often.
    void improve_one(std::vector<Candidate>& population, std::mt19937_64& random, Budget& budget);

private:
    // Replaces the candidate if the placement is better.
    void offer(Candidate& best, const Placement& placement, Budget& budget);
    // Descends on coarse groups from a placement of groups. Replaces `best` if the result is better. Returns the result
    // in any case. share: see Judge::surcharge, also below.
    Candidate descend_coarse(Candidate& best, const Placement& start, double share, Budget& budget);
    // Descends on colocation groups, and replaces `best` if the result is better.
    void descend_fine(Candidate& best, const Placement& start, double share, Budget& budget);
    // Descends on colocation groups, improves a result that is close to `best` by runs, and replaces `best` if it is
    // better.
    void improve_fine(Candidate& best, const Placement& start, double share, Budget& budget);
    // coarse: whether runs are of coarse groups, otherwise of colocation groups.
    void improve_runs(Candidate& best, bool coarse, Budget& budget);

    const Levels& levels_;
    SearchSettings::Local settings_;
    Judge judge_;
    Neighbourhoods fine_, coarse_;
};

}  // namespace ov_hsdag
