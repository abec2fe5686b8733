// ov_hsdag._native, the placers' part: contiguous partitions.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "additive.hpp"
#include "bindings.hpp"
#include "contiguous.hpp"
#include "contiguous_search.hpp"
#include "orders.hpp"

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
    std::vector<Partition> found;
    {
        const py::gil_scoped_release release;
        found = contiguous_partitions(
            costs, {.any_order = any_order, .skip = skip, .sequences = sequences, .per_sequence = per_sequence});
    }
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

// Contiguous partitions of a problem's groups.
class Contiguous {
public:
    explicit Contiguous(const Problem& problem)
        : problem_(problem), model_(problem_.problem(), problem_.problem().group, problem_.node_orders().front()) {}

    [[nodiscard]] std::vector<std::vector<std::int32_t>> orders(std::int32_t random, std::uint64_t seed) const {
        std::vector<std::vector<std::int32_t>> result = problem_.group_orders();
        std::mt19937_64 generator(seed);
        const Problem& problem = problem_.problem();
        for (std::int32_t k = 0; k < random; ++k) {
            const auto nodes = random_branch_order(problem, problem_.node_orders().front(), generator);
            result.push_back(item_order(problem, problem.group, nodes));
        }
        return result;
    }

    // order: [groups] of `orders`.
    [[nodiscard]] std::vector<std::uint8_t> best(std::vector<std::int32_t> order, bool throughput,
                                                 const ContiguousOptions& wanted) const {
        std::vector<std::uint8_t> result;
        const ContiguousSearch search(problem_.problem(), model_, std::move(order), throughput);
        for (const ContiguousPlacement& found : search.best(wanted)) {
            const std::vector<std::uint8_t> placement = problem_.as_given<std::uint8_t>(found.placement);
            result.insert(result.end(), placement.begin(), placement.end());
        }
        return result;
    }

    [[nodiscard]] const OrderedProblem& problem() const { return problem_; }

private:
    OrderedProblem problem_;
    AdditiveModel model_;
};

py::array_t<std::int32_t> orders(const Contiguous& contiguous, std::int32_t random, std::uint64_t seed) {
    if (random < 0) throw std::invalid_argument("expected a number of random orders");
    const std::vector<std::vector<std::int32_t>> found = contiguous.orders(random, seed);
    const std::vector<std::int32_t>& number = contiguous.problem().numbers();
    std::vector<std::int32_t> given(number.size());
    for (std::size_t group = 0; group < number.size(); ++group) given[number[group]] = static_cast<std::int32_t>(group);
    py::array_t<std::int32_t> result({found.size(), number.size()});
    std::int32_t* next = result.mutable_data();
    for (const auto& order : found) {
        for (const std::int32_t group : order) *next++ = given[group];
    }
    return result;
}

py::array_t<std::uint8_t> best(const Contiguous& contiguous, const Array<std::int32_t>& order, bool throughput,
                               std::int32_t cuts, double effort, std::int32_t sequences, std::int32_t per_sequence,
                               bool whole, double filled, bool in_list_order) {
    const std::vector<std::int32_t>& number = contiguous.problem().numbers();
    const auto groups = static_cast<py::ssize_t>(number.size());
    expect_shape(order, {groups}, "order");
    std::vector<std::uint8_t> seen(number.size(), 0);
    std::vector<std::int32_t> ordered;
    for (const std::int32_t group : to_vector(order)) {
        if (group < 0 || group >= groups || seen[static_cast<std::size_t>(group)]++ != 0) {
            throw std::invalid_argument("expected each group once in 'order'");
        }
        ordered.push_back(number[static_cast<std::size_t>(group)]);
    }
    if (cuts < 2 || sequences < 1 || per_sequence < 1 || !(effort > 0) || !(filled > 0)) {
        throw std::invalid_argument("expected positive limits");
    }
    ContiguousOptions wanted{.cuts = cuts,
                             .sequence = {},
                             .whole = whole,
                             .filled = filled,
                             .effort = effort,
                             .sequences = sequences,
                             .per_sequence = per_sequence};
    if (in_list_order) {
        wanted.sequence.resize(static_cast<std::size_t>(contiguous.problem().problem().devices));
        std::iota(wanted.sequence.begin(), wanted.sequence.end(), 0);
    }
    std::vector<std::uint8_t> found;
    {
        const py::gil_scoped_release release;
        found = contiguous.best(std::move(ordered), throughput, wanted);
    }
    py::array_t<std::uint8_t> result(
        {static_cast<py::ssize_t>(found.size()) / std::max<py::ssize_t>(groups, 1), groups});
    std::copy(found.begin(), found.end(), result.mutable_data());
    return result;
}

}  // namespace

void bind_placers(py::module_& module) {
    module.def("contiguous_partitions", &find_partitions, py::arg("kind"), py::arg("throughput"), py::kw_only(),
               py::arg("span") = py::none(), py::arg("separable") = py::none(), py::arg("links") = py::none(),
               py::arg("any_order") = true, py::arg("skip") = false, py::arg("sequences") = 1,
               py::arg("per_sequence") = 1,
               "The best contiguous partitions of an order over devices (cpp_ext/contiguous.hpp) → (value [found], "
               "devices in sequence [found, D], -1 behind the last, bounds [found, D + 1]).");
    const ContiguousOptions by_default;
    py::class_<Contiguous>(module, "Contiguous", "Contiguous partitions of a problem's groups.")
        .def(py::init([](const std::shared_ptr<Problem>& problem) {
                 const py::gil_scoped_release release;
                 return std::make_unique<Contiguous>(*problem);
             }),
             py::arg("problem").none(false))
        .def("orders", &orders, py::arg("random") = 0, py::arg("seed") = 0,
             "Orders of the groups that do not depend on how nodes are numbered, and random ones that keep branches "
             "together behind them: int32 [orders, groups].")
        .def("best", &best, py::arg("order"), py::arg("throughput"), py::kw_only(), py::arg("cuts") = by_default.cuts,
             py::arg("effort") = by_default.effort, py::arg("sequences") = by_default.sequences,
             py::arg("per_sequence") = by_default.per_sequence, py::arg("whole") = by_default.whole,
             py::arg("filled") = by_default.filled, py::arg("in_list_order") = false,
             "The best partitions of an order (cpp_ext/contiguous_search.hpp): uint8 [found, groups].");
}
