// A legal device for every node of a model, from those of the nodes that are known: ov_hsdag.model.complete.complete in C++.
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

// Number of a node's device, -1 where it is not known.
using KnownDevice = std::function<std::int32_t(const ov::Node&)>;

using DeviceOfNode = std::unordered_map<const ov::Node*, std::uint8_t>;

// Nodes that appeared after the placement follow the nodes that they must share a device with, else their producers,
// else their consumers. Known nodes that must share a device get that of most of them. Constants and shape arithmetic
// with consumers on several devices are copied: the model is changed. Friendly names become unique.
DeviceOfNode complete(const std::shared_ptr<ov::Model>& model, const KnownDevice& known, std::int32_t devices);

// The same for nodes that must stay as they are: instead of being copied, they and their consumers share a device.
// nodes: in topological order, with all that they are connected to.
DeviceOfNode complete_as_is(const ov::NodeVector& nodes, const KnownDevice& known, std::int32_t devices);

}  // namespace ov_hsdag
