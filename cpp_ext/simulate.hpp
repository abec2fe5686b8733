// The simulator: computes latency, throughput and memory of a placement from HETERO's split and the costs of nodes,
// transfers and submodels. Latency is the sum of all times, as if one thing happened after the other. The period is the
// work of the busiest device.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "hetero.hpp"
#include "problem.hpp"

namespace ov_hsdag {

// The reasons why a placement is infeasible, as bits.
enum Infeasible : std::uint8_t {
    kUnsortable = 1,   // HETERO cannot order the submodels
    kUnsupported = 2,  // a node is on a device that cannot run it
    kMemory = 4,       // a device's memory limit is exceeded
    kTrivial = 8,      // a submodel computes nothing, which some plugins refuse
    kSeparated = 16,   // a same-submodel constraint is violated
};

// What the simulator computes of one placement.
struct Evaluation {
    double latency_us = 0;
    double period_us = 0;  // time between two results when many requests are in flight: the busiest device's work
    std::int64_t transfer_bytes = 0;         // sum over all transfers
    std::int32_t cut_tensors = 0;            // number of transfers
    std::int32_t submodels = 0;              // number of submodels
    std::int32_t rounds = 1;                 // Split::rounds, which determines the time of the evaluation
    std::int64_t work = 0;                   // Split::work, likewise
    std::uint8_t infeasible = 0;             // bits of Infeasible; 0: the placement is feasible
    std::vector<double> busy_us;             // [devices] work in one request, with shares of transfers
    std::vector<std::int64_t> memory_bytes;  // [devices] weights, states and, per submodel, the peak of live tensors
};

// The transfer of a tensor to another device, once for all readers on it.
struct Transfer {
    std::int32_t output = 0;
    std::uint8_t source = 0, target = 0;  // devices
    std::int64_t bytes = 0;
    double us = 0;
    double source_us = 0, target_us = 0;  // parts of `us` that keep the source and the target busy
};

// The terms of the time of a placement.
enum Term : std::uint8_t { kNodes, kFusions, kSubmodels, kTransfers, kTerms };

// The terms of a placement's evaluation.
struct Breakdown {
    std::vector<double> node_us;      // [nodes] time on the node's device, without broken fusions
    std::vector<double> fusion_us;    // [nodes] additional time if the node's fusion is broken
    std::vector<Transfer> transfers;  // sorted by output, then by target
    std::vector<double> latency_us;   // [terms] the sum is Evaluation::latency_us
    std::vector<double> busy_us;      // [devices, terms] the sums over terms are Evaluation::busy_us
};

// Evaluates placements of a problem, to which it keeps a reference. Use one per thread.
class Simulator {
public:
    explicit Simulator(const Problem& problem);
    // Evaluates a placement, the device of each group, [groups]. most_work: see Splitter::split. breakdown: filled if
    // it is not null. The result is valid until the next call.
    const Evaluation& evaluate(const std::uint8_t* placement,
                               std::int64_t most_work = std::numeric_limits<std::int64_t>::max(),
                               Breakdown* breakdown = nullptr);

private:
    // Calls visit(node, penalty in µs) for each node with a broken fusion.
    template <typename Visit>
    void visit_broken_fusions(const Split& split, const Visit& visit) const;
    // Calls visit(transfer) for each tensor and each device that receives it.
    template <typename Visit>
    void visit_transfers(const Split& split, const Visit& visit);
    // Fills a breakdown from the placement in device_.
    void break_down(const Split& split, Breakdown& breakdown);
    // Fills what is known of tensors before a split: last_use_, born_, dead_ and computing_.
    void find_lifetimes();
    // Fills memory_bytes and the bit kMemory of result_.
    void measure_memory(const Split& split);

    const Problem& problem_;
    const Graph& graph_;
    Splitter splitter_;
    Evaluation result_;
    std::vector<std::int32_t> timed_;      // nodes that take time, or that some device does not support
    std::vector<std::int32_t> fused_;      // nodes that some device fuses
    std::vector<std::int32_t> holders_;    // nodes for which some device stores bytes
    std::vector<std::int32_t> computing_;  // nodes with which the sum of live bytes changes

    // The bytes of tensors in a submodel that has all of their consumers. Constants have none.
    std::vector<std::int64_t> born_;      // [nodes] bytes of the node's outputs
    std::vector<std::int64_t> dead_;      // [nodes] bytes of the outputs that are not used after the node
    std::vector<std::int32_t> last_use_;  // [outputs] last consumer, or the node itself; nodes(): kept until the end

    std::vector<std::uint8_t> device_;       // [nodes]
    std::vector<std::uint64_t> sent_;        // [outputs] devices that have received the tensor; 0 between visits
    std::vector<std::uint8_t> crosses_;      // [outputs] 1: in crossing_; 0 between evaluations
    std::vector<std::int32_t> crossing_;     // outputs that another submodel receives
    std::vector<std::int64_t> live_, peak_;  // [submodels] bytes
    std::vector<std::int32_t> counted_;      // [submodels] the last tensor that was counted as an input
};

}  // namespace ov_hsdag
