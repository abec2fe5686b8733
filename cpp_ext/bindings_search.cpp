// The part of ov_hsdag._native for searches: settings, minimum cut, contiguous partitions, and the search space with
// refinement, multilevel search and orders. Placements have the caller's numbers of groups.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "contiguous.hpp"
#include "contiguous_search.hpp"
#include "descents.hpp"
#include "min_cut.hpp"
#include "multilevel.hpp"
#include "refine.hpp"

namespace {

using namespace ov_hsdag;

// The settings as a dictionary of groups, which are dictionaries of numbers by name.
py::dict to_dict(const SearchSettings& settings) {
    py::dict result;
    SearchSettings::for_each(settings, [&](const std::string& group, const std::string& name, const auto& number) {
        if (!result.contains(group)) result[group.c_str()] = py::dict();
        result[group.c_str()][name.c_str()] = number;
    });
    return result;
}

// Converts the name of a preset, or a dictionary by group and name of numbers that differ from the default, into
// settings; None gives the default. Throws std::invalid_argument for other names and invalid numbers.
SearchSettings to_settings(const py::object& given) {
    if (given.is_none()) return {};
    if (py::isinstance<py::str>(given)) return SearchSettings::preset(given.cast<std::string>());
    SearchSettings settings;
    std::size_t left = 0;
    for (const auto& [group, numbers] : given.cast<py::dict>()) left += py::len(numbers);
    SearchSettings::for_each(settings, [&](const std::string& group, const std::string& name, auto& number) {
        if (!given.contains(group) || !given[group.c_str()].contains(name)) return;
        number = given[group.c_str()][name.c_str()].cast<std::decay_t<decltype(number)>>();
        --left;
    });
    if (left > 0) throw std::invalid_argument("expected the search's settings by group and name, got others");
    settings.check();
    return settings;
}

// coarse: coarse group of each colocation group, [groups].
std::unique_ptr<SearchSpace> make_space(const std::shared_ptr<Problem>& problem, const Array<std::int32_t>& coarse) {
    expect_shape(coarse, {problem->groups()}, "coarse");
    const std::vector<std::int32_t> coarse_groups = to_vector(coarse);
    const py::gil_scoped_release release;
    return std::make_unique<SearchSpace>(*problem, coarse_groups);
}

// See min_cut.hpp: 1 for nodes on the sink's side, [nodes].
py::array_t<std::uint8_t> min_cut(std::int32_t nodes, std::int32_t source, std::int32_t sink,
                                  const Array<std::int32_t>& start, const Array<std::int32_t>& end,
                                  const Array<double>& capacity) {
    const auto view = [](const auto& array) { return std::span(array.data(), static_cast<std::size_t>(array.size())); };
    return to_array(
        without_gil([&] { return sink_side_of_min_cut(nodes, source, sink, view(start), view(end), view(capacity)); }));
}

// Placements as an array, [placements, groups].
py::array_t<std::uint8_t> rows(const std::vector<Placement>& placements, std::int32_t groups) {
    py::array_t<std::uint8_t> result({static_cast<py::ssize_t>(placements.size()), py::ssize_t{groups}});
    std::uint8_t* row = result.mutable_data();
    for (const Placement& placement : placements) row = std::copy(placement.begin(), placement.end(), row);
    return result;
}

// Options for one thread. Throws std::invalid_argument for negative limits; 0 is no limit.
SearchOptions to_options(bool throughput, std::int64_t max_moves, double budget_ms, std::uint64_t seed,
                         const py::object& settings) {
    if (max_moves < 0 || !(budget_ms >= 0)) throw std::invalid_argument("expected no negative budget");
    return {.throughput = throughput,
            .max_moves = max_moves,
            .budget_ms = budget_ms,
            .seed = seed,
            .settings = to_settings(settings)};
}

// Refines placements, [batch, groups] (refine.hpp). Returns (placements [batch, groups], scores [batch] in µs).
py::tuple refine_batch(const SearchSpace& space, const Array<std::uint8_t>& placements, bool throughput,
                       std::int64_t max_moves, double budget_ms, std::int32_t threads, std::uint64_t seed,
                       const py::object& settings) {
    expect_placements(placements, space.groups(), space.devices());
    const std::span<const std::uint8_t> data(placements.data(), static_cast<std::size_t>(placements.size()));
    SearchOptions options = to_options(throughput, max_moves, budget_ms, seed, settings);
    options.threads = threads;
    const Refined refined = without_gil([&] { return refine(space, data, options); });
    py::array_t<std::uint8_t> result({placements.shape(0), placements.shape(1)});
    std::copy(refined.placements.begin(), refined.placements.end(), result.mutable_data());
    return py::make_tuple(result, to_array(refined.scores));
}

// The fields of a result as numbers and arrays; `progress` is [improvements, 2], ms and µs.
py::dict to_dict(const SearchSpace& space, const MultilevelResult& found) {
    py::array_t<double> progress({static_cast<py::ssize_t>(found.progress.size()), py::ssize_t{2}});
    double* next = progress.mutable_data();
    for (const Improvement& improvement : found.progress) {
        *next++ = improvement.ms;
        *next++ = improvement.score;
    }
    py::dict phases;
    phases["coarsen"] = found.phase_ms[static_cast<std::size_t>(Phase::kCoarsen)];
    phases["place"] = found.phase_ms[static_cast<std::size_t>(Phase::kPlace)];
    phases["refine"] = found.phase_ms[static_cast<std::size_t>(Phase::kRefine)];
    py::dict result;
    result["placement"] = to_array(found.placement);
    result["score"] = found.score;
    result["progress"] = progress;
    result["cycles"] = found.cycles;
    result["elites"] = rows(found.elites, space.groups());
    result["elite_scores"] = to_array(found.elite_scores);
    result["phases"] = phases;
    return result;
}

// One multilevel search (multilevel.hpp). starts: [count, groups] or None.
py::dict search(const SearchSpace& space, bool throughput, std::int64_t max_moves, double budget_ms, std::uint64_t seed,
                const std::optional<Array<std::uint8_t>>& starts, bool processor_time, const py::object& settings) {
    if (starts) expect_placements(*starts, space.groups(), space.devices());
    SearchOptions options = to_options(throughput, max_moves, budget_ms, seed, settings);
    options.processor_time = processor_time;
    return to_dict(space, without_gil([&] { return multilevel_search(space, to_span(starts), options); }));
}

// Independent searches (descents.hpp). starts: [count, groups] or None.
py::dict search_descents(const SearchSpace& space, bool throughput, std::int64_t max_moves, std::uint64_t seed,
                         std::int32_t threads, const std::optional<Array<std::uint8_t>>& starts,
                         const py::object& settings) {
    if (starts) expect_placements(*starts, space.groups(), space.devices());
    SearchOptions options = to_options(throughput, max_moves, 0.0, seed, settings);
    options.threads = threads;
    return to_dict(space, without_gil([&] { return search_until_agreed(space, to_span(starts), options); }));
}

// The structural orders of groups, followed by `random` random ones from a seed, [orders, groups].
py::array_t<std::int32_t> orders(const SearchSpace& space, std::int32_t random, std::uint64_t seed) {
    if (random < 0) throw std::invalid_argument("expected a number of random orders");
    const Problem& problem = space.problem();
    std::vector<std::vector<std::int32_t>> found = space.ordered.group_orders();
    std::mt19937_64 generator(seed);
    for (std::int32_t k = 0; k < random; ++k) {
        const auto nodes = random_branch_order(problem, space.ordered.node_orders().front(), generator);
        found.push_back(item_order(problem, problem.group, nodes));
    }
    const std::vector<std::int32_t>& number = space.ordered.numbers();
    std::vector<std::int32_t> given(number.size());
    for (std::size_t group = 0; group < number.size(); ++group) given[number[group]] = static_cast<std::int32_t>(group);
    py::array_t<std::int32_t> result({found.size(), number.size()});
    std::int32_t* next = result.mutable_data();
    for (const auto& order : found) {
        for (const std::int32_t group : order) *next++ = given[group];
    }
    return result;
}

// The best contiguous partitions of one order of the groups (contiguous_search.hpp), [partitions, groups].
//
// order: [groups], each group once. in_list_order: whether devices are used in the order of their numbers. The other
// arguments are those of ContiguousOptions.
py::array_t<std::uint8_t> partitions(const SearchSpace& space, const Array<std::int32_t>& order, bool throughput,
                                     std::int32_t cuts, double effort, std::int32_t sequences,
                                     std::int32_t per_sequence, bool whole, double filled, bool in_list_order) {
    const std::vector<std::int32_t>& number = space.ordered.numbers();
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
        wanted.sequence.resize(static_cast<std::size_t>(space.devices()));
        std::iota(wanted.sequence.begin(), wanted.sequence.end(), 0);
    }
    const std::vector<Placement> found = without_gil([&] {
        std::vector<Placement> placements;
        const ContiguousSearch search(space.problem(), space.levels.fine, std::move(ordered), throughput);
        for (const ContiguousPlacement& one : search.best(wanted)) {
            placements.push_back(space.ordered.as_given<std::uint8_t>(one.placement));
        }
        return placements;
    });
    return rows(found, space.groups());
}

// The best contiguous partitions by given costs (contiguous.hpp).
//
// kind: kind of each device, [D]. Either span or separable = (work, fixed, blocked) must be given, as in
// PartitionCosts; links: (enter, leave) or None. Returns (value [partitions], devices [partitions, D], bounds
// [partitions, D + 1]); behind the last device of a sequence, devices are -1 and bounds are the end of the order.
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

void bind_search(py::module_& module) {
    module.def("sink_side_of_min_cut", &min_cut, py::arg("nodes"), py::arg("source"), py::arg("sink"), py::arg("start"),
               py::arg("end"), py::arg("capacity"));
    module.def(
        "search_settings", [](const py::object& given) { return to_dict(to_settings(given)); },
        py::arg("given") = py::none(),
        "All settings of the search by group and name. given: the name of a preset, or numbers that differ from the "
        "default; None: the default.");
    module.def("contiguous_partitions", &find_partitions, py::arg("kind"), py::arg("throughput"), py::kw_only(),
               py::arg("span") = py::none(), py::arg("separable") = py::none(), py::arg("links") = py::none(),
               py::arg("any_order") = true, py::arg("skip") = false, py::arg("sequences") = 1,
               py::arg("per_sequence") = 1,
               "The best contiguous partitions of an order over devices (cpp_ext/contiguous.hpp) → (value [found], "
               "devices in sequence [found, D], -1 behind the last, bounds [found, D + 1]).");
    const ContiguousOptions by_default;
    py::class_<SearchSpace>(module, "SearchSpace",
                            "Data that all searches of a problem share; coarse: int32 [groups], the coarse groups.")
        .def(py::init(&make_space), py::arg("problem").none(false), py::arg("coarse"))
        .def_readonly("little_memory", &SearchSpace::little_memory,
                      "Whether the memory limit of some device is too small for the whole model.")
        .def("refine", &refine_batch, py::arg("placements"), py::arg("throughput"), py::kw_only(),
             py::arg("max_moves") = 0, py::arg("budget_ms") = 0.0, py::arg("threads") = 1, py::arg("seed") = 0,
             py::arg("settings") = py::none(),
             "Local refinement. placements: uint8 [batch, groups] → (placements, scores [batch] in µs).")
        .def("search", &search, py::arg("throughput"), py::kw_only(), py::arg("max_moves") = 0,
             py::arg("budget_ms") = 0.0, py::arg("seed") = 0, py::arg("starts") = py::none(),
             py::arg("processor_time") = false, py::arg("settings") = py::none(),
             "Multilevel search → dict: placement uint8 [groups], score in µs, progress [improvements, 2]: ms and µs, "
             "cycles, elites uint8 [count, groups], elite_scores, phases: ms by name.")
        .def("search_until_agreed", &search_descents, py::arg("throughput"), py::kw_only(), py::arg("max_moves"),
             py::arg("seed") = 0, py::arg("threads") = 1, py::arg("starts") = py::none(),
             py::arg("settings") = py::none(),
             "Independent searches until they agree (cpp_ext/descents.hpp) → dict with the keys of `search`.")
        .def(
            "contracted",
            [](const SearchSpace& space, std::int32_t target) {
                if (target < 1) throw std::invalid_argument("expected a positive 'target'");
                return to_array(without_gil([&] { return contracted(space, target); }));
            },
            py::arg("target"),
            "Contracts the coarse groups to about `target` items: the item of each group, int32 [groups].")
        .def("orders", &orders, py::arg("random") = 0, py::arg("seed") = 0,
             "Orders of the groups that do not depend on how nodes are numbered, followed by `random` random ones that "
             "keep branches together: int32 [orders, groups].")
        .def("partitions", &partitions, py::arg("order"), py::arg("throughput"), py::kw_only(),
             py::arg("cuts") = by_default.cuts, py::arg("effort") = by_default.effort,
             py::arg("sequences") = by_default.sequences, py::arg("per_sequence") = by_default.per_sequence,
             py::arg("whole") = by_default.whole, py::arg("filled") = by_default.filled,
             py::arg("in_list_order") = false,
             "The best contiguous partitions of an order (cpp_ext/contiguous_search.hpp): uint8 [found, groups].");
}
