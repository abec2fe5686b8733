// Removes cycles among the parts of a placement. Searches use it for placements that the simulator finds infeasible or
// too expensive to split.
#pragma once

#include "additive.hpp"
#include "levels.hpp"

namespace ov_hsdag {

// Parts are connected items on one device. HETERO splits parts that wait for each other in a cycle, which takes HETERO
// and the simulator long on large graphs. So the smallest parts of cycles move to the device of a part with which they
// exchange tensors, until there are no cycles. Cycles may remain where that device does not support the items.
//
// placement: device of each item of the model, [items]; changed in place.
void break_circles(const AdditiveModel& model, Placement& placement);

}  // namespace ov_hsdag
