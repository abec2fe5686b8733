// Contiguous partitions of a problem's colocation groups: where search starts.
#pragma once

#include <cstdint>
#include <vector>

#include "additive.hpp"
#include "levels.hpp"
#include "problem.hpp"

namespace ov_hsdag {

struct StageOptions {
    std::int32_t cuts = 300;  // places where parts may end, at most; fewer in any order of many devices
    // Devices in the order of their parts; empty: any order.
    std::vector<std::int32_t> sequence;
    // What a device lacks: its parts have none of it; or the fastest device that runs it does.
    bool whole = false;
    double effort = 1;              // how long any order may take, as a multiple
    std::int32_t sequences = 4;     // at most so many orders of devices
    std::int32_t per_sequence = 2;  // at most so many partitions of each
};

struct Stages {
    std::vector<std::int32_t> sequence;  // devices in the order of their parts
    Placement placement;                 // [groups]
};

// The best partitions of the model's order into one part for each device at most (contiguous.hpp), by estimates. Memory
// limits count weights and the live tensors of a part (live.hpp). model: of the problem's colocation groups.
std::vector<Stages> stages(const Problem& problem, const AdditiveModel& model, bool throughput,
                           const StageOptions& wanted);

}  // namespace ov_hsdag
