// The part of ov_hsdag._native for models: rules of legality, completion and repair. ov_hsdag.model has the Python
// side.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "bindings.hpp"
#include "colocation.hpp"
#include "complete.hpp"
#include "repair.hpp"

namespace ov_hsdag {
namespace {

// Flags as a boolean array.
py::array_t<bool> to_flags(const Flags& flags) {
    py::array_t<bool> array(static_cast<py::ssize_t>(flags.size()));
    std::transform(flags.begin(), flags.end(), array.mutable_data(), [](std::uint8_t flag) { return flag != 0; });
    return array;
}

// Pairs as an array, [pairs, 2].
py::array_t<std::int32_t> to_pairs(const Pairs& pairs) {
    py::array_t<std::int32_t> array({static_cast<py::ssize_t>(pairs.size()), py::ssize_t{2}});
    std::int32_t* out = array.mutable_data();
    for (const auto& [a, b] : pairs) {
        *out++ = a;
        *out++ = b;
    }
    return array;
}

// The pairs of an array, [pairs, 2]. Throws std::invalid_argument for other shapes.
Pairs from_pairs(const Array<std::int32_t>& array) {
    if (array.ndim() != 2 || array.shape(1) != 2) throw std::invalid_argument("expected pairs of shape [pairs, 2]");
    Pairs pairs;
    for (py::ssize_t row = 0; row < array.shape(0); ++row) pairs.emplace_back(array.at(row, 0), array.at(row, 1));
    return pairs;
}

std::shared_ptr<Legality> make_legality(std::shared_ptr<Graph> graph, std::vector<std::string> types,
                                        std::vector<std::string> variables, const Array<std::uint8_t>& movable,
                                        const Array<std::uint8_t>& open_lengths, const Array<std::int16_t>& ranks,
                                        const Array<std::int32_t>& shape_ptr, const Array<std::int64_t>& dimensions) {
    NodeArrays arrays{std::move(types), std::move(variables), to_vector(movable),   to_vector(open_lengths),
                      to_vector(ranks), to_vector(shape_ptr), to_vector(dimensions)};
    const py::gil_scoped_release release;
    return std::make_shared<Legality>(std::move(graph), std::move(arrays));
}

// Plans copies (complete.hpp). Returns (home [nodes], list of replicas as tuples (node, home, inputs)).
py::tuple replicate(const Legality& legality, const Array<std::int32_t>& home, const Array<std::uint8_t>& copyable) {
    const Replication plan = replication(legality, to_vector(home), to_vector(copyable));
    py::list replicas;
    for (const Replica& replica : plan.replicas) {
        replicas.append(py::make_tuple(replica.node, replica.home, replica.inputs));
    }
    return py::make_tuple(to_array(plan.home), replicas);
}

// The blocks of experts as tuples (tile, scatter, sum, nodes).
py::list to_experts(const Legality& legality) {
    py::list blocks;
    for (const Experts& block : legality.experts()) {
        blocks.append(py::make_tuple(block.tile, block.scatter, block.sum, to_array(block.nodes)));
    }
    return blocks;
}

}  // namespace
}  // namespace ov_hsdag

void bind_model(py::module_& module) {
    using namespace ov_hsdag;

    module.def(
        "split_rule_of", [](const std::string& version) { return static_cast<int>(split_rule_of(version)); },
        py::arg("openvino_version"), "HETERO's splitting rule of a release.");

    py::class_<Legality, std::shared_ptr<Legality>>(module, "Legality", "Constraints between the nodes of a model.")
        .def(py::init(&make_legality), py::arg("graph").none(false), py::arg("types"), py::arg("variables"),
             py::arg("movable"), py::arg("open_lengths"), py::arg("ranks"), py::arg("shape_ptr"), py::arg("dimensions"))
        .def_property_readonly("constant", [](const Legality& self) { return to_flags(self.constant()); })
        .def_property_readonly("replicable", [](const Legality& self) { return to_flags(self.replicable()); })
        .def_property_readonly("colocated", [](const Legality& self) { return to_pairs(self.colocated()); })
        .def_property_readonly("hosts", [](const Legality& self) { return to_array(self.hosts()); })
        .def_property_readonly("groups", [](const Legality& self) { return to_array(self.groups()); })
        .def_property_readonly("same_submodel", [](const Legality& self) { return to_pairs(self.same_submodel()); })
        .def_property_readonly("experts", &to_experts, "Blocks of experts: (tile, scatter, sum, nodes).")
        .def(
            "host_devices",
            [](const Legality& self, const Array<std::int32_t>& known, std::int32_t devices) {
                return to_array(host_devices(self, to_vector(known), devices));
            },
            py::arg("known"), py::arg("devices"),
            "Devices [nodes] of all nodes but replicable producers; known: int32 [nodes], -1 for nodes without a "
            "device.")
        .def("replication", &replicate, py::arg("home"), py::arg("copyable"),
             "Homes [nodes] of a model's nodes, and the copies that it needs in addition: (node, home, inputs that "
             "the copy feeds: (node, or nodes + number of a copy, port)).")
        .def(
            "settle",
            [](const Legality& self, const Array<std::int32_t>& device, std::int32_t devices, int rule) {
                return to_array(settle(self, to_vector(device), devices, split_rule(rule)));
            },
            py::arg("device"), py::arg("devices"), py::arg("rule"), "Legal devices [nodes] that HETERO can run.");

    module.def(
        "repair",
        [](const Graph& graph, const Array<std::int32_t>& group, const Array<std::int32_t>& same_submodel,
           const Array<std::uint8_t>& device, const Array<std::uint8_t>& supported, int rule) {
            if (supported.ndim() != 2) throw std::invalid_argument("expected 'supported' of shape [groups, devices]");
            const auto groups = to_vector(group);
            const auto allowed = to_vector(supported);
            const auto devices = static_cast<std::int32_t>(supported.shape(1));
            const Pairs pairs = from_pairs(same_submodel);
            return to_array(without_gil([&, start = to_vector(device)] {
                return repair(graph, groups, pairs, start, allowed, devices, split_rule(rule));
            }));
        },
        py::arg("graph"), py::arg("group"), py::arg("same_submodel"), py::arg("device"), py::arg("supported"),
        py::arg("rule"), "Devices [groups] that HETERO can run: see ov_hsdag.model.repair.");
}
