// The part of ov_hsdag._native for policies: structural features, graph parsing, and sums of rows for the forward pass.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "features.hpp"
#include "graph.hpp"
#include "parse.hpp"

namespace {

using namespace ov_hsdag;

struct Edges {
    std::vector<std::int32_t> source, target;  // [edges] node numbers
};

// Converts an edge index, [2, edges], sources in the first row. Throws std::invalid_argument for numbers that are no
// node.
Edges edges_of(const Array<std::int64_t>& edge_index, std::int32_t nodes) {
    if (edge_index.ndim() != 2 || edge_index.shape(0) != 2) {
        throw std::invalid_argument("expected 'edge_index' of shape [2, edges]");
    }
    const py::ssize_t edges = edge_index.shape(1);
    Edges result;
    for (py::ssize_t row = 0; row < 2; ++row) {
        const std::int64_t* begin = edge_index.data() + row * edges;
        if (std::any_of(begin, begin + edges, [&](std::int64_t node) { return node < 0 || node >= nodes; })) {
            throw std::invalid_argument("expected node numbers below " + std::to_string(nodes) + " in 'edge_index'");
        }
        (row == 0 ? result.source : result.target).assign(begin, begin + edges);
    }
    return result;
}

// The fields of StructureFeatures as arrays, [nodes].
py::dict find_structure(std::int32_t nodes, const Array<std::int64_t>& edge_index, std::int32_t threads) {
    const Edges edges = edges_of(edge_index, nodes);
    const auto found = without_gil([&] { return structure_features(nodes, edges.source, edges.target, threads); });
    py::dict result;
    result["in_degree"] = to_array(found.in_degree);
    result["out_degree"] = to_array(found.out_degree);
    result["position"] = to_array(found.position);
    result["depth"] = to_array(found.depth);
    result["height"] = to_array(found.height);
    result["fractal_dimension"] = to_array(found.fractal_dimension);
    result["closeness"] = to_array(found.closeness);
    return result;
}

// See parse.hpp. edge_index: [2, edges]. scores: [edges].
py::array_t<std::int32_t> parse_graph(std::int32_t nodes, const Array<std::int64_t>& edge_index,
                                      const Array<float>& scores, std::int32_t levels, std::int32_t min_clusters) {
    const Edges edges = edges_of(edge_index, nodes);
    if (scores.ndim() != 1) throw std::invalid_argument("expected 'scores' of shape [edges]");
    const std::span<const float> values(scores.data(), static_cast<std::size_t>(scores.size()));
    return to_array(
        without_gil([&] { return parse(nodes, edges.source, edges.target, values, levels, min_clusters); }));
}

// Sums rows by their index. rows: [rows, columns]. index: [rows] row of the result, below `size`. Returns [size,
// columns]; rows of the result without any are 0.
py::array_t<float> sum_rows(const Array<float>& rows, const Array<std::int64_t>& index, std::int32_t size) {
    if (rows.ndim() != 2) throw std::invalid_argument("expected 'rows' of shape [rows, columns]");
    expect_shape(index, {rows.shape(0)}, "index");
    const std::int64_t* target = index.data();
    if (std::any_of(target, target + index.size(), [&](std::int64_t row) { return row < 0 || row >= size; })) {
        throw std::invalid_argument("expected an 'index' below " + std::to_string(size));
    }
    const py::ssize_t columns = rows.shape(1);
    py::array_t<float> result({static_cast<py::ssize_t>(size), columns});
    float* sums = result.mutable_data();
    std::fill(sums, sums + result.size(), 0.0F);
    const float* row = rows.data();
    for (py::ssize_t i = 0; i < rows.shape(0); ++i, row += columns) {
        std::transform(row, row + columns, sums + target[i] * columns, sums + target[i] * columns, std::plus<>{});
    }
    return result;
}

}  // namespace

void bind_policy(py::module_& module) {
    module.def("structure_features", &find_structure, py::arg("nodes"), py::arg("edge_index"), py::arg("threads") = 1,
               "Degrees, topological position, depth, height, fractal dimension and closeness of each node.");
    module.def("parse", &parse_graph, py::arg("nodes"), py::arg("edge_index"), py::arg("scores"), py::arg("levels"),
               py::arg("min_clusters"), "Clusters of nodes that dominant edges connect, int32 [nodes].");
    module.def("sum_rows", &sum_rows, py::arg("rows"), py::arg("index"), py::arg("size"),
               "Sums of the rows with the same index, float32 [size, columns]; 0 where there is none.");
}
