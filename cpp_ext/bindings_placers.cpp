// ov_hsdag._native, the placers' part: contiguous partitions.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "contiguous.hpp"

namespace {

using namespace ov_hsdag;

py::tuple find_partitions(const Array<std::int32_t>& kind, bool throughput, const py::object& span,
                          const py::object& separable, const py::object& links, bool any_order, bool skip,
                          std::int32_t sequences, std::int32_t per_sequence) {
    PartitionCosts costs;
    costs.kinds = members_of(to_vector(kind));
    costs.throughput = throughput;
    const auto count = static_cast<py::ssize_t>(costs.kinds.size());
    py::ssize_t cuts = 0;
    if (span.is_none() == separable.is_none()) throw std::invalid_argument("expected one of 'span' and 'separable'");
    if (!span.is_none()) {
        const auto array = span.cast<Array<double>>();
        cuts = array.ndim() == 3 ? array.shape(1) : 0;
        expect_shape(array, {count, cuts, cuts}, "span");
        costs.span = to_vector(array);
    } else {
        const auto [work, fixed, blocked] =
            separable.cast<std::tuple<Array<double>, Array<double>, Array<std::uint8_t>>>();
        cuts = work.ndim() == 2 ? work.shape(1) : 0;
        expect_shape(work, {count, cuts}, "work");
        expect_shape(fixed, {count}, "fixed");
        expect_shape(blocked, {count, cuts - 1}, "blocked");
        costs.work = to_vector(work);
        costs.fixed = to_vector(fixed);
        costs.blocked = to_vector(blocked);
    }
    if (cuts < 2) throw std::invalid_argument("expected at least two cuts");
    costs.cuts = static_cast<std::int32_t>(cuts);
    if (!links.is_none()) {
        if (skip) throw std::invalid_argument("expected no links where devices may be skipped");
        const auto [enter, leave] = links.cast<std::tuple<Array<double>, Array<double>>>();
        expect_shape(enter, {count, count, cuts}, "enter");
        expect_shape(leave, {count, count, cuts}, "leave");
        costs.enter = to_vector(enter);
        costs.leave = to_vector(leave);
    }
    if (!any_order && static_cast<py::ssize_t>(costs.kinds.size()) != kind.size()) {
        throw std::invalid_argument("expected a kind for each device where their order is given");
    }
    const PartitionOptions options{
        .any_order = any_order, .skip = skip, .sequences = sequences, .per_sequence = per_sequence};
    const std::vector<Partition> found = without_gil([&] { return contiguous_partitions(costs, options); });
    const auto rows = static_cast<py::ssize_t>(found.size());
    py::array_t<double> value(rows);
    py::array_t<std::int32_t> device({rows, kind.size()}), bound({rows, kind.size() + 1});
    std::fill_n(device.mutable_data(), device.size(), -1);
    for (py::ssize_t row = 0; row < rows; ++row) {
        const Partition& partition = found[static_cast<std::size_t>(row)];
        value.mutable_at(row) = partition.value;
        std::copy(partition.devices.begin(), partition.devices.end(), device.mutable_data(row, 0));
        std::fill_n(bound.mutable_data(row, 0), kind.size() + 1, costs.cuts - 1);
        std::copy(partition.bounds.begin(), partition.bounds.end(), bound.mutable_data(row, 0));
    }
    return py::make_tuple(value, device, bound);
}

}  // namespace

void bind_placers(py::module_& module) {
    module.def("contiguous_partitions", &find_partitions, py::arg("kind"), py::arg("throughput"), py::kw_only(),
               py::arg("span") = py::none(), py::arg("separable") = py::none(), py::arg("links") = py::none(),
               py::arg("any_order") = true, py::arg("skip") = false, py::arg("sequences") = 1,
               py::arg("per_sequence") = 1,
               "The best contiguous partitions of an order over devices (cpp_ext/contiguous.hpp) → (value [found], "
               "devices in sequence [found, D], -1 behind the last, bounds [found, D + 1]).");
}
