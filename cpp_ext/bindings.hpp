// Conversions and checks of arrays that all parts of the Python module share. NumPy arrays are copied into vectors, or
// viewed as spans, and results are copied back.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "hetero.hpp"

namespace py = pybind11;

// Adds the classes and functions of each part to the module.
void bind_model(py::module_& module);
void bind_policy(py::module_& module);
void bind_search(py::module_& module);

namespace ov_hsdag {

// A contiguous array of T; arguments of other types and layouts are converted.
template <typename T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

// Copies all elements, row by row.
template <typename T>
std::vector<T> to_vector(const Array<T>& array) {
    return {array.data(), array.data() + array.size()};
}

// Calls `work` without the GIL and returns its result; `work` must not use Python.
template <typename Work>
auto without_gil(const Work& work) {
    const py::gil_scoped_release release;
    return work();
}

// Views all elements without a copy; empty for None.
template <typename T>
std::span<const T> to_span(const std::optional<Array<T>>& array) {
    if (!array) return {};
    return {array->data(), static_cast<std::size_t>(array->size())};
}

// Copies a vector into an array with one axis.
template <typename T>
py::array_t<T> to_array(const std::vector<T>& values) {
    return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

// Throws std::invalid_argument unless an array has the shape. name: of the argument, for the message.
inline void expect_shape(const py::array& array, const std::vector<py::ssize_t>& shape, const char* name) {
    bool same = array.ndim() == static_cast<py::ssize_t>(shape.size());
    std::string expected;
    py::ssize_t axis = 0;
    for (const py::ssize_t size : shape) {
        same = same && array.shape(axis++) == size;
        expected += (expected.empty() ? "[" : ", ") + std::to_string(size);
    }
    if (same) return;
    std::string got;
    for (axis = 0; axis < array.ndim(); ++axis) got += (axis == 0 ? "" : ", ") + std::to_string(array.shape(axis));
    throw std::invalid_argument(std::string("expected '") + name + "' of shape " + expected + "], got [" + got + "]");
}

// The splitting rule by its number. Throws std::invalid_argument for other numbers.
inline SplitRule split_rule(int rule) {
    if (rule < 0 || rule > 1) throw std::invalid_argument("expected a split rule of 0 or 1");
    return static_cast<SplitRule>(rule);
}

// Throws std::invalid_argument unless placements have shape [batch, groups] and all values are below `devices`.
inline void expect_placements(const Array<std::uint8_t>& placements, std::int32_t groups, std::int32_t devices) {
    if (placements.ndim() != 2 || placements.shape(1) != groups) {
        throw std::invalid_argument("expected 'placements' of shape [batch, " + std::to_string(groups) + "]");
    }
    const std::uint8_t* data = placements.data();
    if (std::any_of(data, data + placements.size(), [&](std::uint8_t device) { return device >= devices; })) {
        throw std::invalid_argument("expected device numbers below " + std::to_string(devices));
    }
}

}  // namespace ov_hsdag
