// Repairs placements that HETERO cannot run: those with an unsortable split, a submodel that computes nothing, or nodes
// of a same-submodel constraint in different submodels (hetero.hpp, colocation.hpp).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "colocation.hpp"
#include "graph.hpp"
#include "hetero.hpp"

namespace ov_hsdag {

// Moves groups until HETERO can order the submodels, each submodel computes something, and every same-submodel
// constraint holds.
//
// group: group of each node, dense numbers, [nodes]. same_submodel: pairs of nodes. device: device of each group,
// [groups]. supported: whether a group can be on a device, [groups, devices]. Returns the device of each group, which
// is `device` if nothing is wrong, and a single device, the first that supports all groups, if nothing else helps.
// Throws std::invalid_argument if the arrays do not fit each other.
std::vector<std::uint8_t> repair(const Graph& graph, std::span<const std::int32_t> group, const Pairs& same_submodel,
                                 std::vector<std::uint8_t> device, std::span<const std::uint8_t> supported,
                                 std::int32_t devices, SplitRule rule);

}  // namespace ov_hsdag
