// Finds a legal device for every node of an OpenVINO model from those of known nodes. The native core's complete.hpp
// has the rules, for ov_hsdag.model.complete in Python as well; this file makes the copies of nodes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "openvino/core/model.hpp"
#include "openvino/core/node.hpp"

namespace ov_hsdag {

// Returns the number of a node's device, -1 if it is not known.
using KnownDevice = std::function<std::int32_t(const ov::Node&)>;

// The number of each node's device.
using DeviceOfNode = std::unordered_map<const ov::Node*, std::uint8_t>;

// Completes a model of `devices` devices. Replicable producers with consumers on several devices are copied, and
// friendly names become unique, so the model is changed. Returns the device of each node.
DeviceOfNode complete(const std::shared_ptr<ov::Model>& model, const KnownDevice& known, std::int32_t devices);

// Completes a Result and all nodes above it in the same way. A node is above another if a path leads from it to that
// one.
DeviceOfNode complete_above(const std::shared_ptr<ov::Node>& result, const KnownDevice& known, std::int32_t devices);

// Completes nodes that must not be changed: replicable producers are not copied but share the device of their
// consumers. nodes: all connected nodes, in topological order.
DeviceOfNode complete_as_is(const ov::NodeVector& nodes, const KnownDevice& known, std::int32_t devices);

}  // namespace ov_hsdag
