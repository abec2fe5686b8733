// Which nodes must share a device: the rules of ov_hsdag/legality.py, which says why.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "hetero.hpp"
#include "model_graph.hpp"

namespace ov_hsdag {

using Pairs = std::vector<std::pair<std::int32_t, std::int32_t>>;
using Flags = std::vector<std::uint8_t>;

// Constants, and operations that rest on constants alone. [nodes]
Flags constant_nodes(const ModelGraph& model);
// Nodes that must be where their consumers are. [nodes]
Flags followers(const ModelGraph& model);
// Pairs of nodes that must share a device, those of followers with their consumers left out.
Pairs tied(const ModelGraph& model, const Flags& follows);
// Pairs of nodes that must share a submodel.
Pairs bonds(const ModelGraph& model);
// Dense groups in which the nodes of every pair are together. [nodes]
std::vector<std::int32_t> merged(const ModelGraph& model, const Pairs& pairs);
// Legality groups: any assignment of devices to them is legal. [nodes]
std::vector<std::int32_t> colocation(const ModelGraph& model);
// Moves groups until HETERO can order the submodels, each of them computes something, and no bond is torn.
// group: [nodes]; device: [groups]. Everything is on the first device where nothing else helps.
std::vector<std::uint8_t> repair(const ModelGraph& model, const std::vector<std::int32_t>& group,
                                 std::vector<std::uint8_t> device, std::int32_t devices);
// HETERO's rule in the OpenVINO that this process runs.
SplitRule split_rule();

}  // namespace ov_hsdag
