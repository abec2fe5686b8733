// The placement problem: a graph, devices, costs, limits and constraints. It is what ov_hsdag.problem.PlacementProblem
// is in Python, bound once; simulator and refinement refer to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "graph.hpp"
#include "hetero.hpp"

namespace ov_hsdag {

// Placements and sets of devices are numbers and bits: no more devices than a word has bits.
inline constexpr std::int32_t kMaxDevices = 64;

// What is along an axis of an array.
enum class Axis { kNodes, kDevices, kOutputs };

struct Problem {
    std::shared_ptr<const Graph> graph;
    SplitRule rule = SplitRule::kScc;
    std::int32_t devices = 0;
    std::vector<double> node_us;          // [nodes, devices]
    std::vector<std::uint8_t> supported;  // [nodes, devices]
    std::vector<std::int32_t> group;      // [nodes] colocation group: the placements' column that decides for the node
    std::vector<double> transfer_us;      // [devices, devices] fixed part, from row to column
    std::vector<double> transfer_us_per_byte;  // [devices, devices]
    std::vector<double> submodel_us;           // [devices] what each submodel on the device costs beyond its nodes
    std::vector<std::int64_t> memory_limit;    // [devices] bytes; a negative one means no limit
    std::vector<std::int32_t> same_submodel;   // [pairs, 2] nodes that must be in one submodel
    // [nodes, devices], or empty: the node into whose execution the device fuses the node (-1: none), and what the node
    // costs more where that one is in another submodel, which breaks the fusion.
    std::vector<std::int32_t> fused_with;
    std::vector<double> fusion_penalty_us;
    // [outputs] bytes that a transfer of each output moves, where inferences differ: the mean over all of them, while
    // the graph's sizes are those of the largest, which memory counts. Empty: the graph's sizes.
    std::vector<std::int64_t> moved_bytes;

    // Bytes that a transfer of an output moves.
    [[nodiscard]] std::int64_t moved(std::int32_t output) const {
        return moved_bytes.empty() ? graph->output_bytes[output] : moved_bytes[output];
    }
    // [nodes, devices] bytes that a device keeps for a node as long as the model is loaded (weights, states); empty:
    // the graph's weights. [outputs] bytes that a tensor takes while it is alive; empty: the graph's sizes of tensors.
    std::vector<std::int64_t> held_bytes, live_bytes;

    [[nodiscard]] std::int64_t held(std::int32_t node, std::size_t device) const {
        if (held_bytes.empty()) return graph->weight_bytes[static_cast<std::size_t>(node)];
        return held_bytes[static_cast<std::size_t>(node) * static_cast<std::size_t>(devices) + device];
    }
    [[nodiscard]] const std::vector<std::int64_t>& live() const {
        return live_bytes.empty() ? graph->output_bytes : live_bytes;
    }

    // [devices] share of a transfer's time in which a device is busy with it, for throughput; empty: all of it.
    std::vector<double> transfer_share;

    [[nodiscard]] double share(std::size_t device) const {
        return transfer_share.empty() ? 1.0 : transfer_share[device];
    }

    // Number of colocation groups.
    [[nodiscard]] std::int32_t groups() const;
    // Devices that may change places in every placement without changing any cost have the same number, in the order of
    // the first ones, [devices].
    [[nodiscard]] std::vector<std::int32_t> kinds() const;
    [[nodiscard]] std::size_t size(Axis axis) const;

    // Calls visit(name, array, axes, whether it may be empty) for each array of a problem but `same_submodel`; the
    // names are those of the attributes in Python.
    template <typename Self, typename Visit>
    static void for_each_array(Self& self, Visit visit) {
        using enum Axis;
        using Axes = std::vector<Axis>;
        visit("node_us", self.node_us, Axes{kNodes, kDevices}, false);
        visit("supported", self.supported, Axes{kNodes, kDevices}, false);
        visit("groups", self.group, Axes{kNodes}, false);
        visit("transfer_us", self.transfer_us, Axes{kDevices, kDevices}, false);
        visit("transfer_us_per_byte", self.transfer_us_per_byte, Axes{kDevices, kDevices}, false);
        visit("submodel_us", self.submodel_us, Axes{kDevices}, false);
        visit("memory_bytes", self.memory_limit, Axes{kDevices}, false);
        visit("fused_with", self.fused_with, Axes{kNodes, kDevices}, self.fusion_penalty_us.empty());
        visit("fusion_penalty_us", self.fusion_penalty_us, Axes{kNodes, kDevices}, self.fused_with.empty());
        visit("moved_bytes", self.moved_bytes, Axes{kOutputs}, true);
        visit("held_bytes", self.held_bytes, Axes{kNodes, kDevices}, true);
        visit("live_bytes", self.live_bytes, Axes{kOutputs}, true);
        visit("transfer_share", self.transfer_share, Axes{kDevices}, true);
    }

    // Throws std::invalid_argument where an array does not fit the graph or the number of devices, or names nodes or
    // groups that are none.
    void check() const;
};

}  // namespace ov_hsdag
