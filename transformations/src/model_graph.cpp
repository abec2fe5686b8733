// Extracts types, variables, shapes and movable tensors from OpenVINO nodes, by the definitions of
// ov_hsdag.model.graph. Two copies of the nodes give shapes: one with static inputs, for sizes, and one without
// values that plugins lose, for what HETERO can pass on.
#include "model_graph.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "openvino/core/graph_util.hpp"
#include "openvino/core/shape.hpp"
#include "openvino/op/constant.hpp"
#include "openvino/op/parameter.hpp"
#include "openvino/op/util/assign_base.hpp"
#include "openvino/op/util/read_value_base.hpp"

namespace ov_hsdag {
namespace {

// Sizes assumed for unbounded dimensions, the same as in ov_hsdag.model.graph.
constexpr std::int64_t kUnboundedBatch = 1;
constexpr std::int64_t kUnboundedDimension = 128;
// Largest number of elements of a tensor of dimensions; larger ones are data.
constexpr std::size_t kDimensions = 32;

NodeKind kind_of(const std::string& type) {
    if (type == "Parameter") return NodeKind::kParameter;
    if (type == "Constant") return NodeKind::kConstant;
    if (type == "Result") return NodeKind::kResult;
    return type == "Assign" ? NodeKind::kSink : NodeKind::kOp;
}

// The variable of a ReadValue or Assign; "" for other nodes.
std::string variable_of(const std::shared_ptr<ov::Node>& node) {
    if (const auto read = ov::as_type_ptr<ov::op::util::ReadValueBase>(node)) return read->get_variable_id();
    if (const auto assign = ov::as_type_ptr<ov::op::util::AssignBase>(node)) return assign->get_variable_id();
    return {};
}

// Whether HETERO can pass a tensor between submodels: it connects them with tensors that are empty at first, and cannot
// pass strings. known: what the submodel that computes the tensor knows of its shape in any case. The same as in
// ov_hsdag.model.graph.
bool is_movable(const ov::Output<ov::Node>& output, const ov::PartialShape& known) {
    if (output.get_element_type() == ov::element::string) return false;
    if (known.is_static()) return true;
    if (known.rank().is_dynamic()) return false;
    const ov::PartialShape& declared = output.get_partial_shape();
    for (std::size_t axis = 0; axis < known.size(); ++axis) {
        if (known[axis].is_static()) continue;
        if (declared[axis].is_static() || declared[axis].get_min_length() > 0) return false;
    }
    return true;
}

// Whether a node computes few integers, which may become dimensions.
bool holds_dimensions(const ov::Node& node) {
    const std::string type = node.get_type_name();
    if (type == "Parameter" || type == "ShapeOf" || node.get_output_size() == 0) return false;
    const ov::PartialShape& shape = node.get_output_partial_shape(0);
    if (shape.is_dynamic() || !node.get_output_element_type(0).is_integral_number()) return false;
    return ov::shape_size(shape.to_shape()) <= kDimensions;
}

// Whether a node takes dimensions of a tensor, all without bounds, as in ov_hsdag.model.graph.
bool takes_open_lengths(const ov::Node& node) {
    if (node.get_type_name() != std::string("Gather")) return false;
    const ov::Node* shape_of = node.get_input_node_ptr(0);
    const auto indices = ov::as_type<ov::op::v0::Constant>(node.get_input_node_ptr(1));
    if (shape_of->get_type_name() != std::string("ShapeOf") || indices == nullptr) return false;
    const ov::PartialShape& shape = shape_of->get_input_partial_shape(0);
    const auto taken = indices->cast_vector<std::int64_t>();
    if (shape.rank().is_dynamic() || taken.empty()) return false;
    const std::int64_t rank = shape.rank().get_length();
    return std::all_of(taken.begin(), taken.end(), [&](std::int64_t index) {
        const std::int64_t axis = index < 0 ? index + rank : index;
        return axis >= 0 && axis < rank && shape[axis] == ov::Dimension::dynamic();
    });
}

// The nodes whose values plugins do not propagate to the dimensions that depend on them: dimensions that were converted
// from real numbers, and what is computed from these. The same as in ov_hsdag.model.graph.
std::unordered_set<const ov::Node*> lost_values(const ov::NodeVector& nodes) {
    std::unordered_set<const ov::Node*> lost;
    for (const auto& node : nodes) {
        if (!holds_dimensions(*node)) continue;
        const ov::OutputVector inputs = node->input_values();
        const bool converted =
            node->get_type_name() == std::string("Convert") && inputs[0].get_element_type().is_real();
        if (converted || std::any_of(inputs.begin(), inputs.end(), [&lost](const ov::Output<ov::Node>& input) {
                return lost.count(input.get_node()) != 0;
            })) {
            lost.insert(node.get());
        }
    }
    return lost;
}

// The size that is assumed for a dimension: its length, else its upper bound, else `otherwise`, but at least its lower
// bound.
std::int64_t bounded(const ov::Dimension& dimension, std::int64_t otherwise) {
    if (dimension.is_static()) return dimension.get_length();
    const std::int64_t upper = dimension.get_max_length();
    return upper > 0 && upper < INT32_MAX ? upper : std::max(otherwise, dimension.get_min_length());
}

// The static shape that is assumed for an input. The first dimension counts as a batch; an unknown rank is taken as 2.
ov::PartialShape static_shape(const ov::PartialShape& shape) {
    if (shape.rank().is_dynamic()) return ov::PartialShape{kUnboundedBatch, kUnboundedDimension};
    std::vector<ov::Dimension> dimensions;
    for (const ov::Dimension& dimension : shape) {
        dimensions.emplace_back(bounded(dimension, dimensions.empty() ? kUnboundedBatch : kUnboundedDimension));
    }
    return ov::PartialShape(std::move(dimensions));
}

// The shape that is assumed for a state, from its declared shape and that of its initial value; nothing if the declared
// shape is static or has no rank. The same as in ov_hsdag.model.graph.
std::optional<ov::PartialShape> state_shape(const ov::PartialShape& declared, const ov::PartialShape& start) {
    if (declared.is_static() || declared.rank().is_dynamic()) return std::nullopt;
    std::vector<ov::Dimension> dimensions;
    for (std::size_t axis = 0; axis < declared.size(); ++axis) {
        const bool begun = start.rank().is_static() && start[axis].is_static() && start[axis].get_length() > 0;
        dimensions.emplace_back(begun ? start[axis].get_length()
                                      : bounded(declared[axis], axis == 0 ? kUnboundedBatch : kUnboundedDimension));
    }
    return ov::PartialShape(std::move(dimensions));
}

// The arrays for the constructor of Graph, made from a list of nodes.
struct Arrays {
    std::vector<NodeKind> kinds;
    std::vector<std::int32_t> input_ptr{0}, inputs, output_ptr{0};
};

// nodes: in topological order.
Arrays arrays_of(const ov::NodeVector& nodes) {
    Arrays arrays;
    std::unordered_map<const ov::Node*, std::size_t> number;
    for (const auto& node : nodes) {
        number.emplace(node.get(), arrays.kinds.size());
        arrays.kinds.push_back(kind_of(node->get_type_name()));
        for (const auto& value : node->input_values()) {
            const std::size_t source = number.at(value.get_node());
            arrays.inputs.push_back(arrays.output_ptr[source] + static_cast<std::int32_t>(value.get_index()));
        }
        arrays.input_ptr.push_back(static_cast<std::int32_t>(arrays.inputs.size()));
        // For HETERO a Result has no tensor of its own.
        const bool result = arrays.kinds.back() == NodeKind::kResult;
        arrays.output_ptr.push_back(arrays.output_ptr.back() +
                                    (result ? 0 : static_cast<std::int32_t>(node->get_output_size())));
    }
    return arrays;
}

// The graph, with all sizes in bytes 0.
Graph graph_of(Arrays arrays) {
    std::vector<std::int64_t> output_bytes(static_cast<std::size_t>(arrays.output_ptr.back()));
    std::vector<std::int64_t> weight_bytes(arrays.kinds.size());
    return {std::move(arrays.kinds),      std::move(arrays.input_ptr), std::move(arrays.inputs),
            std::move(arrays.output_ptr), std::move(output_bytes),     std::move(weight_bytes)};
}

// The outputs of all nodes except Results, in their order.
ov::OutputVector outputs_of(const ov::NodeVector& nodes) {
    ov::OutputVector outputs;
    for (const auto& node : nodes) {
        if (kind_of(node->get_type_name()) == NodeKind::kResult) continue;
        for (const auto& output : node->outputs()) outputs.push_back(output);
    }
    return outputs;
}

// A copy of nodes without Results: its outputs, and the nodes that must be kept alive for them.
struct Copy {
    ov::OutputVector outputs;  // [outputs]
    ov::NodeVector kept;
};

// Returns the shape of the Parameter that replaces an output; nothing if the output is not replaced.
using ShapeOfParameter = std::function<std::optional<ov::PartialShape>(const ov::Output<ov::Node>&)>;

// Copies nodes, and replaces outputs for which `shape_of` returns a shape by Parameters. size_states: states that grow
// are replaced by Parameters of static shapes. Returns nothing if the shapes do not fit together.
std::optional<Copy> copy_of(const ov::NodeVector& nodes, const ShapeOfParameter& shape_of, bool size_states = false) {
    Copy made;
    std::unordered_map<const ov::Node*, ov::OutputVector> copies;
    std::size_t expected = 0;
    try {
        for (const auto& node : nodes) {
            const std::string type = node->get_type_name();
            if (type == "Result") continue;
            expected += node->get_output_size();
            ov::OutputVector outputs;
            for (const auto& output : node->outputs()) {
                if (const auto shape = shape_of(output)) {
                    outputs.push_back(
                        std::make_shared<ov::op::v0::Parameter>(output.get_element_type(), *shape)->output(0));
                }
            }
            if (outputs.empty() && size_states && ov::is_type<ov::op::util::ReadValueBase>(node)) {
                const auto& inputs = node->input_values();
                const ov::PartialShape start =
                    inputs.empty() ? ov::PartialShape::dynamic()
                                   : copies.at(inputs[0].get_node()).at(inputs[0].get_index()).get_partial_shape();
                if (const auto shape = state_shape(node->get_output_partial_shape(0), start)) {
                    outputs.push_back(
                        std::make_shared<ov::op::v0::Parameter>(node->get_output_element_type(0), *shape)->output(0));
                }
            }
            if (outputs.empty() && size_states && type == "Assign") {
                const ov::Output<ov::Node> value = node->input_value(0);
                const auto& shape = copies.at(value.get_node()).at(value.get_index()).get_partial_shape();
                outputs.push_back(
                    std::make_shared<ov::op::v0::Parameter>(node->get_output_element_type(0), shape)->output(0));
            }
            if (outputs.empty() && type == "Assign") {  // a copy would change the variable, which both would share
                outputs = node->outputs();
            } else if (outputs.empty()) {
                ov::OutputVector inputs;
                for (const auto& value : node->input_values()) {
                    inputs.push_back(copies.at(value.get_node()).at(value.get_index()));
                }
                outputs = node->clone_with_new_inputs(inputs)->outputs();
            }
            for (const auto& output : outputs) made.kept.push_back(output.get_node_shared_ptr());
            made.outputs.insert(made.outputs.end(), outputs.begin(), outputs.end());
            copies.emplace(node.get(), std::move(outputs));
        }
    } catch (const std::exception&) {
        return std::nullopt;
    }
    if (made.outputs.size() != expected) return std::nullopt;
    return made;
}

// Copies the nodes with static inputs. Returns nothing if everything is static already, or the assumed sizes of inputs
// do not fit together.
std::optional<Copy> with_static_inputs(const ov::NodeVector& nodes, const ov::OutputVector& outputs) {
    const bool is_static = std::all_of(outputs.begin(), outputs.end(), [](const ov::Output<ov::Node>& output) {
        return output.get_partial_shape().is_static();
    });
    if (is_static) return std::nullopt;
    return copy_of(
        nodes,
        [](const ov::Output<ov::Node>& output) -> std::optional<ov::PartialShape> {
            if (output.get_node()->get_type_name() != std::string("Parameter")) return std::nullopt;
            return static_shape(output.get_partial_shape());
        },
        true);
}

// Copies the nodes without the values that plugins lose. Returns nothing if there are none, or an operation needs them.
std::optional<Copy> without_lost_values(const ov::NodeVector& nodes) {
    auto lost = lost_values(nodes);
    // A submodel does not know the values of open lengths that are its inputs.
    for (const auto& node : nodes) {
        if (takes_open_lengths(*node)) lost.insert(node.get());
    }
    if (lost.empty()) return std::nullopt;
    return copy_of(nodes, [&lost](const ov::Output<ov::Node>& output) -> std::optional<ov::PartialShape> {
        const bool is_parameter = output.get_node()->get_type_name() == std::string("Parameter");
        if (!is_parameter && lost.count(output.get_node()) == 0) return std::nullopt;
        return output.get_partial_shape();
    });
}

}  // namespace

NodeArrays node_arrays(const ov::NodeVector& nodes) {
    NodeArrays arrays;
    for (const auto& node : nodes) {
        arrays.types.emplace_back(node->get_type_name());
        arrays.variables.push_back(variable_of(node));
        arrays.open_lengths.push_back(takes_open_lengths(*node) ? 1 : 0);
    }
    const ov::OutputVector outputs = outputs_of(nodes);
    const std::optional<Copy> sized = with_static_inputs(nodes, outputs);  // for `dimensions`
    const std::optional<Copy> unsure = without_lost_values(nodes);         // for `movable`
    arrays.shape_ptr.push_back(0);
    for (std::size_t number = 0; number < outputs.size(); ++number) {
        const ov::PartialShape& declared = outputs[number].get_partial_shape();
        const ov::PartialShape& least = unsure ? unsure->outputs[number].get_partial_shape() : declared;
        const ov::PartialShape& shape = sized ? sized->outputs[number].get_partial_shape() : declared;
        arrays.movable.push_back(is_movable(outputs[number], least) ? 1 : 0);
        const bool ranked = declared.rank().is_static();
        arrays.ranks.push_back(ranked ? static_cast<std::int16_t>(declared.rank().get_length()) : std::int16_t{-1});
        if (shape.rank().is_dynamic()) {
            arrays.dimensions.push_back(kUnboundedDimension);
        } else {
            for (const ov::Dimension& one : shape) arrays.dimensions.push_back(bounded(one, kUnboundedDimension));
        }
        arrays.shape_ptr.push_back(static_cast<std::int32_t>(arrays.dimensions.size()));
    }
    return arrays;
}

ModelGraph::ModelGraph(ov::NodeVector given)
    : nodes(std::move(given)),
      legality_(std::make_shared<Legality>(std::make_shared<Graph>(graph_of(arrays_of(nodes))), node_arrays(nodes))) {}

ov::NodeVector ordered(const ov::NodeVector& roots) { return ov::topological_sort(roots); }

}  // namespace ov_hsdag
