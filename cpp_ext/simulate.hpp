// What a placement costs: HETERO's split plus node, transfer and submodel costs → latency, throughput, memory.
#pragma once

#include <cstdint>
#include <vector>

#include "graph.hpp"
#include "hetero.hpp"

namespace ov_hsdag {

// Why a placement cannot be used; a bit set.
enum Infeasible : std::uint8_t {
    kUnsortable = 1,   // HETERO cannot order the submodels
    kUnsupported = 2,  // a node is on a device that cannot run it
    kMemory = 4,       // a device's memory limit is exceeded
    kTrivial = 8,      // a submodel computes nothing, which some plugins refuse
    kTorn = 16,        // nodes that only work in one submodel are in two
};

struct Costs {
    std::int32_t devices = 0;
    std::vector<double> node_us;               // [nodes, devices]
    std::vector<std::uint8_t> supported;       // [nodes, devices]
    std::vector<double> transfer_us;           // [devices, devices] fixed part, from row to column
    std::vector<double> transfer_us_per_byte;  // [devices, devices]
    std::vector<double> submodel_us;           // [devices]
    std::vector<std::int64_t> memory_limit;    // [devices] bytes; a negative one means no limit
    std::vector<std::int32_t> group;           // [nodes] the placements' column that decides for the node
    std::vector<std::int32_t> bonds;           // [pairs, 2] nodes that must be in one submodel
    // [nodes, devices], or empty: the node into whose execution the device fuses the node (-1: it runs by itself), and
    // what the node costs more where that one is in another submodel.
    std::vector<std::int32_t> fused_with;
    std::vector<double> torn_us;
};

struct Evaluation {
    double latency_us = 0;
    double period_us = 0;  // time between two results when many requests are in flight: the busiest device's work
    std::int64_t transfer_bytes = 0;
    std::int32_t cut_tensors = 0;
    std::int32_t submodels = 0;
    std::uint8_t infeasible = 0;
    std::vector<double> busy_us;             // [devices]
    std::vector<std::int64_t> memory_bytes;  // [devices] weights and, per submodel, the peak of live tensors
};

// One per thread.
class Simulator {
public:
    Simulator(const Graph& graph, const Costs& costs, SplitRule rule);
    // placement: [groups]
    const Evaluation& evaluate(const std::uint8_t* placement);

private:
    void charge_torn(const Split& split);
    void charge_transfers(const Split& split);
    void measure_memory(const Split& split);

    const Graph& graph_;
    const Costs& costs_;
    Splitter splitter_;
    Evaluation result_;
    std::vector<std::uint8_t> device_;    // [nodes]
    std::vector<std::uint64_t> sent_;     // [outputs] devices that have received the tensor
    std::vector<std::int32_t> last_use_;  // [outputs] last consumer in the producer's submodel; nodes: kept to the end
    std::vector<std::int64_t> live_, peak_;  // [submodels]
    std::vector<std::int32_t> counted_;      // [submodels] last tensor that was counted as an input
};

}  // namespace ov_hsdag
