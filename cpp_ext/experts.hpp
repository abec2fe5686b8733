// Finds blocks of experts (mixtures of experts) that plugins recognise and fuse. In such a block a few of many experts
// process each token.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph.hpp"

namespace ov_hsdag {

// A block of experts. Tokens are tiled for all experts and multiplied with the weights of all experts; the results are
// summed with weights from a router, which are 0 for experts that a token does not choose. Plugins search for the block
// from the sum backwards to the tile, and compute only the chosen experts (docs/reference/facts.md). If a part of the
// block is in another submodel, they compute all experts.
struct Experts {
    std::int32_t tile;                // copies the tokens for each expert
    std::int32_t scatter;             // writes the weights of the chosen experts into those of all experts
    std::int32_t sum;                 // adds the results of all experts
    std::vector<std::int32_t> nodes;  // nodes that depend on the tokens, including the router, ascending
};

// Finds the blocks of a graph, in its order.
//
// types: operation types, [nodes]. ranks: declared rank of each output, -1 if open, [outputs]. constant: 1 for nodes
// that depend on constants only, [nodes].
std::vector<Experts> find_experts(const Graph& graph, const std::vector<std::string>& types,
                                  const std::vector<std::int16_t>& ranks, const std::vector<std::uint8_t>& constant);

}  // namespace ov_hsdag
