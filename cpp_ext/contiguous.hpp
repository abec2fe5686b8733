// Finds the best contiguous partitions of an order of items over devices by dynamic programming.
//
// Bokhari, "Partitioning problems in parallel, pipeline, and distributed computing", IEEE Trans. Computers 37(1), 1988,
// assigns a chain of modules to a chain of processors. Here the processors are heterogeneous and come in any order.
// Identical devices are one kind, so that a state counts the devices of each kind that are left.
//
// Let cut 0 be the begin and cut n the end of the order, S the multiset of kinds of the devices that are left, c the
// kind of the device whose part begins at cut i, and b the kind of the device before it. The best value of the items
// from cut i on is
//
//     R(S, c, b)[i] = min of  T(b, c, none, i, n)                               if the part of c is the last one
//                     and     T(b, c, d, i, j) (+) R(S - d, d, c)[j]            for all kinds d in S and i < j < n
//     T(b, c, d, i, j) = span(c, i, j) + enter(b, c, i) + leave(c, d, j)        the time of the part of c
//
// where x (+) y is x + y for latency and max(x, y) for throughput. The first part has no `enter`, the last no `leave`.
//
// Sequences of devices are then enumerated best first. For a sequence q that ends with a device of kind c after one of
// kind b, F(q)[i] is the best value of the items before cut i on the devices before the last one. The lower bound of
// all sequences that begin with q is the minimum over i of F(q)[i] (+) R(S, c, b)[i]; it is exact, so that the first
// complete sequence in the queue is the best.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace ov_hsdag {

// Times of parts in µs, for C kinds of devices and P cuts (places where a part may begin or end, including both ends of
// the order). See T above for their use.
struct PartitionCosts {
    static constexpr double infinite = std::numeric_limits<double>::infinity();

    std::int32_t cuts = 0;
    std::vector<std::vector<std::int32_t>> kinds;  // numbers of the devices of each kind, ascending
    bool throughput = false;                       // the value is the maximum of all parts; otherwise their sum

    std::vector<double> span;  // [C, P, P], infinite for a part that cannot run. If it is empty,
    // span(c, i, j) = work(c, j) - work(c, i) + fixed(c), infinite if a slice between i and j is blocked for c:
    std::vector<double> work;           // [C, P] work before each cut
    std::vector<double> fixed;          // [C] time of a part in addition to its work
    std::vector<std::uint8_t> blocked;  // [C, P - 1] 1: the device cannot run the items between two cuts

    // [C, C, P], earlier kind first. If both are empty they are 0, and states do not include the kind b.
    std::vector<double> enter, leave;

    [[nodiscard]] bool linked() const { return !enter.empty(); }
};

// The devices of each kind, ascending. kind: kind of each device, numbered in the order of first appearance, [devices].
// Throws std::invalid_argument if they are not numbered so.
std::vector<std::vector<std::int32_t>> members_of(const std::vector<std::int32_t>& kind);

struct PartitionOptions {
    bool any_order = true;  // devices may be used in any order; otherwise in the order of their numbers
    // If true, each sequence has all devices, some of them without items; costs must have no `enter` and `leave`. If
    // false, each device of a sequence has items, and sequences may be shorter.
    bool skip = false;
    std::int32_t sequences = 1;     // largest number of sequences to return, the best first
    std::int32_t per_sequence = 1;  // partitions of each, with different begins of the last part; 1 with `skip`
};

struct Partition {
    double value = 0.0;
    std::vector<std::int32_t> devices;  // in the order of their parts
    std::vector<std::int32_t> bounds;   // devices[k] has the items from cut bounds[k] to cut bounds[k + 1]
};

// Returns the best partitions, sequence by sequence. Among equally good sequences (within 1e-12) the lexicographically
// first comes first, among equally good partitions the one whose last parts begin first. Empty if no partition has a
// finite value.
//
// Throws std::invalid_argument if a cost is NaN or -infinite, or `work` or `fixed` is infinite.
//
// The result is exact. For n cuts and C devices that all differ there are O(2^C C^2 n) states; each takes O(log n) with
// `work`, and O(n) with `span`.
std::vector<Partition> contiguous_partitions(const PartitionCosts& costs, const PartitionOptions& options);

}  // namespace ov_hsdag
