// ov_hsdag._native: NumPy arrays in, NumPy arrays out. Everything long runs without the GIL.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "bindings.hpp"
#include "coarsen.hpp"
#include "graph.hpp"
#include "groups.hpp"
#include "hetero.hpp"
#include "simulate.hpp"

namespace py = pybind11;

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

// Graph, costs and rule together: evaluates batches of placements on threads.
class BatchSimulator {
public:
    BatchSimulator(std::shared_ptr<Graph> graph, const Array<double>& node_us, const Array<std::uint8_t>& supported,
                   const Array<double>& transfer_us, const Array<double>& transfer_us_per_byte,
                   const Array<double>& submodel_us, const Array<std::int64_t>& memory_limit,
                   const Array<std::int32_t>& group, const Array<std::int32_t>& bonds,
                   const Array<std::int32_t>& fused_with, const Array<double>& torn_us, int rule)
        : graph_(std::move(graph)), rule_(split_rule(rule)) {
        costs_ = costs_of(*graph_, node_us, supported, transfer_us, transfer_us_per_byte, submodel_us, memory_limit,
                          group, bonds, fused_with, torn_us);
        for (const std::int32_t g : costs_.group) groups_ = std::max(groups_, g + 1);
    }

    [[nodiscard]] py::dict evaluate(const Array<std::uint8_t>& placements, int threads) const {
        if (placements.ndim() != 2) throw std::invalid_argument("expected 'placements' of shape [batch, groups]");
        const py::ssize_t batch = placements.shape(0);
        expect_shape(placements, {batch, groups_}, "placements");
        const std::uint8_t* data = placements.data();
        if (std::any_of(data, data + placements.size(), [&](std::uint8_t d) { return d >= costs_.devices; })) {
            throw std::invalid_argument("expected device numbers below " + std::to_string(costs_.devices));
        }
        const auto devices = static_cast<py::ssize_t>(costs_.devices);
        py::array_t<double> latency(batch), period(batch), busy({batch, devices});
        py::array_t<std::int64_t> memory({batch, devices}), bytes(batch);
        py::array_t<std::int32_t> submodels(batch), cuts(batch);
        py::array_t<std::uint8_t> infeasible(batch);
        {
            auto* latency_out = latency.mutable_data();
            auto* period_out = period.mutable_data();
            auto* busy_out = busy.mutable_data();
            auto* memory_out = memory.mutable_data();
            auto* bytes_out = bytes.mutable_data();
            auto* submodels_out = submodels.mutable_data();
            auto* cuts_out = cuts.mutable_data();
            auto* infeasible_out = infeasible.mutable_data();
            const py::gil_scoped_release release;
            std::atomic<py::ssize_t> next{0};
            const auto work = [&] {
                Simulator simulator(*graph_, costs_, rule_);
                for (py::ssize_t i = next++; i < batch; i = next++) {
                    const Evaluation& e = simulator.evaluate(data + i * groups_);
                    latency_out[i] = e.latency_us;
                    period_out[i] = e.period_us;
                    std::copy(e.busy_us.begin(), e.busy_us.end(), busy_out + i * devices);
                    std::copy(e.memory_bytes.begin(), e.memory_bytes.end(), memory_out + i * devices);
                    bytes_out[i] = e.transfer_bytes;
                    submodels_out[i] = e.submodels;
                    cuts_out[i] = e.cut_tensors;
                    infeasible_out[i] = e.infeasible;
                }
            };
            const auto workers =
                static_cast<std::size_t>(std::clamp<py::ssize_t>(threads, 1, std::max<py::ssize_t>(batch, 1)));
            std::vector<std::jthread> pool;
            for (std::size_t i = 1; i < workers; ++i) pool.emplace_back(work);
            work();
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
        return result;
    }

private:
    std::shared_ptr<Graph> graph_;
    SplitRule rule_;
    Costs costs_;
    std::int32_t groups_ = 0;
};

}  // namespace

void bind_policy(py::module_& module);  // bindings_policy.cpp

PYBIND11_MODULE(_native, module) {
    module.doc() = "Native core of ov_hsdag: graph, coarsening, HETERO's splitting rule, simulator.";

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

    py::class_<BatchSimulator>(module, "Simulator", "Evaluates batches of placements of one graph under given costs.")
        .def(
            py::init<std::shared_ptr<Graph>, const Array<double>&, const Array<std::uint8_t>&, const Array<double>&,
                     const Array<double>&, const Array<double>&, const Array<std::int64_t>&, const Array<std::int32_t>&,
                     const Array<std::int32_t>&, const Array<std::int32_t>&, const Array<double>&, int>(),
            py::arg("graph"), py::arg("node_us"), py::arg("supported"), py::arg("transfer_us"),
            py::arg("transfer_us_per_byte"), py::arg("submodel_us"), py::arg("memory_limit"), py::arg("group"),
            py::arg("bonds"), py::arg("fused_with"), py::arg("torn_us"), py::arg("rule"))
        .def("evaluate", &BatchSimulator::evaluate, py::arg("placements"), py::arg("threads") = 1,
             "placements: uint8 [batch, groups] → dict of arrays [batch] and [batch, devices].");

    bind_policy(module);
}
