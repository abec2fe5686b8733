// Changes placements at random, so that refinement can start again (iterated local search). The changes are larger than
// the moves of refinement, which would otherwise return to the same local minimum.
#pragma once

#include <random>

#include "levels.hpp"

namespace ov_hsdag {

// Changes a placement in one of these ways: a part of the order is taken from another good placement; some parts of the
// order go to random devices; the order is divided into consecutive stages, one for each device; two devices are
// swapped in a part. Items keep their device if the new one does not support them.
//
// placement: changed in place. other: the other placement. Both are [items of the model].
void perturb(Placement& placement, const Placement& other, const AdditiveModel& model, std::mt19937_64& random);

}  // namespace ov_hsdag
