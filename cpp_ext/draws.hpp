// Random draws that several searches share. They are the same with every standard library, whose distributions are not.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <random>

namespace ov_hsdag {

// Draws a uniform number in [0, 1).
inline double uniform(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

// Draws an index of a list of this size; the lower, the more often. Lists of placements begin with the best.
inline std::size_t draw_early(std::size_t size, std::mt19937_64& random) {
    return std::min(random() % size, random() % size);
}

// Draws the factor of the highest temperature of one run of annealing.
inline double draw_heat(std::mt19937_64& random) {
    constexpr double kHeats[] = {1.0, 0.3, 0.1, 3.0};
    return kHeats[random() % std::size(kHeats)];
}

// Whether a step of annealing is accepted that increases the logarithm of the cost by `grown`, by the rule of
// Metropolis. Steps that do not increase it always are, without a draw.
inline bool accepts(double grown, double temperature, std::mt19937_64& random) {
    return !(grown > 0 && uniform(random) >= std::exp(-grown / temperature));
}

}  // namespace ov_hsdag
