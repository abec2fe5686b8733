// What the parts of the Python module share: arrays in and out, and the checks of a problem's arrays.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "graph.hpp"
#include "hetero.hpp"
#include "simulate.hpp"

namespace ov_hsdag {

namespace py = pybind11;

template <typename T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

template <typename T>
std::vector<T> to_vector(const Array<T>& array) {
    return {array.data(), array.data() + array.size()};
}

template <typename T>
py::array_t<T> to_array(const std::vector<T>& values) {
    return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

inline void expect_shape(const py::array& array, std::initializer_list<py::ssize_t> shape, const char* name) {
    bool same = array.ndim() == static_cast<py::ssize_t>(shape.size());
    std::string expected;
    py::ssize_t axis = 0;
    for (const py::ssize_t size : shape) {
        same = same && array.shape(axis++) == size;
        expected += (expected.empty() ? "[" : ", ") + std::to_string(size);
    }
    if (!same) throw std::invalid_argument(std::string("expected '") + name + "' of shape " + expected + "]");
}

inline SplitRule split_rule(int rule) {
    if (rule < 0 || rule > 1) throw std::invalid_argument("expected a split rule of 0 or 1");
    return static_cast<SplitRule>(rule);
}

// Throws std::invalid_argument where an array does not fit the graph or the number of devices.
inline Costs costs_of(const Graph& graph, const Array<double>& node_us, const Array<std::uint8_t>& supported,
                      const Array<double>& transfer_us, const Array<double>& transfer_us_per_byte,
                      const Array<double>& submodel_us, const Array<std::int64_t>& memory_limit,
                      const Array<std::int32_t>& group, const Array<std::int32_t>& bonds,
                      const Array<std::int32_t>& fused_with, const Array<double>& torn_us) {
    const py::ssize_t devices = submodel_us.size();
    if (devices < 1 || devices > 64) throw std::invalid_argument("expected 1 to 64 devices");
    expect_shape(node_us, {graph.nodes(), devices}, "node_us");
    expect_shape(supported, {graph.nodes(), devices}, "supported");
    expect_shape(transfer_us, {devices, devices}, "transfer_us");
    expect_shape(transfer_us_per_byte, {devices, devices}, "transfer_us_per_byte");
    expect_shape(memory_limit, {devices}, "memory_limit");
    expect_shape(group, {graph.nodes()}, "group");
    expect_shape(fused_with, {graph.nodes(), devices}, "fused_with");
    expect_shape(torn_us, {graph.nodes(), devices}, "torn_us");
    Costs costs;
    costs.devices = static_cast<std::int32_t>(devices);
    costs.node_us = to_vector(node_us);
    costs.supported = to_vector(supported);
    costs.transfer_us = to_vector(transfer_us);
    costs.transfer_us_per_byte = to_vector(transfer_us_per_byte);
    costs.submodel_us = to_vector(submodel_us);
    costs.memory_limit = to_vector(memory_limit);
    costs.group = to_vector(group);
    if (bonds.ndim() != 2 || bonds.shape(1) != 2) throw std::invalid_argument("expected 'bonds' of shape [pairs, 2]");
    costs.bonds = to_vector(bonds);
    for (const std::int32_t node : costs.bonds) {
        if (node < 0 || node >= graph.nodes()) throw std::invalid_argument("expected bonds between nodes");
    }
    costs.fused_with = to_vector(fused_with);
    costs.torn_us = to_vector(torn_us);
    for (const std::int32_t node : costs.fused_with) {
        if (node < -1 || node >= graph.nodes()) throw std::invalid_argument("expected fusions with nodes, or -1");
    }
    for (const std::int32_t g : costs.group) {
        if (g < 0) throw std::invalid_argument("expected group numbers from 0");
    }
    return costs;
}

}  // namespace ov_hsdag
