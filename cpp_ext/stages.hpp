// Contiguous partitions of a level's items: where the search on that level starts.
#pragma once

#include <cstdint>
#include <vector>

#include "additive.hpp"
#include "levels.hpp"

namespace ov_hsdag {

struct StageOptions {
    std::int32_t cuts = 300;  // places where parts may end, at most; fewer where memory is limited
    bool any_order = true;    // of the devices; otherwise that of their numbers
    std::int32_t sequences = 4;
    std::int32_t per_sequence = 2;
};

// The best partitions of the model's order into one part for each device at most (contiguous.hpp), by estimates: what a
// device does not run goes to the fastest that does. submodel_us, reserved: [devices] what a submodel costs, µs, and
// bytes of memory that weights cannot have. Each is a placement of the model's items.
std::vector<Placement> stages(const AdditiveModel& model, bool throughput, const std::vector<double>& submodel_us,
                              const std::vector<double>& reserved, const StageOptions& wanted);

}  // namespace ov_hsdag
