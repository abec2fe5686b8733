// ov_hsdag._native, the policy's part: structural features, graph parsing, refinement.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "features.hpp"
#include "graph.hpp"
#include "parse.hpp"
#include "problem.hpp"
#include "refine.hpp"

namespace {

using namespace ov_hsdag;

struct Edges {
    std::vector<std::int32_t> source, target;
};

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

py::dict find_structure(std::int32_t nodes, const Array<std::int64_t>& edge_index, std::int32_t exact_nodes,
                        std::int32_t samples, std::uint64_t seed, std::int32_t threads) {
    const Edges edges = edges_of(edge_index, nodes);
    StructureOptions options;
    options.exact_nodes = exact_nodes;
    options.samples = samples;
    options.seed = seed;
    options.threads = threads;
    StructureFeatures found;
    {
        const py::gil_scoped_release release;
        found = structure_features(nodes, edges.source, edges.target, options);
    }
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

py::array_t<std::int32_t> parse_graph(std::int32_t nodes, const Array<std::int64_t>& edge_index,
                                      const Array<float>& scores, std::int32_t levels, std::int32_t min_clusters) {
    const Edges edges = edges_of(edge_index, nodes);
    if (scores.ndim() != 1) throw std::invalid_argument("expected 'scores' of shape [edges]");
    const std::span<const float> values(scores.data(), static_cast<std::size_t>(scores.size()));
    std::vector<std::int32_t> cluster;
    {
        const py::gil_scoped_release release;
        cluster = parse(nodes, edges.source, edges.target, values, levels, min_clusters);
    }
    return to_array(cluster);
}

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

std::unique_ptr<Refiner> make_refiner(const std::shared_ptr<Problem>& problem, const Array<std::int32_t>& coarse) {
    expect_shape(coarse, {problem->groups()}, "coarse");
    const std::vector<std::int32_t> coarse_groups = to_vector(coarse);
    const py::gil_scoped_release release;
    return std::make_unique<Refiner>(*problem, coarse_groups);
}

py::tuple refine(const Refiner& refiner, const Array<std::uint8_t>& placements, bool throughput, std::int64_t max_moves,
                 double budget_ms, std::int32_t threads, std::uint64_t seed, bool processor_time) {
    expect_placements(placements, refiner.groups(), refiner.devices());
    if (max_moves < 0 || !(budget_ms >= 0)) throw std::invalid_argument("expected no negative budget");
    const std::span<const std::uint8_t> data(placements.data(), static_cast<std::size_t>(placements.size()));
    RefineOptions options;
    options.throughput = throughput;
    options.max_moves = max_moves;
    options.budget_ms = budget_ms;
    options.processor_time = processor_time;
    options.threads = threads;
    options.seed = seed;
    Refined refined;
    {
        const py::gil_scoped_release release;
        refined = refiner.refine(data, options);
    }
    py::array_t<std::uint8_t> result({placements.shape(0), placements.shape(1)});
    std::copy(refined.placements.begin(), refined.placements.end(), result.mutable_data());
    return py::make_tuple(result, to_array(refined.scores));
}

}  // namespace

void bind_policy(py::module_& module) {
    module.def("structure_features", &find_structure, py::arg("nodes"), py::arg("edge_index"),
               py::arg("exact_nodes") = StructureOptions{}.exact_nodes, py::arg("samples") = StructureOptions{}.samples,
               py::arg("seed") = StructureOptions{}.seed, py::arg("threads") = 1,
               "Degrees, topological position, depth, height, fractal dimension and closeness of each node.");
    module.def("parse", &parse_graph, py::arg("nodes"), py::arg("edge_index"), py::arg("scores"), py::arg("levels"),
               py::arg("min_clusters"), "Clusters of nodes that dominant edges connect, int32 [nodes].");
    module.def("sum_rows", &sum_rows, py::arg("rows"), py::arg("index"), py::arg("size"),
               "Sums of the rows with the same index, float32 [size, columns]; 0 where there is none.");

    py::class_<Refiner>(module, "Refiner", "Local refinement of a problem's placements; coarse: int32 [groups].")
        .def(py::init(&make_refiner), py::arg("problem").none(false), py::arg("coarse"))
        .def("refine", &refine, py::arg("placements"), py::arg("throughput"), py::arg("max_moves") = 0,
             py::arg("budget_ms") = 0.0, py::arg("threads") = 1, py::arg("seed") = 0, py::arg("processor_time") = false,
             "placements: uint8 [batch, groups] → (placements, scores [batch] in µs).");
}
