// Blocks of experts (mixtures of experts) as plugins recognise and fuse them: each token goes through a few of many.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph.hpp"

namespace ov_hsdag {

// A block: every token is tiled for all experts, products of matrices with the weights of all experts follow, and their
// sum weighted by what a router gives, 0 for those that a token does not choose. Plugins look for it from the sum
// backwards to the tile, and compute the chosen experts alone (docs/facts.md); where a part of it is in another
// submodel, they compute all.
struct Experts {
    std::int32_t tile;                // makes a copy of the tokens for each expert
    std::int32_t scatter;             // puts the weights of the chosen experts among those of all
    std::int32_t sum;                 // over all experts
    std::vector<std::int32_t> nodes;  // all that depends on the tokens, its router too, ascending
};

// The blocks of a graph, in its order.
//
// types: [nodes]; ranks: [outputs]; constant: [nodes] nodes that rest on constants alone.
std::vector<Experts> find_experts(const Graph& graph, const std::vector<std::string>& types,
                                  const std::vector<std::int16_t>& ranks, const std::vector<std::uint8_t>& constant);

}  // namespace ov_hsdag
