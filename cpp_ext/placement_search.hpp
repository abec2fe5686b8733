// The search from one placement: moves are chosen by what adds up (neighbourhoods.hpp) and accepted by the simulator.
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

inline bool by_score(const Candidate& a, const Candidate& b) { return a.score < b.score; }

// The share of what submodels cost that the moves of one cycle go by.
[[nodiscard]] double draw_share(std::mt19937_64& random);

// Searches never make a candidate worse. Results do not depend on what the object searched before. It refers to the
// problem and the levels. One per thread.
class PlacementSearch {
public:
    PlacementSearch(const Problem& problem, const Levels& levels, bool throughput, const SearchSettings& settings);

    // From the candidate itself and from what the supported devices leave of it, on coarse groups. Sets the score.
    void refine_coarse(Candidate& best, Budget& budget);
    // The same on colocation groups; the candidate has a score.
    void refine_fine(Candidate& best, Budget& budget);
    // From a perturbation of the candidate, which may take a part from another good placement, on a random level.
    void perturb_and_refine(Candidate& best, const Placement& other, std::mt19937_64& random, Budget& budget);
    // One candidate of a population, which is sorted by score, the best first, and stays so: it gives way to what is
    // better of what a perturbation of it leads to. The better a candidate, the more often it is the one.
    void improve_one(std::vector<Candidate>& population, std::mt19937_64& random, Budget& budget);

private:
    // Replaces the candidate where the placement is better.
    void offer(Candidate& best, const Placement& placement, Budget& budget);
    Candidate descend_coarse(Candidate& best, const Placement& start, double share, Budget& budget);
    void descend_fine(Candidate& best, const Placement& start, double share, Budget& budget);
    void improve_fine(Candidate& best, const Placement& start, double share, Budget& budget);
    void improve_runs(Candidate& best, bool coarse, Budget& budget);

    const Levels& levels_;
    SearchSettings::Local settings_;
    Judge judge_;
    Neighbourhoods fine_, coarse_;
};

}  // namespace ov_hsdag
