// Contiguous partitions of a level's items: where the search on that level starts.
#pragma once

#include <cstdint>
#include <random>
#include <span>
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

// The same for throughput, of any order of the items, and with what each part sends and receives by itself: in stages()
// a tensor that passes over a part loads it. For devices that differ in links, these are means. Empty where so many
// devices differ that few places could be looked at. order: [items] a topological one, as far as there is one.
std::vector<Placement> exact_stages(const AdditiveModel& model, std::span<const std::int32_t> order,
                                    const std::vector<double>& submodel_us, const std::vector<double>& reserved,
                                    const StageOptions& wanted);

// A random topological order of a model's items: depth first, so that branches stay together. [items]
std::vector<std::int32_t> random_order(const AdditiveModel& model, std::mt19937_64& random);

}  // namespace ov_hsdag
