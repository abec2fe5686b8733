// An OpenVINO model as the native core's arrays. ov_hsdag/model/graph.py extracts the same in Python: each language
// asks OpenVINO by itself, and a test compares what they find node by node. The rules on top of it are the core's
// alone.
#pragma once

#include <memory>

#include "colocation.hpp"
#include "openvino/core/node.hpp"

namespace ov_hsdag {

class ModelGraph {
public:
    // nodes: all nodes of a model (or of a part of it that no edge leaves), in topological order.
    explicit ModelGraph(ov::NodeVector nodes);

    ov::NodeVector nodes;

    // The constraints between the nodes, and their graph (without sizes in bytes: they are for costs).
    [[nodiscard]] const Legality& legality() const { return *legality_; }

private:
    std::shared_ptr<const Legality> legality_;
};

// What the rules read of the nodes.
NodeArrays node_arrays(const ov::NodeVector& nodes);

// Nodes in the order of ov::Model::get_ordered_ops for a model with these outputs and Parameters.
ov::NodeVector ordered(const ov::NodeVector& roots);

}  // namespace ov_hsdag
