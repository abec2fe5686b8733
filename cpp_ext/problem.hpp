// The placement problem: a graph, devices, costs, limits and constraints. It corresponds to
// ov_hsdag.problem.PlacementProblem in Python, which makes it once; simulator and searches keep references to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "graph.hpp"
#include "hetero.hpp"

namespace ov_hsdag {

// Largest number of devices: sets of devices are the bits of a word.
inline constexpr std::int32_t kMaxDevices = 64;

// The meaning of an axis of an array.
enum class Axis { kNodes, kDevices, kOutputs };

// Costs are in µs, sizes in bytes; matrices are stored by rows.
struct Problem {
    std::shared_ptr<const Graph> graph;
    SplitRule rule = SplitRule::kScc;
    std::int32_t devices = 0;
    std::vector<double> node_us;          // [nodes, devices] µs of the node on the device
    std::vector<std::uint8_t> supported;  // [nodes, devices] 1: the device can run the node
    std::vector<std::int32_t> group;      // [nodes] colocation group, the column of a placement with the node's device
    std::vector<double> transfer_us;      // [devices, devices] µs, fixed part, from row to column
    std::vector<double> transfer_us_per_byte;  // [devices, devices]
    std::vector<double> submodel_us;           // [devices] µs of each submodel in addition to its nodes
    std::vector<std::int64_t> memory_limit;    // [devices] bytes; negative: no limit
    std::vector<std::int32_t> same_submodel;   // [pairs, 2] nodes that must be in one submodel
    // [nodes, devices], or empty: the node into which the device fuses the node (-1: none), and the additional time of
    // the node if that one is in another submodel, which breaks the fusion.
    std::vector<std::int32_t> fused_with;
    std::vector<double> fusion_penalty_us;
    // [outputs] bytes of a transfer of each output, as the mean over inferences of different sizes; memory uses the
    // graph's sizes, which are those of the largest inference. Empty: the graph's sizes.
    std::vector<std::int64_t> moved_bytes;

    // The bytes of a transfer of an output.
    [[nodiscard]] std::int64_t moved(std::int32_t output) const {
        return moved_bytes.empty() ? graph->output_bytes[output] : moved_bytes[output];
    }
    // held_bytes: [nodes, devices] bytes that a device stores for a node while the model is loaded (weights, states);
    // empty: the graph's weights. live_bytes: [outputs] bytes of a tensor while it is alive; empty: the graph's sizes.
    std::vector<std::int64_t> held_bytes, live_bytes;

    // The bytes that a device stores for a node while the model is loaded.
    [[nodiscard]] std::int64_t held(std::int32_t node, std::size_t device) const {
        if (held_bytes.empty()) return graph->weight_bytes[static_cast<std::size_t>(node)];
        return held_bytes[static_cast<std::size_t>(node) * static_cast<std::size_t>(devices) + device];
    }
    // The bytes of each output's tensor while it is alive, [outputs].
    [[nodiscard]] const std::vector<std::int64_t>& live() const {
        return live_bytes.empty() ? graph->output_bytes : live_bytes;
    }

    // [devices] share of a transfer's time that keeps the device busy, for throughput; empty: all of it.
    std::vector<double> transfer_share;

    // The share of a transfer's time that keeps a device busy, from 0 to 1.
    [[nodiscard]] double share(std::size_t device) const {
        return transfer_share.empty() ? 1.0 : transfer_share[device];
    }

    // The number of colocation groups.
    [[nodiscard]] std::int32_t groups() const;
    // The kind of each device, numbered in the order of first appearance, [devices]. Devices of one kind can be swapped
    // in every placement without changing any cost.
    [[nodiscard]] std::vector<std::int32_t> kinds() const;
    // The length of an axis: the number of nodes, devices or outputs.
    [[nodiscard]] std::size_t size(Axis axis) const;

    // Calls visit(name, array, axes, whether it may be empty) for each array of a problem except `same_submodel`. Names
    // are those of the attributes in Python. Self is Problem or const Problem, and determines whether visit can change
    // the arrays.
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

    // Throws std::invalid_argument if an array does not fit the graph or the number of devices, or has an invalid
    // number of a node or group.
    void check() const;
};

}  // namespace ov_hsdag
