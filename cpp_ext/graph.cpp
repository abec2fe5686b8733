// Checks the arrays of a graph and derives the others: ends of edges, consumers by output, and which connected parts
// compute something.
#include "graph.hpp"

#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "groups.hpp"

namespace ov_hsdag {
namespace {

// Throws std::invalid_argument unless `pointer` has non-decreasing offsets of `rows` rows, from 0 to `entries`.
void check_pointer(const std::vector<std::int32_t>& pointer, std::size_t rows, std::size_t entries, const char* name) {
    const bool sized =
        pointer.size() == rows + 1 && pointer.front() == 0 && static_cast<std::size_t>(pointer.back()) == entries;
    bool sorted = sized;
    for (std::size_t i = 0; sorted && i < rows; ++i) sorted = pointer[i] <= pointer[i + 1];
    if (!sorted) {
        throw std::invalid_argument(std::string("expected '") + name + "' to hold " + std::to_string(rows + 1) +
                                    " non-decreasing offsets from 0 to " + std::to_string(entries));
    }
}

}  // namespace

void expect_bytes(const std::vector<std::int64_t>& bytes, const char* name) {
    std::int64_t left = kMostBytes;
    for (const std::int64_t size : bytes) {
        if (size < 0 || size > left) {
            throw std::invalid_argument(std::string("expected sizes in bytes that a machine can have in '") + name +
                                        "'");
        }
        left -= size;
    }
}

Graph::Graph(std::vector<NodeKind> kinds, std::vector<std::int32_t> input_pointer, std::vector<std::int32_t> inputs,
             std::vector<std::int32_t> output_pointer, std::vector<std::int64_t> output_sizes,
             std::vector<std::int64_t> weight_sizes)
    : kind(std::move(kinds)),
      input_ptr(std::move(input_pointer)),
      input_output(std::move(inputs)),
      output_ptr(std::move(output_pointer)),
      output_bytes(std::move(output_sizes)),
      weight_bytes(std::move(weight_sizes)) {
    check_pointer(input_ptr, kind.size(), input_output.size(), "input_ptr");
    check_pointer(output_ptr, kind.size(), output_bytes.size(), "output_ptr");
    if (weight_bytes.size() != kind.size())
        throw std::invalid_argument("expected one entry of 'weight_bytes' per node");
    for (const NodeKind value : kind) {
        if (value > NodeKind::kSink) throw std::invalid_argument("expected node kinds from 0 to 4");
    }
    expect_bytes(output_bytes, "output_bytes");
    expect_bytes(weight_bytes, "weight_bytes");

    output_node.resize(output_bytes.size());
    for (std::int32_t node = 0; node < nodes(); ++node) {
        for (std::int32_t o = output_ptr[node]; o < output_ptr[node + 1]; ++o) output_node[o] = node;
    }
    source.resize(input_output.size());
    target.resize(input_output.size());
    consumers.assign(output_bytes.size(), 0);
    compute_users.assign(kind.size(), 0);
    for (std::int32_t node = 0; node < nodes(); ++node) {
        for (std::int32_t e = input_ptr[node]; e < input_ptr[node + 1]; ++e) {
            const std::int32_t output = input_output[e];
            if (output < 0 || output >= outputs() || output_node[output] >= node) {
                throw std::invalid_argument("expected nodes in topological order: input " + std::to_string(e) +
                                            " of node " + std::to_string(node) + " is fed by output " +
                                            std::to_string(output));
            }
            source[e] = output_node[output];
            target[e] = node;
            ++consumers[output];
            if (kind[node] != NodeKind::kResult) ++compute_users[source[e]];
        }
    }

    consumer_ptr.assign(output_bytes.size() + 1, 0);
    std::partial_sum(consumers.begin(), consumers.end(), consumer_ptr.begin() + 1);
    consumer_node.resize(input_output.size());
    std::vector<std::int32_t> next(consumer_ptr.begin(), consumer_ptr.end() - 1);
    for (std::int32_t e = 0; e < edges(); ++e) consumer_node[next[input_output[e]]++] = target[e];

    const std::vector<std::int32_t> part = merge_groups(nodes(), source, target);
    std::vector<std::uint8_t> part_computes(kind.size(), 0);
    for (std::int32_t node = 0; node < nodes(); ++node) {
        if (kind[node] == NodeKind::kOp || kind[node] == NodeKind::kSink) part_computes[part[node]] = 1;
    }
    computes.resize(kind.size());
    for (std::int32_t node = 0; node < nodes(); ++node) computes[node] = part_computes[part[node]];
}

}  // namespace ov_hsdag
