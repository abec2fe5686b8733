// Random changes from which refinement starts again (iterated local search).
#pragma once

#include <random>

#include "levels.hpp"

namespace ov_hsdag {

// Changes a placement by one of: a part of the order taken from another good placement, some parts of it on random
// devices, stages that follow each other, two devices swapped in a part. placement, other: [items] of the model. Items
// stay where their new device does not support them.
void perturb(Placement& placement, const Placement& other, const AdditiveModel& model, std::mt19937_64& random);

}  // namespace ov_hsdag
