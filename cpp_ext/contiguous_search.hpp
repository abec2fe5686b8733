// Contiguous partitions of a problem's colocation groups: where search starts.
#pragma once

#include <cstdint>
#include <vector>

#include "additive.hpp"
#include "levels.hpp"
#include "problem.hpp"

namespace ov_hsdag {

struct ContiguousOptions {
    std::int32_t cuts = 300;  // places where parts may end, at most; fewer in any order of many devices
    // Devices in the order of their parts; empty: any order.
    std::vector<std::int32_t> sequence;
    // What a device lacks: its parts have none of it; or the fastest device that runs it does.
    bool whole = false;
    double filled = 1;              // share of the memory limits that parts may fill
    double effort = 1;              // how long any order may take, as a multiple
    std::int32_t sequences = 4;     // at most so many orders of devices
    std::int32_t per_sequence = 2;  // at most so many partitions of each
};

struct ContiguousPlacement {
    std::vector<std::int32_t> sequence;  // devices in the order of their parts
    Placement placement;                 // [groups]
};

// Contiguous partitions of an order of a model's items into one part for each device at most. It refers to the problem
// and to the additive model of its colocation groups.
class ContiguousSearch {
public:
    // order: of the items, [items].
    ContiguousSearch(const Problem& problem, const AdditiveModel& model, std::vector<std::int32_t> order,
                     bool throughput);

    // The best ones (contiguous.hpp), by estimates. Memory limits count weights and the live tensors of a part
    // (live.hpp).
    [[nodiscard]] std::vector<ContiguousPlacement> best(const ContiguousOptions& wanted) const;

private:
    void measure_crossings();
    void measure_items();

    const Problem& problem_;
    const AdditiveModel& model_;
    bool throughput_;
    bool lacking_ = false;             // a device does not run an item
    bool limited_ = false;             // a device cannot hold all items
    double live_ = 0.0;                // bytes of live tensors where one device has all
    double all_us_ = 0.0;              // of all items, in the mean of the devices
    std::vector<std::int32_t> order_;  // [items]
    std::vector<std::int32_t> place_;  // [items] in the order
    // What crosses each place of the order [items + 1]: tensors, bytes, and what a device behind it pays for broken
    // fusions, µs [items + 1, devices], empty where nothing does.
    std::vector<double> number_, bytes_, penalty_;
    std::vector<double> work_;                      // [items] in the order, the mean of the devices
    std::vector<std::vector<std::int32_t>> kinds_;  // devices of equal costs
    // Sums of all items before a place of the order [devices, items + 1]: time; bytes held, empty without limits; how
    // many the device does not run, empty where each runs all.
    std::vector<double> time_before_, held_before_;
    std::vector<std::int32_t> lacked_before_;
};

}  // namespace ov_hsdag
