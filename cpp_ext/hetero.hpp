// Splits a model whose nodes have affinities as OpenVINO's HETERO plugin does.
//
// This reproduces the behaviour of openvinotoolkit/openvino, src/plugins/hetero/src/subgraph_collector.cpp
// (SubgraphCollector; the later rule is that of pull request 36126). Connected nodes of equal affinity form a submodel.
// If submodels would wait for each other in a cycle, further inputs become boundaries until there is no cycle.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "graph.hpp"
#include "strong_components.hpp"

namespace ov_hsdag {

// The splitting rule, which depends on the release that runs the model.
enum class SplitRule : std::uint8_t {
    kClassic = 0,  // up to 2026.2
    kScc = 1,  // from 2026.3: inputs at which a cycle returns are boundaries too, and components that are still cyclic
               // are separated node by node
};

// The rule of a release, given by its version, "2026.4.1-22982-…". Source: the plugin's subgraph_collector.cpp,
// openvinotoolkit/openvino pull request 36126. It was checked against the plugins of 2025.4, 2026.2 and 2026.4 on
// random graphs.
SplitRule split_rule_of(const std::string& openvino_version);

struct Split {
    std::vector<std::int32_t> submodel;         // [nodes] dense number, -1 for a node in no submodel (a lone constant)
    std::vector<std::uint8_t> submodel_device;  // [submodels]
    std::vector<std::uint8_t> trivial;          // [submodels] 1 if it computes nothing (Parameter or Constant → Result)
    std::vector<std::uint8_t> cyclic;           // [nodes] 1 if the submodel waits for itself; empty if sortable
    std::int32_t rounds = 1;  // walks over the nodes: one, plus one for each boundary that breaks a cycle
    std::int64_t work = 0;    // words of bit sets that breaking cycles processed
    bool sortable = true;     // false: HETERO gives up ("Cannot sort subgraphs!" and similar errors)

    [[nodiscard]] std::int32_t submodels() const { return static_cast<std::int32_t>(submodel_device.size()); }
};

// The turn in which HETERO compiles each submodel, [submodels]: first those that wait for no other, then those that
// wait for these (SubgraphCollector::run). Within a turn the order is that of a hash table.
std::vector<std::int32_t> turns_of(const Graph& graph, const Split& split);

// Splits placements of one graph. It keeps a reference to the graph and is not thread safe: use one per thread.
class Splitter {
public:
    // group: [nodes] colocation groups, or empty. Nodes of one group have the same device in all splits, so that edges
    // within groups are no boundaries when a split begins.
    Splitter(const Graph& graph, SplitRule rule, std::span<const std::int32_t> group = {});

    // Splits by the device of each node, [nodes]. most_work: limit of the words of bit sets that breaking cycles may
    // process; beyond it the split counts as not sortable. The result is valid until the next call.
    const Split& split(const std::uint8_t* device, std::int64_t most_work = std::numeric_limits<std::int64_t>::max());
    // The edges that are boundaries after the last split, ascending. Each edge between different devices is one, unless
    // its target is a Result.
    [[nodiscard]] const std::vector<std::int32_t>& boundaries() const { return boundaries_; }

private:
    // A component is a set of nodes that edges without boundaries connect; the quotient graph has the components as
    // nodes and the boundaries as edges. A cyclic component is a set of components on a common cycle of that graph.

    // Sets affinity_ and the boundaries that a split begins with, which are those between different devices.
    void begin(const std::uint8_t* device);
    // Makes further edges boundaries. edges: ascending.
    void add_boundaries(std::span<const std::int32_t> edges);
    // Finds the components after `begin`: fills component_ and components_.
    void find_first_components();
    // Finds the components again after `add_boundaries`. Others than those with new boundaries stay as they are.
    void find_changed_components();
    // Fills component_ and components_ from parent_.
    void number_components();
    // One round of the per-node rule; false if it added no boundary.
    bool split_cycles_once();
    // Fills scc_ with cyclic components, also with components that have a boundary inside; false if there are none.
    bool find_cyclic_components();
    // Numbers the bits of each cyclic component, and fills depends_, owned_, entering_ and produced_. It only numbers
    // if the limit of work is exceeded.
    void collect_dependencies();
    // Whether a node of a component depends on a tensor that left the component.
    bool returns_to(std::int32_t component, std::int32_t node);
    // Sets wanted_ of the node's component to the boundaries before its tensors that return to the node and, by the
    // later rule, also to those before tensors of other components that enter on the way to the node.
    void update_wanted(std::int32_t node);
    // Whether a node of a component depends on a boundary of the component that is wanted.
    bool wants_boundary(std::int32_t component, std::int32_t node);
    // Whether a node is a constant in the component of its only consumer, with which it shares a bit.
    [[nodiscard]] bool is_inside(std::int32_t node) const {
        return only_consumer_[node] >= 0 && component_[only_consumer_[node]] == component_[node];
    }
    // The bit set of a node, a row of depends_; the node must be in a cyclic component, and not a constant that
    // `is_inside`, of which the only bit is known.
    std::uint64_t* depends(std::int32_t node) { return &depends_[static_cast<std::size_t>(row_[node]) * words_]; }
    // Fills scc_ with the components on cycles of the quotient graph; false if there are none. with_constants: whether
    // tensors of constants count as edges.
    bool find_cyclic_components(bool with_constants);
    // Makes all inner inputs of one node of a cyclic component boundaries (the later rule).
    void isolate_one_node();
    // Fills the submodels of split_ from the components.
    void number_submodels();

    const Graph& graph_;
    SplitRule rule_;
    Split split_;

    std::vector<std::uint8_t> affinity_;      // [nodes]
    std::vector<std::int32_t> result_edges_;  // edges to Results
    std::vector<std::int32_t> open_edges_;    // edges that may be between different devices, and not to a Result
    std::vector<std::int32_t> rooted_;        // [nodes] union-find forest of all other edges
    std::vector<std::int32_t> ends_;          // Parameters, Results and sinks
    std::vector<std::uint8_t> content_;       // [nodes] bits kComputes and kOperation

    std::vector<std::uint8_t> boundary_;    // [edges] 1: the input is a boundary of a submodel
    std::vector<std::int32_t> boundaries_;  // these edges, ascending
    std::vector<std::int32_t> component_;   // [nodes] dense number
    std::vector<std::int32_t> parent_;      // [nodes] union-find; no parent has a higher number than its child
    std::int32_t components_ = 0;
    std::vector<std::uint8_t> changed_;  // [components] 1: it got a boundary since it was found
    std::int64_t work_left_ = 0;

    // Strongly connected components of the quotient graph: those of several components, and, after
    // find_cyclic_components, those with a boundary inside.
    std::vector<std::int32_t> scc_;  // [components] number, -1: in none
    std::int32_t sccs_ = 0;
    std::vector<std::int32_t> scc_bits_;  // [cyclic components] number of bits

    // Bit sets over the boundaries of the components of each cyclic component: one bit per boundary input, one per
    // Parameter, and one for all constants that only one node consumes (they reach the same nodes, so that the rule
    // cannot distinguish them).
    std::size_t words_ = 0;
    std::vector<std::int32_t> edge_bit_;      // [edges] bit, -1: no boundary of a cyclic component
    std::vector<std::int32_t> node_bit_;      // [nodes] bit, -1: no graph input of a cyclic component
    std::vector<std::int32_t> bit_edge_;      // [cyclic components, 64 words] edge, -1: graph input
    std::vector<std::int32_t> row_;           // [nodes] row of depends_, -1: none
    std::vector<std::int32_t> words_of_row_;  // [nodes] number of words after which the row has no bits
    std::vector<std::uint64_t> depends_;      // [rows, words] boundaries that a node depends on
    std::vector<std::uint64_t> owned_;        // [components, words] boundaries of a component
    std::vector<std::uint64_t> entering_;     // [components, words] those at which other components' tensors enter
    std::vector<std::uint64_t> produced_;     // [components, words] those that it feeds within its cyclic component
    // [components, words] results of update_wanted, and the bits from which it collected them. wanted_ also has bits of
    // other components.
    std::vector<std::uint64_t> wanted_, left_, entered_;
    // [components] the words in which owned_ and produced_ have bits
    struct Words {
        std::size_t begin = 0, end = 0;
        void include(std::size_t word) {
            begin = begin == end ? word : std::min(begin, word);
            end = std::max(end, word + 1);
        }
    };
    std::vector<Words> owned_words_, produced_words_;
    std::vector<std::int32_t> only_consumer_;  // [nodes] the only consumer of a constant, by a single input

    StrongComponents strong_;
    std::vector<std::int32_t> quotient_ptr_, quotient_edge_, order_;
};

}  // namespace ov_hsdag
