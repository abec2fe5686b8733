// Determines which nodes must share a device or a submodel, so that every placement compiles and computes the same
// outputs. Python (ov_hsdag.model) and the C++ library (transformations/) both extract the arrays from their models and
// use these rules.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "experts.hpp"
#include "graph.hpp"

namespace ov_hsdag {

using Pairs = std::vector<std::pair<std::int32_t, std::int32_t>>;  // pairs of node numbers
using Flags = std::vector<std::uint8_t>;                           // 1 or 0 for each node or output

// The properties of nodes and outputs that the rules use in addition to the graph. Sizes are those of the cost model,
// in which examples, bounds or defaults replace dynamic dimensions.
struct NodeArrays {
    std::vector<std::string> types;        // [nodes] "Convolution"
    std::vector<std::string> variables;    // [nodes] variable of a ReadValue or Assign, "" for others
    Flags movable;                         // [outputs] whether HETERO can pass the tensor from submodel to submodel:
                                           // 0 no, 1 yes, 2 after its shape is relaxed (in Python, where it crosses)
    Flags open_lengths;                    // [nodes] 1: a Gather of a ShapeOf that takes only dimensions without bounds
    std::vector<std::int16_t> ranks;       // [outputs] declared rank, -1 where the model leaves it open
    std::vector<std::int32_t> shape_ptr;   // [outputs + 1]
    std::vector<std::int64_t> dimensions;  // [shape_ptr.back()] sizes of the outputs, concatenated
};

// The constraints of one model, computed once.
//
// HETERO cuts a model into submodels at every edge between devices. Some nodes must not be cut from their consumers
// ("replicable producers"). They are copied once for each further device with a consumer: constants; nodes that depend
// on constants only (decompressed weights); shape arithmetic (ShapeOf … Gather … Concat → Reshape), without which the
// consumer's submodel has no static shapes, or not even a rank; masks, which are cheap nodes with several readers whose
// tensors HETERO cannot pass on; and constants that are the initial value of states.
//
// Lengths that the model leaves open are not treated as shape arithmetic: a submodel knows as much about such a number
// if it is an input as if it computes it. They stay on the device of the tensor that has the length, and the number
// crosses instead of the tensor (the cache of a decoder's first layer, whose length all layers use).
//
// The constructor applies the rules in this order; later ones use the results of earlier ones:
//   1. constant_nodes: constants, and operations on constants only (`constant`)
//   2. open_values: nodes that compute lengths without bounds; they need 1
//   3. shape_arithmetic: replicable producers of shapes, except those of 2; together with 1 they are `replicable`
//   4. add_initial_values: Broadcasts of constants to initial values of states become replicable, with the open lengths
//      that they need (add_open_sizes)
//   5. add_state_paths: all nodes between a ReadValue and its Assign
//   6. cached_attention: attention with the states that hold its keys and values; it needs 5
//   7. add_shared_masks: masks become replicable, except nodes of 5
//   8. find_experts: blocks of experts
//   9. colocation_constraints: nodes of one variable; Results with their producers; both ends of an edge that HETERO
//      cannot pass on; the pairs of 5 and 6; add_transposes_of_attention; add_lengths; add_parameters; add_experts
//  10. same_submodel_constraints: pairs that must share a submodel, see `same_submodel`
//  11. hosts: groups by the pairs of 9; groups: by these pairs, and by replicable producers with their consumers
class Legality {
public:
    // Throws std::invalid_argument if the arrays do not fit the graph.
    Legality(std::shared_ptr<const Graph> graph, NodeArrays arrays);

    [[nodiscard]] const Graph& graph() const { return *graph_; }
    // 1 for constants, and operations that depend on constants only and give the same result in each run. [nodes]
    [[nodiscard]] const Flags& constant() const { return constant_; }
    // 1 for nodes that must be on the device of each of their consumers. [nodes]
    [[nodiscard]] const Flags& replicable() const { return replicable_; }
    // Pairs of nodes that must share a device, except those of replicable producers with their consumers.
    [[nodiscard]] const Pairs& colocated() const { return colocated_; }
    // Groups by `colocated` only; they decide on which devices replicable producers are needed. Dense numbers, [nodes].
    [[nodiscard]] const std::vector<std::int32_t>& hosts() const { return hosts_; }
    // Groups of nodes that must share a device, including replicable producers with all of their consumers. Any
    // assignment of devices to groups is legal. Dense numbers in the order of the groups' first nodes, [nodes].
    [[nodiscard]] const std::vector<std::int32_t>& groups() const { return groups_; }
    // Pairs of nodes that must share a submodel, not only a device, as HETERO may split the nodes of a device to break
    // cycles: shape arithmetic and decompressed weights with their consumers (HETERO never cuts off plain constants),
    // both ends of tensors that HETERO cannot pass on, each ReadValue with its Assign, caches with their attention, and
    // experts with their router.
    [[nodiscard]] const Pairs& same_submodel() const { return same_submodel_; }
    // Blocks of experts. Each stays together, as plugins fuse it as a whole or not at all.
    [[nodiscard]] const std::vector<Experts>& experts() const { return experts_; }

private:
    // The rules, in the list above; colocation.cpp explains each. Functions that return Flags have [nodes]; those that
    // take `pairs` append to it.
    [[nodiscard]] Flags constant_nodes() const;
    [[nodiscard]] Flags open_values() const;
    [[nodiscard]] Flags shape_arithmetic() const;
    [[nodiscard]] bool is_short(std::int32_t output) const;
    [[nodiscard]] Pairs states() const;
    void add_initial_values();
    void add_open_sizes(std::int32_t concat);
    void add_shared_masks();
    void add_state_paths(Pairs& pairs) const;
    void add_transposes_of_attention(Pairs& pairs) const;
    [[nodiscard]] Pairs cached_attention() const;
    void add_lengths(Pairs& pairs) const;
    void add_parameters(Pairs& pairs) const;
    void add_experts(Pairs& pairs) const;
    [[nodiscard]] Pairs colocation_constraints() const;
    [[nodiscard]] Pairs same_submodel_constraints() const;

    std::shared_ptr<const Graph> graph_;
    NodeArrays arrays_;
    Flags constant_, open_, replicable_, masks_;              // results of rules 1, 2, 3 with 4 and 7, and 7
    Pairs state_paths_, caches_, colocated_, same_submodel_;  // results of rules 5, 6, 9 and 10
    std::vector<Experts> experts_;
    std::vector<std::int32_t> hosts_, groups_;
};

}  // namespace ov_hsdag
