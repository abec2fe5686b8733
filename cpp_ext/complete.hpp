// Completion: finds a device for every node of a model from those of the nodes that a placement knows.
//
// It has several steps, as the caller, who has the model, makes the copies: host_devices → replication → (copies) →
// settle. The home of a node is the device or group for which it is needed there; a replicable producer has a copy for
// each home of its consumers but one.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "colocation.hpp"
#include "hetero.hpp"

namespace ov_hsdag {

// Finds a device for every node that is not a replicable producer; entries of replicable producers are meaningless.
//
// An unknown node gets the device of the nodes that must share its device, else that of its producers, else that of its
// consumers, else the first. If known nodes that must share a device have different ones, because the model was
// changed, the device of most of them wins.
//
// known: device of each node, -1 if unknown, [nodes]. devices: number of devices. Throws std::invalid_argument for
// other numbers in `known`.
std::vector<std::int32_t> host_devices(const Legality& legality, std::span<const std::int32_t> known,
                                       std::int32_t devices);

// A copy of a replicable producer. A node that depends on constants only is copied together with these; any other node
// is copied alone and reads the inputs of the original.
struct Replica {
    // Node and input port. A number below graph.nodes() is a node of the model; any other, minus graph.nodes(), is the
    // index of a replica earlier in the list.
    using Input = std::pair<std::int32_t, std::int32_t>;

    std::int32_t node = 0;      // the node of the model that is copied
    std::int32_t home = 0;      // home of the copy and of all nodes that are copied with it
    std::vector<Input> inputs;  // inputs that the copy feeds in place of the original
};

struct Replication {
    std::vector<std::int32_t> home;  // home of each node of the model, [nodes]
    std::vector<Replica> replicas;   // consumers before their producers
};

// Plans copies of replicable producers, so that all consumers of each copy have the same home. The original gets the
// home of most of its consumers; ties go to that of the first consumer in the graph.
//
// home: home of each node that is no replicable producer, a device or a group, [nodes]. copyable: [nodes], 0 for nodes
// that cannot be copied and stay shared; empty if all can be. Throws std::invalid_argument if the lengths do not fit.
Replication replication(const Legality& legality, std::span<const std::int32_t> home,
                        std::span<const std::uint8_t> copyable);

// Gives every colocation group one device, that of most of its operations, and repairs what HETERO would refuse. This
// changes devices where replicable producers could not be copied.
//
// device: device of each node, [nodes]. devices: number of devices. rule: HETERO's splitting rule. Returns the device
// of each node, [nodes]. Throws std::invalid_argument if `device` has other numbers.
std::vector<std::uint8_t> settle(const Legality& legality, std::span<const std::int32_t> device, std::int32_t devices,
                                 SplitRule rule);

// Completes a model that must not be changed: replicable producers are not copied but share the device of their
// consumers. Arguments and result are those of `host_devices` and `settle`.
std::vector<std::uint8_t> complete_in_place(const Legality& legality, std::span<const std::int32_t> known,
                                            std::int32_t devices, SplitRule rule);

}  // namespace ov_hsdag
