// The best contiguous partitions of an order of items over devices, by dynamic programming.
//
// Bokhari, "Partitioning problems in parallel, pipeline, and distributed computing", IEEE Trans. Computers 37(1), 1988,
// assigns a chain of modules to a chain of processors. Here the processors are heterogeneous and come in any order: a
// state is the set of devices that are left, the device whose part begins and the one before it, and the cut where it
// begins. Identical devices are one kind, of which a state counts how many are left.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace ov_hsdag {

// Times of parts, µs. C kinds of devices, P cuts (places where a part may begin or end, both ends of the order among
// them). A part of kind c from cut i to cut j, between kinds b and d, takes
// span(c, i, j) + enter(b, c, i) + leave(c, d, j); the first enters and the last leaves for nothing.
struct PartitionCosts {
    static constexpr double infinite = std::numeric_limits<double>::infinity();

    std::int32_t cuts = 0;
    std::vector<std::vector<std::int32_t>> kinds;  // numbers of the devices of each kind, ascending
    bool throughput = false;                       // the slowest part counts; otherwise the sum of all

    std::vector<double> span;  // [C, P, P], infinite where a part cannot run; or empty, and then
    // span(c, i, j) = work(c, j) - work(c, i) + fixed(c), where nothing between i and j is blocked for c:
    std::vector<double> work;           // [C, P]
    std::vector<double> fixed;          // [C]
    std::vector<std::uint8_t> blocked;  // [C, P - 1]

    // [C, C, P], earlier kind first; both empty: free, and the device before a part is no part of the state.
    std::vector<double> enter, leave;

    [[nodiscard]] bool linked() const { return !enter.empty(); }
};

// Devices by their kind, ascending. kind: [devices], numbered as they first appear; throws std::invalid_argument where
// they are not.
std::vector<std::vector<std::int32_t>> members_of(const std::vector<std::int32_t>& kind);

struct PartitionOptions {
    bool any_order = true;  // of the devices; otherwise those that are used come in the order of their numbers
    // Each sequence names all devices, and any of them may have no items. Otherwise all devices of a sequence have
    // some, and sequences may be shorter. Costs with links allow only the latter.
    bool skip = false;
    std::int32_t sequences = 1;     // at most so many, the best first
    std::int32_t per_sequence = 1;  // partitions of each, with different cuts before the last part; 1 with `skip`
};

struct Partition {
    double value = 0.0;
    std::vector<std::int32_t> devices;  // in their sequence
    std::vector<std::int32_t> bounds;   // of device k: cuts bounds[k] to bounds[k + 1]
};

// The best partitions, sequence by sequence; of equally good sequences (within 1e-12) the lexicographically first comes
// first, of equally good partitions the one whose last parts begin first. Empty where no partition is finite.
//
// Throws std::invalid_argument where a cost is NaN or -infinite, or `work` or `fixed` infinite.
//
// Exact. With n cuts and C kinds there are O(2^C C^2 n) states for devices that differ; each takes O(log n) where spans
// are given by `work`, O(n) by `span`.
std::vector<Partition> contiguous_partitions(const PartitionCosts& costs, const PartitionOptions& options);

}  // namespace ov_hsdag
