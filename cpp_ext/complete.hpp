// Completion: a device for every node of a model, from those of the nodes that a placement knows.
//
// In steps, because copies are made by who has the model: hosts → replication → (copies) → settle.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "colocation.hpp"
#include "hetero.hpp"

namespace ov_hsdag {

// A device for every node that is not a replicable producer (what it says of others is of no use).
//
// Nodes that are not known get the device of the nodes that they must share one with, else that of their producers,
// else of their consumers, else the first. Where known nodes that must share a device have different ones (the model
// was changed), the device of most of them wins. known: device of each node, -1 where it is not known, [nodes]. Throws
// std::invalid_argument for other numbers.
std::vector<std::int32_t> host_devices(const Legality& legality, std::span<const std::int32_t> known,
                                       std::int32_t devices);

// One more of a replicable producer. A node that rests on constants alone is copied with all that it rests on; any
// other alone, with inputs from where the node has them.
struct Replica {
    // Input port of a node: a number below graph.nodes() is a node of the model, any other (minus graph.nodes()) the
    // replica of this number, which stands further ahead in the list.
    using Input = std::pair<std::int32_t, std::int32_t>;

    std::int32_t node = 0;      // of the model
    std::int32_t home = 0;      // of the copy and all that is copied with it
    std::vector<Input> inputs;  // that are to be fed by the copy instead
};

struct Replication {
    std::vector<std::int32_t> home;  // of each node of the model itself, [nodes]
    std::vector<Replica> replicas;   // consumers before their producers
};

// Which copies of replicable producers it takes until all consumers of each share a home. The node itself stays where
// most of its consumers are (ties: where the first in the graph is).
//
// home: where each node is that is no replicable producer: a device or a group, [nodes]. copyable: 0 for nodes that
// cannot be copied, whose consumers keep sharing them; empty: all can, [nodes].
Replication replication(const Legality& legality, std::span<const std::int32_t> home,
                        std::span<const std::uint8_t> copyable);

// Gives every group one device (that of most of its operations) and repairs what HETERO would refuse. device: [nodes].
// Replicable producers that could not be copied leave something to do here. Returns the device of each node.
std::vector<std::uint8_t> settle(const Legality& legality, std::span<const std::int32_t> device, std::int32_t devices,
                                 SplitRule rule);

// All steps for a model that must stay as it is: instead of being copied, replicable producers and their consumers
// share a device. Arguments as above.
std::vector<std::uint8_t> complete_in_place(const Legality& legality, std::span<const std::int32_t> known,
                                            std::int32_t devices, SplitRule rule);

}  // namespace ov_hsdag
