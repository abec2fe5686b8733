// Makes contiguous partitions of a problem's colocation groups, from which searches start. It fills the costs of
// contiguous.hpp from the additive cost model, and turns the partitions into placements.
#pragma once

#include <cstdint>
#include <vector>

#include "additive.hpp"
#include "levels.hpp"
#include "problem.hpp"

namespace ov_hsdag {

struct ContiguousOptions {
    std::int32_t cuts = 300;  // largest number of places where parts may end; less for many devices in any order
    // Devices in the order of their parts; empty for any order.
    std::vector<std::int32_t> sequence;
    // Whether parts may only have items that their device supports; otherwise the fastest device runs the other items.
    bool whole = false;
    double filled = 1;              // share of the memory limits that parts may fill
    double effort = 1;              // factor of the time that partitions in any order may take
    std::int32_t sequences = 4;     // largest number of orders of devices
    std::int32_t per_sequence = 2;  // largest number of partitions of each
};

struct ContiguousPlacement {
    std::vector<std::int32_t> sequence;  // devices in the order of their parts
    Placement placement;                 // [groups]
};

// Partitions an order of a model's items into at most one part for each device. It keeps references to the problem and
// to the additive model of its colocation groups.
class ContiguousSearch {
public:
    // order: the items in order, [items].
    ContiguousSearch(const Problem& problem, const AdditiveModel& model, std::vector<std::int32_t> order,
                     bool throughput);

    // The best partitions by estimated times (contiguous.hpp). Memory limits include weights and the live tensors of a
    // part (live.hpp).
    [[nodiscard]] std::vector<ContiguousPlacement> best(const ContiguousOptions& wanted) const;

private:
    // Fills number_, bytes_ and penalty_.
    void measure_crossings();
    void measure_items();

    const Problem& problem_;
    const AdditiveModel& model_;
    bool throughput_;
    bool lacking_ = false;             // whether a device does not support an item
    bool limited_ = false;             // whether a device cannot hold all items
    double live_ = 0.0;                // bytes of live tensors if one device has all items
    double all_us_ = 0.0;              // time of all items, mean of the devices
    std::vector<std::int32_t> order_;  // [items]
    std::vector<std::int32_t> place_;  // [items] position in the order
    // Tensors, and their bytes, that cross each place of the order, [items + 1], and the penalty of fusions that a
    // device behind it breaks, µs, [items + 1, devices], empty without any.
    std::vector<double> number_, bytes_, penalty_;
    std::vector<double> work_;                      // [items in the order] time, mean of the devices
    std::vector<std::vector<std::int32_t>> kinds_;  // devices of equal costs
    // Sums over all items before a place of the order, [devices, items + 1]: time; bytes held, empty without limits;
    // number of unsupported items, empty if there are none.
    std::vector<double> time_before_, held_before_;
    std::vector<std::int32_t> lacked_before_;
};

}  // namespace ov_hsdag
