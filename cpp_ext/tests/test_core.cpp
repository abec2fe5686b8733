// Tests of the graph, HETERO's splitting rule, the simulator, live tensors, coarsening, and the checks of problems.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "coarsen.hpp"
#include "graph.hpp"
#include "groups.hpp"
#include "hetero.hpp"
#include "live.hpp"
#include "parallel.hpp"
#include "problem.hpp"
#include "simulate.hpp"
#include "tests.hpp"

namespace {

using namespace ov_hsdag;

// Builds a graph in topological order. Each node has one output, so that inputs are given by their producing nodes.
struct Builder {
    std::vector<NodeKind> kinds;
    std::vector<std::int32_t> input_ptr{0}, inputs, output_ptr{0};
    std::vector<std::int64_t> sizes;

    std::int32_t add(NodeKind kind, const std::vector<std::int32_t>& from) {
        kinds.push_back(kind);
        inputs.insert(inputs.end(), from.begin(), from.end());
        input_ptr.push_back(static_cast<std::int32_t>(inputs.size()));
        sizes.push_back(8);
        output_ptr.push_back(static_cast<std::int32_t>(sizes.size()));
        return static_cast<std::int32_t>(kinds.size()) - 1;
    }
    [[nodiscard]] Graph graph() const {
        return {kinds, input_ptr, inputs, output_ptr, sizes, std::vector<std::int64_t>(kinds.size(), 3)};
    }
};

Graph random_graph(std::mt19937& random, std::int32_t nodes) {
    Builder builder;
    builder.add(NodeKind::kParameter, {});
    builder.add(NodeKind::kConstant, {});
    builder.add(NodeKind::kParameter, {});
    while (static_cast<std::int32_t>(builder.kinds.size()) < nodes) {
        const auto size = static_cast<std::uint32_t>(builder.kinds.size());
        std::vector<std::int32_t> from;
        for (std::uint32_t i = 0; i < 1 + random() % 3; ++i) from.push_back(static_cast<std::int32_t>(random() % size));
        builder.add(NodeKind::kOp, from);
    }
    builder.add(NodeKind::kResult, {nodes - 1});
    return builder.graph();
}

void test_residual_is_split_in_three() {
    Builder builder;
    const auto x = builder.add(NodeKind::kParameter, {});
    const auto first = builder.add(NodeKind::kOp, {x});
    const auto away = builder.add(NodeKind::kOp, {first});
    const auto back = builder.add(NodeKind::kOp, {first, away});
    builder.add(NodeKind::kResult, {back});
    const Graph graph = builder.graph();
    const std::vector<std::uint8_t> device{0, 0, 1, 0, 0};
    for (const SplitRule rule : {SplitRule::kClassic, SplitRule::kScc}) {
        Splitter splitter(graph, rule);
        const Split& split = splitter.split(device.data());
        CHECK(split.sortable);
        CHECK(split.submodels() == 3);
        CHECK(split.submodel[first] != split.submodel[back]);
        CHECK(split.submodel_device[split.submodel[away]] == 1);
    }
}

// Submodels of each split have one device, and if they are sortable, there is no cycle among them.
void test_splits_of_random_graphs() {
    std::mt19937 random(7);
    for (int round = 0; round < 300; ++round) {
        const Graph graph = random_graph(random, 4 + static_cast<std::int32_t>(random() % 60));
        Splitter splitter(graph, round % 2 == 0 ? SplitRule::kClassic : SplitRule::kScc);
        for (int placement = 0; placement < 4; ++placement) {
            std::vector<std::uint8_t> device(static_cast<std::size_t>(graph.nodes()));
            for (auto& d : device) d = static_cast<std::uint8_t>(random() % 3);
            const Split& split = splitter.split(device.data());
            std::vector<std::int32_t> waits(static_cast<std::size_t>(split.submodels()), 0);
            // Longest-path levels grow without end exactly where submodels wait for each other.
            bool grew = true;
            for (std::int32_t pass = 0; grew && pass <= split.submodels(); ++pass) {
                grew = false;
                for (std::int32_t e = 0; e < graph.edges(); ++e) {
                    const std::int32_t a = split.submodel[graph.source[e]];
                    const std::int32_t b = split.submodel[graph.target[e]];
                    if (a < 0 || b < 0 || a == b || graph.kind[graph.source[e]] == NodeKind::kConstant) continue;
                    if (waits[b] < waits[a] + 1) {
                        waits[b] = waits[a] + 1;
                        grew = true;
                    }
                }
            }
            CHECK(split.sortable == !grew);
            CHECK(round % 2 == 0 || split.sortable);
            for (std::int32_t node = 0; node < graph.nodes(); ++node) {
                const std::int32_t id = split.submodel[node];
                CHECK(id < split.submodels());
                if (id >= 0 && graph.kind[node] == NodeKind::kOp) CHECK(split.submodel_device[id] == device[node]);
            }
        }
    }
}

// A splitter that knows groups, and splits one placement after the other, has the splits of a new one for each.
void test_splits_by_groups() {
    std::mt19937 random(11);
    int cyclic = 0;
    for (int round = 0; round < 200; ++round) {
        const Graph graph = random_graph(random, 4 + static_cast<std::int32_t>(random() % 80));
        const SplitRule rule = round % 2 == 0 ? SplitRule::kClassic : SplitRule::kScc;
        // Groups of neighbours, and some of nodes that are far from each other.
        std::vector<std::int32_t> group(static_cast<std::size_t>(graph.nodes()));
        for (std::size_t node = 0; node < group.size(); ++node) {
            group[node] = static_cast<std::int32_t>(random() % 4 == 0 ? random() % 5 : 5 + node / 3);
        }
        Splitter splitter(graph, rule, group);
        for (int placement = 0; placement < 6; ++placement) {
            std::vector<std::uint8_t> of_group(5 + group.size());
            for (auto& device : of_group) device = static_cast<std::uint8_t>(random() % 3);
            std::vector<std::uint8_t> device(group.size());
            for (std::size_t node = 0; node < group.size(); ++node) device[node] = of_group[group[node]];
            const Split& split = splitter.split(device.data());
            Splitter other(graph, rule);
            const Split& expected = other.split(device.data());
            CHECK(split.submodel == expected.submodel);
            CHECK(split.submodel_device == expected.submodel_device);
            CHECK(split.trivial == expected.trivial);
            CHECK(split.cyclic == expected.cyclic);
            CHECK(split.rounds == expected.rounds);
            CHECK(split.work == expected.work);
            CHECK(splitter.boundaries() == other.boundaries());
            if (split.rounds > 1) ++cyclic;
        }
    }
    CHECK(cyclic > 100);
}

// A problem of a graph in which each node takes one microsecond on each of two devices.
Problem even_problem(Graph graph) {
    Problem problem;
    const auto nodes = static_cast<std::size_t>(graph.nodes());
    problem.graph = std::make_shared<Graph>(std::move(graph));
    problem.devices = 2;
    problem.node_us.assign(nodes * 2, 1.0);
    problem.supported.assign(nodes * 2, 1);
    problem.transfer_us = {0, 1, 1, 0};
    problem.transfer_us_per_byte = {0, 0.5, 0.5, 0};
    problem.submodel_us = {0, 0};
    problem.memory_limit = {-1, -1};
    problem.group.resize(nodes);
    std::iota(problem.group.begin(), problem.group.end(), 0);
    return problem;
}

void test_simulator_on_threads() {
    std::mt19937 random(11);
    const Problem problem = even_problem(random_graph(random, 80));
    const auto nodes = problem.group.size();
    const std::vector<std::uint8_t> one(nodes, 1);
    std::vector<double> latencies(4);
    parallel_for(latencies.size(), latencies.size(), [&](std::size_t) {
        return [&, simulator = Simulator(problem)](std::size_t i) mutable {
            latencies[i] = simulator.evaluate(one.data()).latency_us;
        };
    });
    for (const double latency : latencies) CHECK(latency == static_cast<double>(nodes));
    std::vector<std::uint8_t> mixed(one);
    mixed[5] = 0;
    Simulator simulator(problem);
    const Evaluation& cut = simulator.evaluate(mixed.data());
    CHECK(cut.cut_tensors > 0);
    CHECK(cut.latency_us == static_cast<double>(nodes) + 5.0 * cut.cut_tensors);
    CHECK(cut.transfer_bytes == 8 * cut.cut_tensors);
}

void test_chains_become_groups() {
    Builder builder;
    const auto x = builder.add(NodeKind::kParameter, {});
    const auto a = builder.add(NodeKind::kOp, {x});
    const auto left = builder.add(NodeKind::kOp, {a});
    const auto right = builder.add(NodeKind::kOp, {a});
    const auto join = builder.add(NodeKind::kOp, {left, right});
    builder.add(NodeKind::kResult, {join});
    const Graph graph = builder.graph();
    const std::vector<std::int32_t> group{0, 1, 2, 3, 4, 5};
    const std::vector<std::int64_t> same(6, 1);
    const std::vector<double> light(6, 0.0);
    CHECK((colocate_chains(graph, group, same, light, 1.0) == std::vector<std::int32_t>{0, 0, 1, 2, 3, 3}));
    const std::vector<std::int64_t> apart{1, 2, 1, 1, 1, 1};
    CHECK((colocate_chains(graph, group, apart, light, 1.0) == std::vector<std::int32_t>{0, 1, 2, 3, 4, 4}));
    // A group that is too heavy for its chain begins the next one.
    const std::vector<double> heavy{0.3, 0.8, 0.1, 0.1, 0.4, 0.6};
    CHECK((colocate_chains(graph, group, same, heavy, 1.0) == std::vector<std::int32_t>{0, 1, 2, 3, 4, 4}));
    CHECK((colocate_chains(graph, group, same, heavy, 0.9) == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5}));
    const std::vector<std::int32_t> first{5, 1}, second{4, 3};
    CHECK((merge_groups(6, first, second) == std::vector<std::int32_t>{0, 1, 2, 1, 3, 3}));
}

template <typename Action>
bool refuses(Action action) {
    try {
        action();
    } catch (const std::invalid_argument&) {
        return true;
    }
    return false;
}

void test_bad_graphs_are_refused() {
    const std::vector<NodeKind> kinds{NodeKind::kParameter, NodeKind::kOp};
    const std::vector<std::int64_t> two(2, 1);
    CHECK(refuses([&] { Graph(kinds, {0, 0, 1}, {1}, {0, 1, 2}, two, two); }));  // feeds itself
    CHECK(refuses([&] { Graph(kinds, {0, 0, 1}, {5}, {0, 1, 2}, two, two); }));  // no such output
    CHECK(refuses([&] { Graph(kinds, {0, 0}, {}, {0, 1, 2}, two, two); }));      // offsets of one node
    CHECK(refuses([&] { Graph(kinds, {0, 0, 1}, {0}, {0, 1, 2}, two, {1}); }));  // weights of one node
}

void test_bad_problems_are_refused() {
    std::mt19937 random(13);
    const Problem good = even_problem(random_graph(random, 20));
    good.check();
    const auto refused = [&](const auto& spoil) {
        Problem problem = good;
        spoil(problem);
        return refuses([&] { problem.check(); });
    };
    CHECK(refused([](Problem& problem) { problem.graph = nullptr; }));
    CHECK(refused([](Problem& problem) { problem.devices = 0; }));
    CHECK(refused([](Problem& problem) { problem.devices = kMaxDevices + 1; }));
    CHECK(refused([](Problem& problem) { problem.node_us.pop_back(); }));
    CHECK(refused([](Problem& problem) { problem.memory_limit.push_back(-1); }));
    CHECK(refused([](Problem& problem) { problem.group[3] = -1; }));
    CHECK(refused([](Problem& problem) { problem.group[3] = problem.graph->nodes(); }));
    CHECK(refused([](Problem& problem) { problem.same_submodel = {0, problem.graph->nodes()}; }));
    CHECK(refused([](Problem& problem) { problem.fused_with.assign(problem.node_us.size(), -1); }));  // no penalties
    CHECK(refused([](Problem& problem) {
        problem.fusion_penalty_us = problem.node_us;
        problem.fused_with.assign(problem.node_us.size(), -2);
    }));
}

// For connected parts of an order, which are submodels, live_peaks agrees with the simulator's memory.
void test_live_tensors_of_parts() {
    std::mt19937 random(11);
    for (int round = 0; round < 200; ++round) {
        Builder builder;
        builder.add(NodeKind::kParameter, {});
        const auto count = static_cast<std::int32_t>(3 + random() % 40);
        for (std::int32_t node = 1; node < count; ++node) {
            std::vector<std::int32_t> from{node - 1};
            while (random() % 3 == 0)
                from.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(node)));
            builder.add(NodeKind::kOp, from);
        }
        if (random() % 2 == 0) builder.add(NodeKind::kResult, {static_cast<std::int32_t>(random() % 3)});
        builder.add(NodeKind::kResult, {count - 1});
        for (std::size_t node = 0; node < builder.sizes.size(); ++node) {
            const bool result = builder.kinds[node] == NodeKind::kResult;
            builder.sizes[node] = result ? 0 : static_cast<std::int64_t>(random() % 100);
        }
        Problem problem;
        problem.graph = std::make_shared<Graph>(builder.graph());
        const auto nodes = static_cast<std::size_t>(problem.graph->nodes());
        // A Result is placed with its producer.
        std::vector<std::int32_t> place(nodes);
        for (std::size_t node = 0; node < nodes; ++node) {
            const bool result = problem.graph->kind[node] == NodeKind::kResult;
            problem.group.push_back(result ? problem.graph->source[problem.graph->input_ptr[node]]
                                           : static_cast<std::int32_t>(node));
        }
        place.resize(static_cast<std::size_t>(problem.groups()));
        std::iota(place.begin(), place.end(), 0);
        problem.devices = 4;
        problem.node_us.assign(nodes * 4, 1.0);
        problem.supported.assign(nodes * 4, 1);
        problem.transfer_us.assign(16, 1.0);
        problem.transfer_us_per_byte.assign(16, 0.0);
        problem.submodel_us.assign(4, 0.0);
        problem.memory_limit.assign(4, -1);
        std::vector<std::int32_t> cuts{0, problem.groups()};
        for (int i = 0; i < 3; ++i) cuts.push_back(static_cast<std::int32_t>(random() % place.size()));
        std::sort(cuts.begin(), cuts.end());
        cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
        const std::size_t width = cuts.size();
        const std::vector<double> peaks = live_peaks(problem, place, cuts);
        std::vector<std::uint8_t> device(place.size(), 0);
        for (std::size_t part = 0; part + 1 < width; ++part) {
            for (std::int32_t k = cuts[part]; k < cuts[part + 1]; ++k) device[k] = static_cast<std::uint8_t>(part);
        }
        Simulator simulator(problem);
        const Evaluation& evaluation = simulator.evaluate(device.data());
        for (std::size_t part = 0; part + 1 < width; ++part) {
            std::int64_t held = 0;
            for (std::size_t node = 0; node < nodes; ++node) {
                if (device[problem.group[node]] == part) held += problem.held(static_cast<std::int32_t>(node), part);
            }
            CHECK(static_cast<double>(evaluation.memory_bytes[part] - held) == peaks[part * width + part + 1]);
        }
        const Evaluation& whole = simulator.evaluate(std::vector<std::uint8_t>(place.size(), 0).data());
        CHECK(static_cast<double>(whole.memory_bytes[0] - 3 * static_cast<std::int64_t>(nodes)) == peaks[width - 1]);
    }
}

}  // namespace

void test_core() {
    test_residual_is_split_in_three();
    test_splits_of_random_graphs();
    test_splits_by_groups();
    test_simulator_on_threads();
    test_live_tensors_of_parts();
    test_chains_become_groups();
    test_bad_graphs_are_refused();
    test_bad_problems_are_refused();
}
