// How OpenVINO's HETERO plugin splits a model whose nodes carry affinities.
//
// Re-created from the behaviour of openvinotoolkit/openvino, src/plugins/hetero/src/subgraph_collector.cpp
// (SubgraphCollector; the later rule is of pull request 36126): nodes of
// equal affinity that are connected form a submodel; where submodels would wait for each other in a cycle, further
// inputs become boundaries until the cycle is gone.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "graph.hpp"
#include "strong_components.hpp"

namespace ov_hsdag {

// The release that runs the model decides.
enum class SplitRule : std::uint8_t {
    kClassic = 0,  // up to 2026.2
    kScc = 1,  // from 2026.3: inputs where a cycle comes back count as its boundaries too, and what is still cyclic is
               // taken apart node by node
};

// Of a release as it names itself: "2026.4.1-22982-…". Source: the plugin's subgraph_collector.cpp,
// openvinotoolkit/openvino pull request 36126. Checked against the plugins of 2025.4, 2026.2 and 2026.4 on random
// graphs.
SplitRule split_rule_of(const std::string& openvino_version);

struct Split {
    std::vector<std::int32_t> submodel;         // [nodes] dense number, -1 for a node in no submodel (a lone constant)
    std::vector<std::uint8_t> submodel_device;  // [submodels]
    std::vector<std::uint8_t> trivial;  // [submodels] 1 where it computes nothing (Parameter or Constant → Result)
    std::vector<std::uint8_t> cyclic;   // [nodes] 1 where the submodel waits for itself; empty when sortable
    std::int32_t rounds = 1;  // how often the nodes were walked: once, and again for each boundary that breaks a cycle
    bool sortable = true;     // false: HETERO gives up ("Cannot sort subgraphs!" and the like)

    [[nodiscard]] std::int32_t submodels() const { return static_cast<std::int32_t>(submodel_device.size()); }
};

// The turn in which HETERO compiles each submodel, [submodels]: first what waits for no other, then what waits for
// those (SubgraphCollector::run). Within a turn the order is a hash table's.
std::vector<std::int32_t> turns_of(const Graph& graph, const Split& split);

class Splitter {
public:
    Splitter(const Graph& graph, SplitRule rule);

    // device: [nodes]. most_work: words of the bit sets that cycles may take; a split that takes more counts as one
    // that cannot be sorted. The result is valid until the next call. Not thread safe: one Splitter per thread.
    const Split& split(const std::uint8_t* device, std::int64_t most_work = std::numeric_limits<std::int64_t>::max());

private:
    void find_components();
    // One round of the per-node rule; false when it added no boundary.
    bool split_cycles_once();
    // Fills scc_; false when there is none.
    bool find_cyclic_components();
    void collect_dependencies();
    void update_wanted(std::int32_t node);
    std::uint64_t* depends(std::int32_t node) { return &depends_[static_cast<std::size_t>(row_[node]) * words_]; }
    // Fills scc_ with the components on cycles of the quotient graph; false when there are none.
    bool find_cyclic_components(bool with_constants);
    void isolate_one_node();
    void number_submodels();

    const Graph& graph_;
    SplitRule rule_;
    Split split_;

    std::vector<std::uint8_t> affinity_;   // [nodes]
    std::vector<std::uint8_t> boundary_;   // [edges] 1: the input is the boundary of a submodel
    std::vector<std::int32_t> component_;  // [nodes] dense number
    std::vector<std::int32_t> parent_;     // [nodes] union-find
    std::int32_t components_ = 0;
    std::int64_t work_left_ = 0;

    // Strongly connected components of the quotient graph: those of several components, and, after
    // find_cyclic_components, those with a boundary inside.
    std::vector<std::int32_t> scc_;  // [components] -1: in none
    std::int32_t sccs_ = 0;
    std::vector<std::int32_t> scc_bits_;  // [cyclic components]

    // Bit sets over the boundaries of the components of each cyclic component: one bit per boundary input, one per
    // Parameter, and one for all constants that only one node consumes (they reach the same nodes, so the rule cannot
    // tell them apart).
    std::size_t words_ = 0;
    std::vector<std::int32_t> edge_bit_;  // [edges] -1: no boundary of a cyclic component
    std::vector<std::int32_t> node_bit_;  // [nodes] -1: no graph input of a cyclic component
    std::vector<std::int32_t> bit_edge_;  // [cyclic components, 64 words] -1: graph input
    std::vector<std::int32_t> row_;       // [nodes] -1: in no cyclic component
    std::vector<std::uint64_t> depends_;  // [rows, words] boundaries that a node depends on
    std::vector<std::uint64_t> owned_;    // [components, words] boundaries of a component
    std::vector<std::uint64_t>
        produced_;  // [components, words] boundaries that a component feeds within its cyclic component
    // [components, words] update_wanted's, and the bits from which it collected them.
    std::vector<std::uint64_t> wanted_, left_, entered_;
    std::vector<std::int32_t> shared_bit_;     // [nodes] bit of the constants that only this node consumes
    std::vector<std::int32_t> only_consumer_;  // [nodes] the node that alone consumes a constant, by one input

    StrongComponents strong_;
    std::vector<std::int32_t> quotient_ptr_, quotient_edge_, order_;
};

}  // namespace ov_hsdag
