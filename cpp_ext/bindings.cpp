// ov_hsdag._native: NumPy arrays in, NumPy arrays out. Everything long runs without the GIL.
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

py::dict split_placement(const Graph& graph, const Array<std::uint8_t>& device, int rule) {
    expect_shape(device, {graph.nodes()}, "device");
    Split split;
    {
        const py::gil_scoped_release release;
        split = Splitter(graph, split_rule(rule)).split(device.data());
    }
    py::dict result;
    result["submodel"] = to_array(split.submodel);
    result["submodel_device"] = to_array(split.submodel_device);
    result["trivial"] = to_array(split.trivial).attr("astype")("bool");
    result["sortable"] = split.sortable;
    result["cyclic"] = to_array(split.cyclic).attr("astype")("bool");
    return result;
}

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
    std::size_t known = 0;
    Problem::for_each_array(*problem, [&](const char* name, auto& values, const std::vector<Axis>& axes, bool) {
        if (!arrays.contains(name)) return;
        const auto array = arrays[name].cast<Array<typename std::decay_t<decltype(values)>::value_type>>();
        std::vector<py::ssize_t> shape;
        for (const Axis axis : axes) shape.push_back(static_cast<py::ssize_t>(problem->size(axis)));
        expect_shape(array, shape, name);
        values = to_vector(array);
        ++known;
    });
    if (known != arrays.size()) throw py::type_error("expected the arrays of a problem, got others");
    problem->check();
    return problem;
}

// The arrays of a batch's breakdowns, one after the other.
py::dict breakdown_arrays(const Problem& problem, const std::vector<Breakdown>& breakdowns) {
    const auto batch = static_cast<py::ssize_t>(breakdowns.size());
    const auto devices = static_cast<py::ssize_t>(problem.devices);
    const auto nodes = static_cast<py::ssize_t>(problem.graph->nodes());
    py::array_t<double> node({batch, nodes}), fusion({batch, nodes});
    py::array_t<double> latency({batch, py::ssize_t{kTerms}}), busy({batch, devices, py::ssize_t{kTerms}});
    std::vector<std::int32_t> pointer{0}, outputs;
    std::vector<std::uint8_t> sources, targets;
    std::vector<std::int64_t> bytes;
    std::vector<double> us, source_us, target_us;
    for (py::ssize_t i = 0; i < batch; ++i) {
        const Breakdown& one = breakdowns[static_cast<std::size_t>(i)];
        std::copy(one.node_us.begin(), one.node_us.end(), node.mutable_data() + i * nodes);
        std::copy(one.fusion_us.begin(), one.fusion_us.end(), fusion.mutable_data() + i * nodes);
        std::copy(one.latency_us.begin(), one.latency_us.end(), latency.mutable_data() + i * kTerms);
        std::copy(one.busy_us.begin(), one.busy_us.end(), busy.mutable_data() + i * devices * kTerms);
        for (const Transfer& transfer : one.transfers) {
            outputs.push_back(transfer.output);
            sources.push_back(transfer.source);
            targets.push_back(transfer.target);
            bytes.push_back(transfer.bytes);
            us.push_back(transfer.us);
            source_us.push_back(transfer.source_us);
            target_us.push_back(transfer.target_us);
        }
        pointer.push_back(static_cast<std::int32_t>(outputs.size()));
    }
    py::dict result;
    result["node_us"] = node;
    result["fusion_us"] = fusion;
    result["latency_us"] = latency;
    result["busy_us"] = busy;
    result["transfer_ptr"] = to_array(pointer);
    result["transfer_output"] = to_array(outputs);
    result["transfer_source"] = to_array(sources);
    result["transfer_target"] = to_array(targets);
    result["transfer_bytes"] = to_array(bytes);
    result["transfer_us"] = to_array(us);
    result["transfer_source_us"] = to_array(source_us);
    result["transfer_target_us"] = to_array(target_us);
    return result;
}

py::dict evaluate(const Problem& problem, const Array<std::uint8_t>& placements, int threads,
                  std::optional<std::int64_t> most_work, bool breakdown) {
    const std::int32_t groups = problem.groups();
    expect_placements(placements, groups, problem.devices);
    const py::ssize_t batch = placements.shape(0);
    const auto devices = static_cast<py::ssize_t>(problem.devices);
    py::array_t<double> latency(batch), period(batch), busy({batch, devices});
    py::array_t<std::int64_t> memory({batch, devices}), bytes(batch);
    py::array_t<std::int32_t> submodels(batch), cuts(batch);
    py::array_t<std::uint8_t> infeasible(batch);
    std::vector<Breakdown> breakdowns(breakdown ? static_cast<std::size_t>(batch) : 0);
    {
        const auto* data = placements.data();
        auto* latency_out = latency.mutable_data();
        auto* period_out = period.mutable_data();
        auto* busy_out = busy.mutable_data();
        auto* memory_out = memory.mutable_data();
        auto* bytes_out = bytes.mutable_data();
        auto* submodels_out = submodels.mutable_data();
        auto* cuts_out = cuts.mutable_data();
        auto* infeasible_out = infeasible.mutable_data();
        const py::gil_scoped_release release;
        const auto workers = static_cast<std::size_t>(std::max(threads, 1));
        parallel_for(static_cast<std::size_t>(batch), workers, [&](std::size_t) {
            return [&, simulator = Simulator(problem)](std::size_t item) mutable {
                const auto i = static_cast<py::ssize_t>(item);
                const Evaluation& e =
                    simulator.evaluate(data + i * groups, most_work.value_or(std::numeric_limits<std::int64_t>::max()),
                                       breakdown ? &breakdowns[item] : nullptr);
                latency_out[i] = e.latency_us;
                period_out[i] = e.period_us;
                std::copy(e.busy_us.begin(), e.busy_us.end(), busy_out + i * devices);
                std::copy(e.memory_bytes.begin(), e.memory_bytes.end(), memory_out + i * devices);
                bytes_out[i] = e.transfer_bytes;
                submodels_out[i] = e.submodels;
                cuts_out[i] = e.cut_tensors;
                infeasible_out[i] = e.infeasible;
            };
        });
    }
    py::dict result;
    result["latency_us"] = latency;
    result["period_us"] = period;
    result["busy_us"] = busy;
    result["memory_bytes"] = memory;
    result["transfer_bytes"] = bytes;
    result["submodels"] = submodels;
    result["cut_tensors"] = cuts;
    result["infeasible"] = infeasible;
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
            const auto first = to_vector(a);
            const auto second = to_vector(b);
            const py::gil_scoped_release release;
            auto groups = merge_groups(nodes, first, second);
            const py::gil_scoped_acquire acquire;
            return to_array(groups);
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
            const py::gil_scoped_release release;
            auto merged = colocate_chains(graph, groups, labels, weights, most);
            const py::gil_scoped_acquire acquire;
            return to_array(merged);
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
            "evaluate", &evaluate, py::arg("placements"), py::arg("threads") = 1, py::arg("most_work") = py::none(),
            py::arg("breakdown") = false,
            "placements: uint8 [batch, groups] → dict of arrays [batch] and [batch, devices]; 'breakdown': the terms.");

    bind_policy(module);
    bind_placers(module);
    bind_search(module);
    bind_model(module);
}
