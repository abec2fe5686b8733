// What a placement costs: HETERO's split plus node, transfer and submodel costs → latency, throughput, memory.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "hetero.hpp"
#include "problem.hpp"

namespace ov_hsdag {

// Why a placement cannot be used; a bit set.
enum Infeasible : std::uint8_t {
    kUnsortable = 1,   // HETERO cannot order the submodels
    kUnsupported = 2,  // a node is on a device that cannot run it
    kMemory = 4,       // a device's memory limit is exceeded
    kTrivial = 8,      // a submodel computes nothing, which some plugins refuse
    kSeparated = 16,   // a same-submodel constraint is violated
};

struct Evaluation {
    double latency_us = 0;
    double period_us = 0;  // time between two results when many requests are in flight: the busiest device's work
    std::int64_t transfer_bytes = 0;
    std::int32_t cut_tensors = 0;
    std::int32_t submodels = 0;
    std::int32_t rounds = 1;  // Split::rounds: what the evaluation took, in walks over the graph
    std::uint8_t infeasible = 0;
    std::vector<double> busy_us;             // [devices]
    std::vector<std::int64_t> memory_bytes;  // [devices] weights, states and, per submodel, the peak of live tensors
};

// A tensor that moves to another device, once for all that read it there.
struct Transfer {
    std::int32_t output = 0;
    std::uint8_t source = 0, target = 0;  // devices
    std::int64_t bytes = 0;
    double us = 0;
    double source_us = 0, target_us = 0;  // in which its ends are busy with it, as far as their own engines copy
};

// What the time of a placement is spent on.
enum Term : std::uint8_t { kNodes, kFusions, kSubmodels, kTransfers, kTerms };

// The terms of a placement's evaluation.
struct Breakdown {
    std::vector<double> node_us;      // [nodes] on its device, broken fusions not included
    std::vector<double> fusion_us;    // [nodes] what it takes longer as its fusion is broken
    std::vector<Transfer> transfers;  // by output, then by target
    std::vector<double> latency_us;   // [terms] sums up to Evaluation::latency_us
    std::vector<double> busy_us;      // [devices, terms] sums up to Evaluation::busy_us
};

// Evaluates placements of a problem, to which it refers. One per thread.
class Simulator {
public:
    explicit Simulator(const Problem& problem);
    // placement: [groups] device numbers. most_work: see Splitter::split. breakdown: filled where it is given. The
    // result is valid until the next call.
    const Evaluation& evaluate(const std::uint8_t* placement,
                               std::int64_t most_work = std::numeric_limits<std::int64_t>::max(),
                               Breakdown* breakdown = nullptr);

private:
    // Calls visit(node, µs) for each node that takes longer as its fusion is broken.
    template <typename Visit>
    void visit_broken_fusions(const Split& split, const Visit& visit) const;
    // Calls visit(transfer) for each tensor and each device that receives it.
    template <typename Visit>
    void visit_transfers(const Split& split, const Visit& visit);
    void break_down(const Split& split, Breakdown& breakdown);
    void measure_memory(const Split& split);

    const Problem& problem_;
    const Graph& graph_;
    Splitter splitter_;
    Evaluation result_;
    std::vector<std::uint8_t> device_;    // [nodes]
    std::vector<std::uint64_t> sent_;     // [outputs] devices that have received the tensor
    std::vector<std::int32_t> last_use_;  // [outputs] last consumer in the producer's submodel; nodes: kept to the end
    std::vector<std::int64_t> live_, peak_;  // [submodels]
    std::vector<std::int32_t> counted_;      // [submodels] last tensor that was counted as an input
};

}  // namespace ov_hsdag
