// Extracts the native core's arrays from an OpenVINO model. ov_hsdag/model/graph.py does the same in Python, and a test
// compares both node by node. Only the core has the rules that use these arrays.
#pragma once

#include <memory>

#include "colocation.hpp"
#include "openvino/core/node.hpp"

namespace ov_hsdag {

// The nodes of a model with the constraints between them.
class ModelGraph {
public:
    // nodes: all nodes of a model, or of a part without edges to the rest, in topological order.
    explicit ModelGraph(ov::NodeVector nodes);

    ov::NodeVector nodes;

    // The constraints between the nodes, and their graph, without sizes in bytes, which only costs need.
    [[nodiscard]] const Legality& legality() const { return *legality_; }

private:
    std::shared_ptr<const Legality> legality_;
};

// The properties of the nodes that the rules use. nodes: in topological order.
NodeArrays node_arrays(const ov::NodeVector& nodes);

// The nodes above and including `roots`, in the order of ov::Model::get_ordered_ops of a model with these outputs and
// Parameters.
ov::NodeVector ordered(const ov::NodeVector& roots);

}  // namespace ov_hsdag
