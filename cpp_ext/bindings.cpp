// The Python module ov_hsdag._native. It takes and returns NumPy arrays; long computations run without the GIL.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "canonical.hpp"
#include "coarsen.hpp"
#include "graph.hpp"
#include "groups.hpp"
#include "hetero.hpp"
#include "parallel.hpp"
#include "problem.hpp"
#include "simulate.hpp"

namespace {

using namespace ov_hsdag;

std::shared_ptr<Graph> make_graph(const Array<std::uint8_t>& kind, const Array<std::int32_t>& input_ptr,
                                  const Array<std::int32_t>& input_output, const Array<std::int32_t>& output_ptr,
                                  const Array<std::int64_t>& output_bytes, const Array<std::int64_t>& weight_bytes) {
    std::vector<NodeKind> kinds(static_cast<std::size_t>(kind.size()));
    std::transform(kind.data(), kind.data() + kind.size(), kinds.begin(),
                   [](std::uint8_t value) { return static_cast<NodeKind>(value); });
    return std::make_shared<Graph>(std::move(kinds), to_vector(input_ptr), to_vector(input_output),
                                   to_vector(output_ptr), to_vector(output_bytes), to_vector(weight_bytes));
}

// The split of one placement as arrays, named as in Split; `turn` is that of turns_of.
py::dict split_placement(const Graph& graph, const Array<std::uint8_t>& device, int rule) {
    expect_shape(device, {graph.nodes()}, "device");
    const Split split = without_gil([&]() -> Split { return Splitter(graph, split_rule(rule)).split(device.data()); });
    py::dict result;
    result["submodel"] = to_array(split.submodel);
    result["submodel_device"] = to_array(split.submodel_device);
    result["trivial"] = to_array(split.trivial).attr("astype")("bool");
    result["turn"] = to_array(turns_of(graph, split));
    result["sortable"] = split.sortable;
    result["cyclic"] = to_array(split.cyclic).attr("astype")("bool");
    return result;
}

// Makes a problem from the arrays that Problem::for_each_array names. Throws std::invalid_argument if an array does not
// fit, and TypeError for other names.
std::shared_ptr<Problem> make_problem(std::shared_ptr<Graph> graph, const Array<std::int32_t>& same_submodel, int rule,
                                      const py::kwargs& arrays) {
    auto problem = std::make_shared<Problem>();
    problem->graph = std::move(graph);
    problem->rule = split_rule(rule);
    expect_shape(same_submodel, {same_submodel.size() / 2, 2}, "same_submodel");
    problem->same_submodel = to_vector(same_submodel);
    if (arrays.contains("submodel_us")) {
        problem->devices = static_cast<std::int32_t>(arrays["submodel_us"].cast<Array<double>>().size());
    }
    std::size_t taken = 0;  // number of the arguments that are arrays of a problem
    Problem::for_each_array(*problem, [&](const char* name, auto& values, const std::vector<Axis>& axes, bool) {
        if (!arrays.contains(name)) return;
        const auto array = arrays[name].cast<Array<typename std::decay_t<decltype(values)>::value_type>>();
        std::vector<py::ssize_t> shape;
        for (const Axis axis : axes) shape.push_back(static_cast<py::ssize_t>(problem->size(axis)));
        expect_shape(array, shape, name);
        values = to_vector(array);
        ++taken;
    });
    if (taken != arrays.size()) throw py::type_error("expected the arrays of a problem, got others");
    problem->check();
    return problem;
}

// Makes an array of one number of each row.
template <typename Row, typename Number>
py::array_t<Number> column(const std::vector<Row>& rows, Number Row::* number) {
    py::array_t<Number> result(static_cast<py::ssize_t>(rows.size()));
    std::transform(rows.begin(), rows.end(), result.mutable_data(), [&](const Row& row) { return row.*number; });
    return result;
}

// Makes an array from several numbers of each row, [rows, shape...].
template <typename Row, typename Number>
py::array_t<Number> columns(const std::vector<Row>& rows, std::vector<Number> Row::* numbers,
                            std::vector<py::ssize_t> shape) {
    shape.insert(shape.begin(), static_cast<py::ssize_t>(rows.size()));
    py::array_t<Number> result(shape);
    Number* next = result.mutable_data();
    for (const Row& row : rows) next = std::copy((row.*numbers).begin(), (row.*numbers).end(), next);
    return result;
}

// The breakdowns of a batch as arrays: [batch, ...], and the transfers of all placements one after the other, with
// `transfer_ptr` [batch + 1] as the range of each placement.
py::dict breakdown_arrays(const Problem& problem, const std::vector<Breakdown>& breakdowns) {
    const py::ssize_t devices = problem.devices, nodes = problem.graph->nodes();
    std::vector<std::int32_t> pointer{0};
    std::vector<Transfer> transfers;
    for (const Breakdown& one : breakdowns) {
        transfers.insert(transfers.end(), one.transfers.begin(), one.transfers.end());
        pointer.push_back(static_cast<std::int32_t>(transfers.size()));
    }
    py::dict result;
    result["node_us"] = columns(breakdowns, &Breakdown::node_us, {nodes});
    result["fusion_us"] = columns(breakdowns, &Breakdown::fusion_us, {nodes});
    result["latency_us"] = columns(breakdowns, &Breakdown::latency_us, {py::ssize_t{kTerms}});
    result["busy_us"] = columns(breakdowns, &Breakdown::busy_us, {devices, py::ssize_t{kTerms}});
    result["transfer_ptr"] = to_array(pointer);
    result["transfer_output"] = column(transfers, &Transfer::output);
    result["transfer_source"] = column(transfers, &Transfer::source);
    result["transfer_target"] = column(transfers, &Transfer::target);
    result["transfer_bytes"] = column(transfers, &Transfer::bytes);
    result["transfer_us"] = column(transfers, &Transfer::us);
    result["transfer_source_us"] = column(transfers, &Transfer::source_us);
    result["transfer_target_us"] = column(transfers, &Transfer::target_us);
    return result;
}

// Evaluates a batch of placements on several threads. Returns the fields of Evaluation as arrays, [batch] and [batch,
// devices]. most_work: see Splitter::split; none: no limit. breakdown: whether to add the terms as 'breakdown'.
py::dict evaluate(const Problem& problem, const Array<std::uint8_t>& placements, int threads,
                  std::optional<std::int64_t> most_work, bool breakdown) {
    const std::int32_t groups = problem.groups();
    expect_placements(placements, groups, problem.devices);
    const auto batch = static_cast<std::size_t>(placements.shape(0));
    const std::int64_t most = most_work.value_or(std::numeric_limits<std::int64_t>::max());
    const std::uint8_t* data = placements.data();
    std::vector<Evaluation> found(batch);
    std::vector<Breakdown> breakdowns(breakdown ? batch : 0);
    without_gil([&] {
        parallel_for(batch, static_cast<std::size_t>(std::max(threads, 1)), [&](std::size_t) {
            return [&, simulator = Simulator(problem)](std::size_t i) mutable {
                const std::uint8_t* row = data + static_cast<std::ptrdiff_t>(i) * groups;
                found[i] = simulator.evaluate(row, most, breakdown ? &breakdowns[i] : nullptr);
            };
        });
    });
    py::dict result;
    result["latency_us"] = column(found, &Evaluation::latency_us);
    result["period_us"] = column(found, &Evaluation::period_us);
    result["busy_us"] = columns(found, &Evaluation::busy_us, {problem.devices});
    result["memory_bytes"] = columns(found, &Evaluation::memory_bytes, {problem.devices});
    result["transfer_bytes"] = column(found, &Evaluation::transfer_bytes);
    result["submodels"] = column(found, &Evaluation::submodels);
    result["cut_tensors"] = column(found, &Evaluation::cut_tensors);
    result["infeasible"] = column(found, &Evaluation::infeasible);
    if (breakdown) result["breakdown"] = breakdown_arrays(problem, breakdowns);
    return result;
}

}  // namespace

PYBIND11_MODULE(_native, module) {
    module.doc() = "Native core of ov_hsdag: graph, coarsening, HETERO's splitting rule, simulator.";
    module.attr("MOST_BYTES") = kMostBytes;

    py::class_<Graph, std::shared_ptr<Graph>>(module, "Graph", "Computation graph as CSR arrays, in topological order.")
        .def(py::init(&make_graph), py::arg("kind"), py::arg("input_ptr"), py::arg("input_output"),
             py::arg("output_ptr"), py::arg("output_bytes"), py::arg("weight_bytes"));

    module.def("split", &split_placement, py::arg("graph"), py::arg("device"), py::arg("rule"),
               "HETERO's split of one placement; device: uint8 [nodes].");

    module.def(
        "merge_groups",
        [](std::int32_t nodes, const Array<std::int32_t>& a, const Array<std::int32_t>& b) {
            const auto first = to_vector(a), second = to_vector(b);
            return to_array(without_gil([&] { return merge_groups(nodes, first, second); }));
        },
        py::arg("nodes"), py::arg("a"), py::arg("b"),
        "Dense group numbers [nodes] after merging the pairs (a[i], b[i]).");

    module.def(
        "colocate_chains",
        [](const Graph& graph, const Array<std::int32_t>& group, const Array<std::int64_t>& label,
           const Array<double>& weight, double most) {
            const auto groups = to_vector(group);
            const auto labels = to_vector(label);
            const auto weights = to_vector(weight);
            return to_array(without_gil([&] { return colocate_chains(graph, groups, labels, weights, most); }));
        },
        py::arg("graph"), py::arg("group"), py::arg("label"), py::arg("weight"), py::arg("most"),
        "Chains of groups merged by HSDAG's co-location rule, while they weigh at most `most`; dense group numbers "
        "[nodes].");

    py::class_<Problem, std::shared_ptr<Problem>>(module, "Problem",
                                                  "A placement problem; the arrays of ov_hsdag's PlacementProblem.")
        .def(py::init(&make_problem), py::arg("graph").none(false), py::kw_only(), py::arg("same_submodel"),
             py::arg("rule"))
        .def_property_readonly("kinds", [](const Problem& problem) { return to_array(problem.kinds()); })
        .def(
            "canonical_order",
            [](const Problem& problem, const Array<std::int64_t>& labels) {
                return to_array(without_gil([&] {
                    return canonical_order(problem, {labels.data(), static_cast<std::size_t>(labels.size())});
                }));
            },
            py::arg("labels"), "labels: int64 [nodes] → int32 [nodes] (cpp_ext/canonical.hpp).")
        .def(
            "evaluate", &evaluate, py::arg("placements"), py::arg("threads") = 1, py::arg("most_work") = py::none(),
            py::arg("breakdown") = false,
            "placements: uint8 [batch, groups] → dict of arrays [batch] and [batch, devices]; 'breakdown': the terms.");

    bind_policy(module);
    bind_search(module);
    bind_model(module);
}
