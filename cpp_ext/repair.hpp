// Placements that HETERO cannot run become ones that it can.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "colocation.hpp"
#include "graph.hpp"
#include "hetero.hpp"

namespace ov_hsdag {

// Moves groups until HETERO can order the submodels, each of them computes something, and every same-submodel
// constraint holds.
//
// group: of each node, dense numbers, [nodes]. same_submodel: pairs of nodes. device: of each group, [groups].
// supported: devices that each group can be on, [groups, devices], row by row. Returns `device` where nothing is wrong,
// and everything on the first device that runs it where nothing else helps. Throws std::invalid_argument where the
// arrays do not fit each other.
std::vector<std::uint8_t> repair(const Graph& graph, std::span<const std::int32_t> group, const Pairs& same_submodel,
                                 std::vector<std::uint8_t> device, std::span<const std::uint8_t> supported,
                                 std::int32_t devices, SplitRule rule);

}  // namespace ov_hsdag
