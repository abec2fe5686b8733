// Which nodes must share a device or a submodel, so that every placement compiles and computes the same outputs. Python
// (ov_hsdag.model) and the C++ library (transformations/) both extract the arrays from their models and ask here.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "experts.hpp"
#include "graph.hpp"

namespace ov_hsdag {

using Pairs = std::vector<std::pair<std::int32_t, std::int32_t>>;
using Flags = std::vector<std::uint8_t>;

// What the rules read of a model beside its graph. Sizes are those that costs count with: dynamic dimensions are
// replaced by examples, bounds or defaults.
struct NodeArrays {
    std::vector<std::string> types;        // [nodes] "Convolution"
    std::vector<std::string> variables;    // [nodes] of a ReadValue or Assign, "" for others
    Flags movable;                         // [outputs] whether HETERO can hand the tensor from submodel to submodel:
                                           // 0 no, 1 yes, 2 once its shape is relaxed (in Python, where it crosses)
    Flags open_lengths;                    // [nodes] Gathers of a ShapeOf that take dimensions without bounds alone
    std::vector<std::int16_t> ranks;       // [outputs] that the model declares, -1 where it leaves the rank open
    std::vector<std::int32_t> shape_ptr;   // [outputs + 1]
    std::vector<std::int64_t> dimensions;  // [shape_ptr.back()] sizes of the outputs, one after the other
};

// The constraints of one model, computed once.
//
// HETERO cuts a model into submodels at every edge between devices. Some nodes do not survive a cut from
// their consumers ("replicable producers"): constants, nodes that rest on constants alone (decompressed weights), and
// shape arithmetic (ShapeOf … Gather … Concat → Reshape), without which the consumer's submodel has no static shapes,
// or not even a rank. One with consumers on several devices is copied, once for each further device. So are masks:
// cheap nodes whose tensors HETERO cannot hand over and several nodes read; and constants that are the first value of
// states.
//
// Lengths that the model leaves open are no shape arithmetic of this kind: a submodel that gets such a number as an
// input knows as much as one that computes it. They stay with the tensor that has the length, and the number crosses,
// not the tensor (the cache of a decoder's first layer, which all layers ask for its length).
class Legality {
public:
    // Throws std::invalid_argument where the arrays do not fit the graph.
    Legality(std::shared_ptr<const Graph> graph, NodeArrays arrays);

    [[nodiscard]] const Graph& graph() const { return *graph_; }
    // Constants, and operations that rest on constants alone and give the same at each run. [nodes]
    [[nodiscard]] const Flags& constant() const { return constant_; }
    // Nodes that must be where their consumers are. [nodes]
    [[nodiscard]] const Flags& replicable() const { return replicable_; }
    // Pairs of nodes that must share a device, those of replicable producers with their consumers left out.
    [[nodiscard]] const Pairs& colocated() const { return colocated_; }
    // Groups by `colocated` alone: what decides where replicable producers are needed. Dense numbers, [nodes].
    [[nodiscard]] const std::vector<std::int32_t>& hosts() const { return hosts_; }
    // Groups of nodes that must share a device, replicable producers with all of their consumers: any assignment of
    // devices to groups is legal. Dense numbers in the order of the groups' first nodes, [nodes].
    [[nodiscard]] const std::vector<std::int32_t>& groups() const { return groups_; }
    // Pairs of nodes that must share a submodel, not only a device: HETERO splits devices further against cycles.
    // Shape arithmetic and decompressed weights with their consumers (constants alone are never taken off), tensors
    // that HETERO cannot hand over with theirs, each ReadValue with its Assign, caches with their attention, and
    // experts with their router.
    [[nodiscard]] const Pairs& same_submodel() const { return same_submodel_; }
    // Blocks of experts, each of which stays together: plugins fuse it as a whole or not at all.
    [[nodiscard]] const std::vector<Experts>& experts() const { return experts_; }

private:
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
    Flags constant_, open_, replicable_, masks_;
    Pairs state_paths_, caches_, colocated_, same_submodel_;
    std::vector<Experts> experts_;
    std::vector<std::int32_t> hosts_, groups_;
};

}  // namespace ov_hsdag
