// Random numbers that are the same with every standard library, whose distributions are not.
#pragma once

#include <random>

namespace ov_hsdag {

// Draws a uniform number in [0, 1).
inline double uniform(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

}  // namespace ov_hsdag
