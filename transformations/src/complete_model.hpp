// A legal device for every node of an OpenVINO model, from those of the nodes that are known. What to do is said by the
// native core's complete.hpp, as it is to ov_hsdag.model.complete in Python; here nodes are copied.
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

// Replicable producers with consumers on several devices are copied: the model is changed. Friendly names become
// unique.
DeviceOfNode complete(const std::shared_ptr<ov::Model>& model, const KnownDevice& known, std::int32_t devices);

// The same for all nodes above a Result, and the Result.
DeviceOfNode complete_above(const std::shared_ptr<ov::Node>& result, const KnownDevice& known, std::int32_t devices);

// The same for nodes that must stay as they are. nodes: in topological order, with all that they are connected to.
DeviceOfNode complete_as_is(const ov::NodeVector& nodes, const KnownDevice& known, std::int32_t devices);

}  // namespace ov_hsdag
