// ov_hsdag._native, the multilevel search.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "multilevel.hpp"

namespace {

using namespace ov_hsdag;

std::unique_ptr<Multilevel> make_multilevel(const std::shared_ptr<Problem>& problem,
                                            const Array<std::int32_t>& coarse) {
    expect_shape(coarse, {problem->groups()}, "coarse");
    const std::vector<std::int32_t> coarse_groups = to_vector(coarse);
    const py::gil_scoped_release release;
    return std::make_unique<Multilevel>(*problem, coarse_groups);
}

py::tuple search(const Multilevel& multilevel, bool throughput, std::int64_t max_moves, double budget_ms,
                 std::uint64_t seed, std::int32_t target, const py::object& starts, const py::object& rating,
                 bool processor_time, const py::object& label) {
    Array<std::uint8_t> placements(std::vector<py::ssize_t>{0, multilevel.groups()});
    if (!starts.is_none()) placements = starts.cast<Array<std::uint8_t>>();
    expect_placements(placements, multilevel.groups(), multilevel.devices());
    Array<double> ratings(std::vector<py::ssize_t>{0});
    if (!rating.is_none()) {
        ratings = rating.cast<Array<double>>();
        expect_shape(ratings, {multilevel.tensors()}, "rating");
    }
    Array<std::uint64_t> labels(std::vector<py::ssize_t>{0});
    if (!label.is_none()) {
        labels = label.cast<Array<std::uint64_t>>();
        expect_shape(labels, {multilevel.groups()}, "labels");
    }
    if (max_moves < 0 || !(budget_ms >= 0) || target < 2) throw std::invalid_argument("expected positive limits");
    MultilevelOptions options;
    options.throughput = throughput;
    options.max_moves = max_moves;
    options.budget_ms = budget_ms;
    options.processor_time = processor_time;
    options.seed = seed;
    options.target = target;
    options.labels = {labels.data(), static_cast<std::size_t>(labels.size())};
    MultilevelResult result;
    {
        const std::span<const std::uint8_t> given(placements.data(), static_cast<std::size_t>(placements.size()));
        const std::span<const double> rated(ratings.data(), static_cast<std::size_t>(ratings.size()));
        const py::gil_scoped_release release;
        result = multilevel.search(given, rated, options);
    }
    py::array_t<double> progress({static_cast<py::ssize_t>(result.progress.size()), py::ssize_t{2}});
    for (std::size_t row = 0; row < result.progress.size(); ++row) {
        progress.mutable_at(static_cast<py::ssize_t>(row), 0) = result.progress[row].ms;
        progress.mutable_at(static_cast<py::ssize_t>(row), 1) = result.progress[row].score;
    }
    py::array_t<std::uint8_t> elites(
        {static_cast<py::ssize_t>(result.elites.size()), static_cast<py::ssize_t>(multilevel.groups())});
    std::uint8_t* row = elites.mutable_data();
    for (const Placement& elite : result.elites) row = std::copy(elite.begin(), elite.end(), row);
    return py::make_tuple(to_array(result.placement), result.score, progress, result.cycles, elites,
                          to_array(result.elite_scores));
}

py::array_t<std::int32_t> contracted(const Multilevel& multilevel, std::int32_t target) {
    if (target < 1) throw std::invalid_argument("expected a positive 'target'");
    std::vector<std::int32_t> item;
    {
        const py::gil_scoped_release release;
        item = multilevel.contracted(target);
    }
    return to_array(item);
}

}  // namespace

void bind_search(py::module_& module) {
    py::class_<Multilevel>(module, "Multilevel", "Multilevel search; coarse: int32 [groups].")
        .def(py::init(&make_multilevel), py::arg("problem").none(false), py::arg("coarse"))
        .def("search", &search, py::arg("throughput"), py::kw_only(), py::arg("max_moves") = 0,
             py::arg("budget_ms") = 0.0, py::arg("seed") = 0, py::arg("target") = MultilevelOptions{}.target,
             py::arg("starts") = py::none(), py::arg("rating") = py::none(), py::arg("processor_time") = false,
             py::arg("labels") = py::none(),
             "→ (placement uint8 [groups], score in µs, progress [improvements, 2]: ms and µs, cycles, elites uint8 "
             "[count, groups], their scores).")
        .def("contracted", &contracted, py::arg("target"),
             "Item of each group where the coarse groups are contracted to about `target`, int32 [groups].");
}
