// The computation graph as flat arrays. Nodes are numbered in topological order. An output is an output port of a node;
// an edge is an input port of a node with the output that feeds it. Outputs and edges are numbered node by node.
#pragma once

#include <cstdint>
#include <vector>

namespace ov_hsdag {

// Kinds that HETERO's splitting rule treats differently. Values are shared with ov_hsdag.model.graph.NodeKind.
enum class NodeKind : std::uint8_t { kOp = 0, kParameter = 1, kConstant = 2, kResult = 3, kSink = 4 };

// Largest sum of bytes of all tensors: it is exact as a double, and sums over 64 devices do not overflow. In Python it
// is ov_hsdag._native.MOST_BYTES.
constexpr std::int64_t kMostBytes = std::int64_t{1} << 53;

// Throws std::invalid_argument if a size is negative, or their sum exceeds kMostBytes. name: of the array, for the
// message.
void expect_bytes(const std::vector<std::int64_t>& bytes, const char* name);

// The graph has one edge per input port, so that several edges between the same nodes are distinct: the splitting rule
// works on input ports, transfers on output ports.
struct Graph {
    std::vector<NodeKind> kind;              // [nodes]
    std::vector<std::int32_t> input_ptr;     // [nodes + 1] edges of a node: input_ptr[node] … input_ptr[node + 1] - 1
    std::vector<std::int32_t> input_output;  // [edges] output port that feeds the input
    std::vector<std::int32_t> output_ptr;    // [nodes + 1] outputs of a node, likewise
    std::vector<std::int64_t> output_bytes;  // [outputs] bytes of the tensor
    std::vector<std::int64_t> weight_bytes;  // [nodes] bytes that are stored for the node

    // Derived by the constructor.
    std::vector<std::int32_t> source;         // [edges] node that feeds the input
    std::vector<std::int32_t> target;         // [edges] node that owns the input
    std::vector<std::int32_t> output_node;    // [outputs] node that owns the output
    std::vector<std::int32_t> consumers;      // [outputs] number of inputs fed
    std::vector<std::int32_t> consumer_ptr;   // [outputs + 1] range of each output in consumer_node
    std::vector<std::int32_t> consumer_node;  // [edges] owners of the inputs that an output feeds, by output
    std::vector<std::int32_t> compute_users;  // [nodes] number of inputs fed, Results not counted

    // [nodes] 1 if the node is connected with an operation or Assign, whatever the direction of edges.
    std::vector<std::uint8_t> computes;

    // Throws std::invalid_argument if the arrays do not describe a graph in topological order with sizes in bytes.
    Graph(std::vector<NodeKind> kinds, std::vector<std::int32_t> input_pointer, std::vector<std::int32_t> inputs,
          std::vector<std::int32_t> output_pointer, std::vector<std::int64_t> output_sizes,
          std::vector<std::int64_t> weight_sizes);

    [[nodiscard]] std::int32_t nodes() const { return static_cast<std::int32_t>(kind.size()); }
    [[nodiscard]] std::int32_t edges() const { return static_cast<std::int32_t>(input_output.size()); }
    [[nodiscard]] std::int32_t outputs() const { return static_cast<std::int32_t>(output_bytes.size()); }
    // The node that feeds an input port, -1 if the node has no such port.
    [[nodiscard]] std::int32_t input(std::int32_t node, std::int32_t port) const {
        const std::int32_t edge = input_ptr[node] + port;
        return edge < input_ptr[node + 1] ? source[edge] : -1;
    }
    // Whether a node is a Parameter or Constant, which need no tensor of another submodel.
    [[nodiscard]] bool is_graph_input(std::int32_t node) const {
        return kind[node] == NodeKind::kParameter || kind[node] == NodeKind::kConstant;
    }
};

}  // namespace ov_hsdag
