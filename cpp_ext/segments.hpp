// Placements in segments, from which searches start where no device runs the whole model.
#pragma once

#include <vector>

#include "additive.hpp"
#include "levels.hpp"

namespace ov_hsdag {

// Places the items in segments: sets of items that run one after the other, each on one device and none waiting for a
// later one. Segments are as few as a greedy choice makes them, because each one becomes a submodel or several.
//
// There are two placements for each device, the same one only once. In the first, the device begins, and each segment
// has all items that can run on its device when it begins; then follows the device that can run the most. In the
// second, every other segment is the device's and has all that it can run. The segments of other devices have only what
// the device does not support, and what has to run before that.
//
// Items that wait for each other in a cycle, which coarse items may do, are on their fastest device.
[[nodiscard]] std::vector<Placement> segment_placements(const AdditiveModel& model);

}  // namespace ov_hsdag
