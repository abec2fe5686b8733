// Placements whose parts wait for each other become ones whose parts do not.
#pragma once

#include "additive.hpp"
#include "levels.hpp"

namespace ov_hsdag {

// Parts are connected items on one device. Where parts wait for each other in a circle, HETERO splits them further, and
// on large graphs neither HETERO nor the simulator is done soon. The smallest of such parts join the device of a part
// that they exchange tensors with, until none wait for each other. placement: [items of the model]. Items stay where
// the other device does not support them; then some circles may be left.
void break_circles(const AdditiveModel& model, Placement& placement);

}  // namespace ov_hsdag
