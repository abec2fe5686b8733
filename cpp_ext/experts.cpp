// Matches the pattern of a block of experts backwards from its ReduceSum: one side of the product before the sum
// leads to the router's scatter, the other through the experts' matrix products to the tile. Then the block is
// completed with the router and the Reshapes around it.
#include "experts.hpp"

#include <algorithm>
#include <unordered_set>

namespace ov_hsdag {
namespace {

// Types between the matrix products of an expert.
const std::unordered_set<std::string> kExpertOps = {
    "Add",     "Clamp",   "Convert", "Gelu",     "Maximum", "Minimum", "Multiply", "Relu",
    "Reshape", "Sigmoid", "Slice",   "Subtract", "Split",   "Swish",   "Tanh",     "VariadicSplit"};

// Types between the router's weights and their product with the results of the experts.
const std::unordered_set<std::string> kRoutingOps = {"Convert", "Reshape", "Transpose", "Unsqueeze"};

// Finds the blocks of one graph. member_ and visit_ mark the nodes that the present walk has seen.
class Finder {
public:
    Finder(const Graph& graph, const std::vector<std::string>& types, const std::vector<std::int16_t>& ranks,
           const std::vector<std::uint8_t>& constant)
        : graph_(graph), types_(types), ranks_(ranks), constant_(constant), member_(types.size(), -1) {}

    std::vector<Experts> find() {
        std::vector<Experts> found;
        for (std::int32_t node = 0; node < graph_.nodes(); ++node) {
            if (types_[node] != "ReduceSum") continue;
            const std::int32_t weighted = graph_.input(node, 0);
            if (weighted < 0 || types_[weighted] != "Multiply") continue;
            for (const std::int32_t side : {0, 1}) {
                Experts block{-1, -1, node, {node, weighted}};
                if (routing(graph_.input(weighted, 1 - side), block) && experts(graph_.input(weighted, side), block)) {
                    complete(block);
                    found.push_back(std::move(block));
                    break;
                }
            }
        }
        return found;
    }

private:
    // Whether a node multiplies by the weights of all experts, [experts, rows, columns].
    [[nodiscard]] bool multiplies(std::int32_t node) const {
        const std::int32_t weights = graph_.input(node, 1);
        if (types_[node] != "MatMul" || weights < 0 || constant_[weights] == 0) return false;
        return ranks_[graph_.input_output[graph_.input_ptr[node] + 1]] == 3;
    }

    // Follows a block from the product backwards to the scatter of the router's weights. False if it is no block.
    bool routing(std::int32_t node, Experts& block) const {
        while (node >= 0 && kRoutingOps.count(types_[node]) != 0) {
            block.nodes.push_back(node);
            node = graph_.input(node, 0);
        }
        if (node < 0 || types_[node] != "ScatterElementsUpdate") return false;
        block.nodes.push_back(node);
        block.scatter = node;
        return true;
    }

    // Follows a block from the product backwards through all experts to the only tile. False if it is no block.
    bool experts(std::int32_t last, Experts& block) {
        ++visit_;
        std::vector<std::int32_t> ahead{last};
        std::int32_t products = 0;
        bool beta = false;  // a Swish has a beta, which plugins do not accept if gates and values are two products
        while (!ahead.empty()) {
            const std::int32_t node = ahead.back();
            ahead.pop_back();
            if (node < 0) return false;
            if (constant_[node] != 0 || member_[node] == visit_) continue;
            member_[node] = visit_;
            block.nodes.push_back(node);
            if (types_[node] == "Tile") {
                if (block.tile >= 0 || graph_.input(node, 0) < 0) return false;
                block.tile = node;
            } else if (multiplies(node)) {
                ++products;
                ahead.push_back(graph_.input(node, 0));
            } else if (kExpertOps.count(types_[node]) != 0) {
                beta |= types_[node] == "Swish" && graph_.input(node, 1) >= 0;
                for (std::int32_t e = graph_.input_ptr[node]; e < graph_.input_ptr[node + 1]; ++e) {
                    // The shape input of a Reshape is not part of the block.
                    if (types_[node] != "Reshape" || e == graph_.input_ptr[node]) ahead.push_back(graph_.source[e]);
                }
            } else {
                return false;
            }
        }
        return block.tile >= 0 && (products == 2 || (products > 2 && !beta));
    }

    // Adds the router, which are nodes that depend on the tokens and are read only by the block, and the Reshapes of
    // the tokens and of the sum. The shape of the latter comes from a tensor before the block, and HETERO would
    // separate the two if the block is on another device.
    void complete(Experts& block) {
        const std::int32_t output = graph_.output_ptr[block.sum];
        if (output < graph_.output_ptr[block.sum + 1] && graph_.consumers[output] == 1) {
            const std::int32_t reader = graph_.consumer_node[graph_.consumer_ptr[output]];
            if (types_[reader] == "Reshape" && graph_.input(reader, 0) == block.sum) block.nodes.push_back(reader);
        }
        const std::int32_t tokens = graph_.input(block.tile, 0);
        ++visit_;
        for (const std::int32_t node : block.nodes) member_[node] = visit_;
        std::vector<std::uint8_t> after(static_cast<std::size_t>(block.sum - tokens) + 1, 0);
        after[0] = types_[tokens] == "Reshape" ? 1 : 0;
        for (std::int32_t node = tokens + 1; node <= block.sum; ++node) {
            for (std::int32_t e = graph_.input_ptr[node]; e < graph_.input_ptr[node + 1]; ++e) {
                const std::int32_t source = graph_.source[e];
                if (source == tokens || (source > tokens && after[source - tokens] != 0)) after[node - tokens] = 1;
            }
        }
        for (std::int32_t node = block.sum - 1; node >= tokens; --node) {
            if (member_[node] == visit_ || after[node - tokens] == 0) continue;
            bool inside = true, read = false;
            for (std::int32_t o = graph_.output_ptr[node]; o < graph_.output_ptr[node + 1]; ++o) {
                for (std::int32_t c = graph_.consumer_ptr[o]; c < graph_.consumer_ptr[o + 1]; ++c) {
                    read = true;
                    inside &= member_[graph_.consumer_node[c]] == visit_;
                }
            }
            if (!read || !inside) continue;
            member_[node] = visit_;
            block.nodes.push_back(node);
        }
        std::sort(block.nodes.begin(), block.nodes.end());
    }

    const Graph& graph_;
    const std::vector<std::string>& types_;
    const std::vector<std::int16_t>& ranks_;
    const std::vector<std::uint8_t>& constant_;
    std::vector<std::int32_t> member_;  // [nodes] the last visit that took the node
    std::int32_t visit_ = 0;
};

}  // namespace

std::vector<Experts> find_experts(const Graph& graph, const std::vector<std::string>& types,
                                  const std::vector<std::int16_t>& ranks, const std::vector<std::uint8_t>& constant) {
    return Finder(graph, types, ranks, constant).find();
}

}  // namespace ov_hsdag
