// An OpenVINO model as the native core's graph; ov_hsdag/model/graph.py makes the same in Python.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph.hpp"
#include "openvino/core/node.hpp"

namespace ov_hsdag {

class ModelGraph {
public:
    // nodes: all nodes of a model (or of a part of it that no edge leaves), in topological order.
    explicit ModelGraph(const ov::NodeVector& nodes);

    ov::NodeVector nodes;
    std::vector<std::string> types;      // [nodes] "Convolution"
    std::vector<std::string> variables;  // [nodes] of a ReadValue or Assign, "" for others
    std::vector<std::uint8_t> movable;   // [outputs] whether HETERO can hand the tensor from submodel to submodel
    Graph graph;                         // without sizes: they are for costs

    // Whether an output is a scalar or a vector of at most `most` elements; unbounded inputs count as in Python.
    [[nodiscard]] bool is_short(std::int32_t output, std::int64_t most) const;

private:
    // A copy of the nodes, Results left out: its outputs, and what owns them.
    struct Copy {
        ov::OutputVector outputs;  // [outputs]
        ov::NodeVector kept;
    };

    // For the outputs of a node that a Parameter takes the place of, its shape.
    using ShapeOfParameter = std::function<std::optional<ov::PartialShape>(const ov::Output<ov::Node>&)>;

    // Nothing where the shapes do not fit together.
    [[nodiscard]] std::optional<Copy> copy(const ShapeOfParameter& shape_of) const;
    [[nodiscard]] const ov::Output<ov::Node>& sized(std::int32_t output) const;

    ov::OutputVector outputs_;           // [outputs]
    mutable std::optional<Copy> sized_;  // the same with static inputs, made when needed
};

// Nodes in the order of ov::Model::get_ordered_ops for a model with these outputs and Parameters.
ov::NodeVector ordered(const ov::NodeVector& roots);

}  // namespace ov_hsdag
