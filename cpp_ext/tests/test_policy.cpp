// Tests of searches, orders, the additive cost model, structural features and graph parsing, on random problems.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "acyclic.hpp"
#include "additive.hpp"
#include "anneal.hpp"
#include "budget.hpp"
#include "canonical.hpp"
#include "descents.hpp"
#include "features.hpp"
#include "graph.hpp"
#include "hetero.hpp"
#include "hierarchy.hpp"
#include "judge.hpp"
#include "judged_annealing.hpp"
#include "levels.hpp"
#include "multilevel.hpp"
#include "neighbourhoods.hpp"
#include "orders.hpp"
#include "parallel.hpp"
#include "parse.hpp"
#include "problem.hpp"
#include "refine.hpp"
#include "segments.hpp"
#include "simulate.hpp"
#include "tests.hpp"

namespace {

using namespace ov_hsdag;

bool close(double a, double b) { return std::abs(a - b) <= 1e-9 * std::max({1.0, std::abs(a), std::abs(b)}); }

Graph random_graph(std::mt19937& random, std::int32_t nodes, bool constants = true) {
    std::vector<NodeKind> kinds{NodeKind::kParameter};
    std::vector<std::int32_t> input_ptr{0, 0}, inputs, output_ptr{0, 1};
    for (std::int32_t node = 1; node < nodes; ++node) {
        const bool last = node == nodes - 1;
        kinds.push_back(last                             ? NodeKind::kResult
                        : constants && random() % 8 == 0 ? NodeKind::kConstant
                                                         : NodeKind::kOp);
        const std::uint32_t feeds = kinds.back() == NodeKind::kConstant ? 0 : last ? 1 : 1 + random() % 3;
        const auto ports = static_cast<std::uint32_t>(output_ptr.back());
        for (std::uint32_t i = 0; i < feeds; ++i) inputs.push_back(static_cast<std::int32_t>(random() % ports));
        input_ptr.push_back(static_cast<std::int32_t>(inputs.size()));
        output_ptr.push_back(output_ptr.back() + (last ? 0 : 1 + static_cast<std::int32_t>(random() % 2)));
    }
    std::vector<std::int64_t> bytes(static_cast<std::size_t>(output_ptr.back()));
    for (auto& size : bytes) size = 1 + static_cast<std::int64_t>(random() % 50);
    std::vector<std::int64_t> weights(kinds.size());
    for (auto& weight : weights) weight = static_cast<std::int64_t>(random() % 20);
    return {kinds, input_ptr, inputs, output_ptr, bytes, weights};
}

Problem random_problem(std::mt19937& random, Graph drawn, std::int32_t devices, double submodel_us) {
    Problem problem;
    problem.graph = std::make_shared<Graph>(std::move(drawn));
    const Graph& graph = *problem.graph;
    problem.devices = devices;
    const auto count = static_cast<std::size_t>(devices);
    const auto nodes = static_cast<std::size_t>(graph.nodes());
    for (std::size_t i = 0; i < nodes * count; ++i) problem.node_us.push_back(static_cast<double>(random() % 30));
    problem.supported.assign(nodes * count, 1);
    for (std::size_t i = 0; i < count * count; ++i) {
        problem.transfer_us.push_back(static_cast<double>(random() % 10));
        problem.transfer_us_per_byte.push_back(static_cast<double>(random() % 3));
    }
    problem.submodel_us.assign(count, submodel_us);
    problem.memory_limit.assign(count, -1);
    problem.group.resize(nodes);
    std::iota(problem.group.begin(), problem.group.end(), 0);
    return problem;
}

// Lets operations fuse with a producer whose only tensor has no other reader.
void add_fusions(std::mt19937& random, Problem& problem) {
    const Graph& graph = *problem.graph;
    const auto count = static_cast<std::size_t>(problem.devices);
    problem.fused_with.assign(static_cast<std::size_t>(graph.nodes()) * count, -1);
    problem.fusion_penalty_us.assign(problem.fused_with.size(), 0.0);
    for (std::int32_t e = 0; e < graph.edges(); ++e) {
        const std::int32_t output = graph.input_output[e];
        const std::int32_t node = graph.target[e];
        const std::int32_t with = graph.source[e];
        if (graph.consumer_ptr[output + 1] - graph.consumer_ptr[output] != 1) continue;
        if (graph.kind[with] != NodeKind::kOp || graph.kind[node] != NodeKind::kOp) continue;
        for (std::size_t d = 0; d < count; ++d) {
            const std::size_t at = static_cast<std::size_t>(node) * count + d;
            problem.fused_with[at] = with;
            problem.fusion_penalty_us[at] = static_cast<double>(random() % 12);
        }
    }
}

std::vector<std::uint8_t> random_placement(std::mt19937& random, std::int32_t items, std::int32_t devices) {
    std::vector<std::uint8_t> placement(static_cast<std::size_t>(items));
    for (auto& d : placement) d = static_cast<std::uint8_t>(random() % static_cast<std::uint32_t>(devices));
    return placement;
}

void test_no_placements_are_refined_to_none() {
    std::mt19937 random(17);
    const auto problem = std::make_shared<Problem>(random_problem(random, random_graph(random, 12), 2, 1.0));
    const SearchSpace space(*problem, problem->group);
    SearchOptions options;
    options.max_moves = 1000;
    CHECK(refine(space, {}, options).scores.empty());
}

void test_orders_are_topological() {
    std::mt19937 random(29);
    std::mt19937_64 generator(29);
    for (int round = 0; round < 30; ++round) {
        const auto size = 3 + static_cast<std::int32_t>(random() % 60);
        const Problem problem = random_problem(random, random_graph(random, size), 2, 1.0);
        const Graph& graph = *problem.graph;
        std::vector<std::vector<std::int32_t>> orders = node_orders(problem);
        orders.push_back(random_branch_order(problem, orders.front(), generator));
        for (const std::vector<std::int32_t>& order : orders) {
            std::vector<std::int32_t> place(static_cast<std::size_t>(graph.nodes()), -1);
            for (std::size_t k = 0; k < order.size(); ++k) place[order[k]] = static_cast<std::int32_t>(k);
            CHECK(order.size() == place.size() && std::count(place.begin(), place.end(), -1) == 0);
            for (std::int32_t e = 0; e < graph.edges(); ++e) CHECK(place[graph.source[e]] < place[graph.target[e]]);
        }
        const OrderedProblem ordered(problem);
        const auto placement = random_placement(random, problem.groups(), 2);
        const std::span<const std::uint8_t> given(placement);
        CHECK(ordered.as_given<std::uint8_t>(ordered.ordered(given)) == placement);
        const std::vector<std::uint8_t> renumbered = ordered.ordered(given);
        const double before = Simulator(problem).evaluate(placement.data()).latency_us;
        CHECK(Simulator(ordered.problem()).evaluate(renumbered.data()).latency_us == before);
    }
}

// Without costs of submodels, the additive objective equals the simulator's, and the updated sums equal those after a
// reset.
void test_additive_state() {
    std::mt19937 random(3);
    for (int round = 0; round < 60; ++round) {
        Graph graph = random_graph(random, 4 + static_cast<std::int32_t>(random() % 40));
        const std::int32_t devices = 2 + static_cast<std::int32_t>(random() % 3);
        Problem problem = random_problem(random, std::move(graph), devices, 0.0);
        if (round % 3 == 0) problem.memory_limit[0] = 40;
        const bool fusing = round % 2 == 0;
        if (fusing) add_fusions(random, problem);
        const AdditiveModel model(problem, problem.group, node_orders(problem).front());
        Simulator simulator(problem);
        const std::vector<double> none(static_cast<std::size_t>(devices), 0.0);
        const std::vector<double> surcharge(static_cast<std::size_t>(devices), 2.5);
        for (const bool throughput : {false, true}) {
            AdditiveState state(model, throughput);
            AdditiveState anew(model, throughput);
            auto placement = random_placement(random, model.items, devices);
            state.reset(placement.data(), none, none);
            const Evaluation& evaluation = simulator.evaluate(placement.data());
            if (problem.memory_limit[0] < 0) {
                const double simulated = throughput ? evaluation.period_us : evaluation.latency_us;
                // The simulator also sees fusions that HETERO breaks on one device.
                CHECK(close(state.us(), simulated) || (fusing && state.us() < simulated));
            }

            state.reset(placement.data(), surcharge, none);
            state.sharpen(3);
            const double start = state.score();
            for (std::int32_t step = 0; step < model.items; ++step) {
                const auto item = static_cast<std::int32_t>(random() % static_cast<unsigned>(model.items));
                const auto to = static_cast<std::uint8_t>(random() % static_cast<unsigned>(devices));
                const double before = state.score();
                const double after = state.score_after(item, to);
                const std::uint8_t from = state.device(item);
                state.update_prices();
                // may_pay is true if a neighbour is on another device, or a memory limit is exceeded.
                if (from != to && after < before * (1 - 1e-9) && problem.transfer_us[from * devices + to] == 0.0) {
                    CHECK(state.may_pay(item));
                }
                state.move(item, to);
                CHECK(close(state.score(), from == to ? before : after));
            }
            anew.reset(state.placement().data(), surcharge, none);
            CHECK(close(anew.us(), state.us()));
            for (std::int32_t item = 0; item < model.items; ++item) state.move(item, placement[item]);
            CHECK(close(state.score(), start));
        }
    }
}

// Coarse levels keep the order and the additive cost model, and their placements can be translated back.
void test_hierarchies_are_acyclic() {
    std::mt19937 random(11);
    for (int round = 0; round < 40; ++round) {
        const std::int32_t devices = 2 + static_cast<std::int32_t>(random() % 3);
        Problem problem =
            random_problem(random, random_graph(random, 60 + static_cast<std::int32_t>(random() % 200)), devices, 0.0);
        if (round % 2 == 0) add_fusions(random, problem);
        const AdditiveModel model(problem, problem.group, node_orders(problem).front());
        std::vector<std::uint64_t> labels;
        if (round % 3 == 0) {
            for (std::int32_t item = 0; item < model.items; ++item) labels.push_back(random() % 2);
        }
        std::mt19937_64 generator(static_cast<std::uint64_t>(round));
        const Hierarchy hierarchy(model, transfer_ratings(model), {.target = 20, .noise = 1.0, .labels = labels},
                                  generator);
        CHECK(hierarchy.levels() > 1);
        for (std::size_t level = 1; level < hierarchy.levels(); ++level) {
            const AdditiveModel& coarse = hierarchy.model(level);
            CHECK(coarse.items < hierarchy.model(level - 1).items);
            std::vector<std::int32_t> place(static_cast<std::size_t>(coarse.items), -1);
            for (std::int32_t k = 0; k < coarse.items; ++k) place[coarse.order[k]] = k;
            for (std::int32_t t = 0; t < coarse.tensors(); ++t) {
                CHECK(place[coarse.source[t]] >= 0);
                for (std::int32_t c = coarse.consumer_ptr[t]; c < coarse.consumer_ptr[t + 1]; ++c) {
                    // Each operation is a group of its own here, so that no edge goes back.
                    CHECK(place[coarse.consumer[c]] > place[coarse.source[t]]);
                }
            }
        }
        const AdditiveModel& top = hierarchy.model(hierarchy.levels() - 1);
        const Placement coarse = random_placement(random, top.items, devices);
        const Placement fine = gathered(coarse, hierarchy.items());
        CHECK(hierarchy.coarsest(fine) == coarse);
        if (!labels.empty()) {
            // Items of other labels stayed apart: the labels are a placement of the coarsest level.
            Placement by_label(labels.begin(), labels.end());
            CHECK(gathered(hierarchy.coarsest(by_label), hierarchy.items()) == by_label);
        }
        for (const bool throughput : {false, true}) {
            const std::vector<double> none(static_cast<std::size_t>(devices), 0.0);
            AdditiveState above(top, throughput), below(model, throughput);
            above.reset(coarse.data(), none, none);
            below.reset(fine.data(), none, none);
            CHECK(close(above.us(), below.us()));
        }
    }
}

void test_circles_are_broken() {
    std::mt19937 random(12);
    for (int round = 0; round < 40; ++round) {
        const std::int32_t devices = 2 + static_cast<std::int32_t>(random() % 3);
        Problem problem = random_problem(
            random, random_graph(random, 20 + static_cast<std::int32_t>(random() % 100), false), devices, 1.0);
        const AdditiveModel model(problem, problem.group, node_orders(problem).front());
        Placement placement = random_placement(random, model.items, devices);
        Simulator simulator(problem);
        break_circles(model, placement);
        Splitter splitter(*problem.graph, problem.rule);
        CHECK(splitter.split(placement.data()).rounds == 1);
        const Placement before = placement;
        break_circles(model, placement);
        CHECK(placement == before);
    }
}

// The number of segments that a placement needs: runs all items of one device that are ready, then those of another.
// Devices take turns in the order that needs the fewest, by trying each first device.
std::size_t segments_of(const AdditiveModel& model, const Placement& placement) {
    const auto devices = static_cast<std::size_t>(model.devices);
    std::size_t fewest = std::numeric_limits<std::size_t>::max();
    for (std::size_t first = 0; first < devices; ++first) {
        std::vector<std::int32_t> waits(placement.size());
        for (std::size_t i = 0; i < waits.size(); ++i) waits[i] = model.received_ptr[i + 1] - model.received_ptr[i];
        std::vector<bool> done(placement.size(), false);
        std::size_t left = placement.size(), count = 0, idle = 0;
        for (std::size_t device = first; left > 0 && idle < devices; device = (device + 1) % devices) {
            std::size_t ran = 0;
            for (bool changed = true; changed;) {
                changed = false;
                for (std::size_t i = 0; i < placement.size(); ++i) {
                    if (done[i] || waits[i] > 0 || placement[i] != device) continue;
                    done[i] = changed = true;
                    ++ran;
                    for (std::int32_t p = model.produced_ptr[i]; p < model.produced_ptr[i + 1]; ++p) {
                        const std::int32_t tensor = model.produced[p];
                        for (std::int32_t c = model.consumer_ptr[tensor]; c < model.consumer_ptr[tensor + 1]; ++c) {
                            --waits[model.consumer[c]];
                        }
                    }
                }
            }
            left -= ran;
            count += ran > 0 ? 1 : 0;
            idle = ran > 0 ? 0 : idle + 1;
        }
        CHECK(left == 0);
        fewest = std::min(fewest, count);
    }
    return fewest;
}

void test_segments_are_few_and_supported() {
    std::mt19937 random(31);
    for (int round = 0; round < 40; ++round) {
        const std::size_t devices = 2 + random() % 2;
        Problem problem = random_problem(random, random_graph(random, 20 + static_cast<std::int32_t>(random() % 60)),
                                         static_cast<std::int32_t>(devices), 1.0);
        for (std::size_t node = 0; node < problem.group.size(); ++node) {
            for (std::size_t d = 0; d < devices; ++d) {
                problem.supported[node * devices + d] = d == node % devices || random() % 4 != 0 ? 1 : 0;
            }
        }
        const AdditiveModel model(problem, problem.group, node_orders(problem).front());
        const std::vector<Placement> placements = segment_placements(model);
        CHECK(!placements.empty() && placements.size() <= 2 * devices);
        std::size_t fewest = std::numeric_limits<std::size_t>::max();
        for (const Placement& placement : placements) {
            for (std::int32_t i = 0; i < model.items; ++i) CHECK(model.supports(i, placement[i]));
            fewest = std::min(fewest, segments_of(model, placement));
        }
        if (devices > 2) continue;
        // On two devices, no placement has fewer segments than the one in which each device runs all that it can.
        for (int other = 0; other < 20; ++other) {
            Placement placement = random_placement(random, model.items, 2);
            model.make_supported(placement);
            CHECK(segments_of(model, placement) >= fewest);
        }
    }
}

// After a descent, no slide of a part improves the latency.
void test_descents_end_where_no_slide_helps() {
    std::mt19937 random(37);
    for (int round = 0; round < 30; ++round) {
        const std::int32_t devices = 2 + static_cast<std::int32_t>(random() % 3);
        const Problem problem =
            random_problem(random, random_graph(random, 20 + static_cast<std::int32_t>(random() % 60)), devices, 1.0);
        const AdditiveModel model(problem, problem.group, node_orders(problem).front());
        const std::vector<double> none(static_cast<std::size_t>(devices), 0.0);
        SearchSettings::Moves settings;
        settings.rounds = 1000;
        settings.slide = model.items;
        settings.run_moves = 1'000'000'000;
        Neighbourhoods search(model, false, settings, model.items, 0);
        search.reset(random_placement(random, model.items, devices), none, none);
        Budget budget(1'000'000'000, Budget::kNoEnd, false);
        search.descend(budget);
        const Placement& found = search.placement();
        const auto at = [&](std::int32_t k) { return found[model.order[k]]; };
        for (std::int32_t first = 0, end = 0; first < model.items; first = end) {
            while (end < model.items && at(end) == at(first)) ++end;
            for (const std::int32_t step : {1, -1}) {
                const std::int32_t behind = step > 0 ? first - 1 : end;
                for (std::int32_t d = 0; d < devices; ++d) {
                    const bool inside = behind >= 0 && behind < model.items;
                    if (d == at(first) || (inside && d != at(behind))) continue;
                    AdditiveState state(model, false);
                    state.reset(found.data(), none, none);
                    std::int32_t left = step > 0 ? first : end - 1, taken = step > 0 ? end : first - 1;
                    for (std::int32_t i = first; i < end && taken >= 0 && taken < model.items; ++i) {
                        state.move(model.order[left], static_cast<std::uint8_t>(d));
                        state.move(model.order[taken], at(first));
                        CHECK(state.us() >= search.us() * (1 - 1e-6));
                        left += step;
                        taken += step;
                    }
                }
            }
        }
    }
}

void test_refinement_keeps_its_promises() {
    std::mt19937 random(5);
    for (int round = 0; round < 25; ++round) {
        Graph drawn = random_graph(random, 4 + static_cast<std::int32_t>(random() % 50));
        const std::int32_t devices = 2 + static_cast<std::int32_t>(random() % 3);
        Problem problem = random_problem(random, std::move(drawn), devices, 7.0);
        const Graph& graph = *problem.graph;
        if (round % 2 == 0) add_fusions(random, problem);
        for (auto& supported : problem.supported) supported = random() % 8 != 0 ? 1 : 0;
        for (std::size_t node = 0; node < static_cast<std::size_t>(graph.nodes()); ++node) {
            problem.supported[node * static_cast<std::size_t>(devices)] = 1;
        }
        std::vector<std::int32_t> coarse(static_cast<std::size_t>(graph.nodes()));
        for (std::size_t i = 0; i < coarse.size(); ++i) coarse[i] = static_cast<std::int32_t>(i / 2);
        problem.rule = round % 2 == 0 ? SplitRule::kClassic : SplitRule::kScc;
        const SearchSpace space(problem, coarse);
        const auto batch = random_placement(random, 3 * graph.nodes(), devices);
        Simulator simulator(problem);
        SearchOptions options;
        options.throughput = round % 3 == 0;
        options.max_moves = round % 5 == 0 ? 0 : 3000;
        const Refined refined = refine(space, batch, options);
        options.threads = 3;
        const Refined again = refine(space, batch, options);
        CHECK(again.placements == refined.placements);
        CHECK(again.scores == refined.scores);
        const auto score_of = [&](const std::uint8_t* placement) {
            const Evaluation& e = simulator.evaluate(placement);
            if (e.infeasible != 0) return std::numeric_limits<double>::infinity();
            return options.throughput ? e.period_us : e.latency_us;
        };
        for (std::size_t i = 0; i < 3; ++i) {
            const std::size_t at = i * static_cast<std::size_t>(graph.nodes());
            CHECK(refined.scores[i] == score_of(refined.placements.data() + at));
            CHECK(refined.scores[i] <= score_of(batch.data() + at));
        }
    }
}

// Searches on several threads share one SearchSpace, as Python may call them, and find the same as one after another.
void test_searches_on_threads_find_what_they_find_alone() {
    std::mt19937 random(23);
    const auto problem = std::make_shared<Problem>(random_problem(random, random_graph(random, 120), 3, 7.0));
    std::vector<std::int32_t> coarse(problem->group.size());
    for (std::size_t i = 0; i < coarse.size(); ++i) coarse[i] = static_cast<std::int32_t>(i / 4);
    const SearchSpace space(*problem, coarse);
    const auto search = [&](std::size_t seed) {
        SearchOptions options;
        options.throughput = seed % 2 == 0;
        options.max_moves = 20000;
        options.seed = seed;
        options.settings.coarsening.target = 20;
        return multilevel_search(space, {}, options);
    };
    std::vector<MultilevelResult> together(6);
    parallel_for(together.size(), 3,
                 [&](std::size_t) { return [&](std::size_t seed) { together[seed] = search(seed); }; });
    for (std::size_t seed = 0; seed < together.size(); ++seed) {
        const MultilevelResult alone = search(seed);
        CHECK(alone.placement == together[seed].placement && alone.score == together[seed].score);
        CHECK(alone.score < std::numeric_limits<double>::infinity());
    }
}

void test_annealing_keeps_to_what_devices_run() {
    std::mt19937 drawing(7);
    const auto problem = std::make_shared<Problem>(random_problem(drawing, random_graph(drawing, 80), 3, 0.0));
    for (std::size_t node = 0; node < problem->group.size(); ++node) problem->supported[node * 3 + node % 3] = 0;
    std::vector<std::int32_t> coarse(problem->group.size());
    std::iota(coarse.begin(), coarse.end(), 0);
    const SearchSpace space(*problem, coarse);
    const AdditiveModel& model = space.levels.fine;
    const std::vector<double> none(3, 0.0);
    for (const bool throughput : {false, true}) {
        Placement start(static_cast<std::size_t>(model.items), 0);
        model.make_supported(start);
        AdditiveState state(model, throughput);
        state.reset(start.data(), none, none);
        const double before = state.us();
        Annealing annealing(model, throughput, {});
        std::mt19937_64 random(1), again(1);
        Budget budget(1'000'000), same(1'000'000);
        const Placement found = annealing.run(start, 1.0, none, none, random, 1'000'000, budget);
        CHECK(annealing.run(start, 1.0, none, none, again, 1'000'000, same) == found);
        CHECK(budget.moves() == same.moves() && budget.moves() < 1'000'000);
        state.reset(found.data(), none, none);
        CHECK(state.us() < before);
        // A run in fewer moves than its sweeps need goes through all temperatures as well.
        Budget few(1'000'000);
        const Placement hasty = annealing.run(start, 1.0, none, none, random, 4'000, few);
        CHECK(few.moves() < 996'500 && few.moves() > 995'500);
        state.reset(hasty.data(), none, none);
        CHECK(state.us() < before);
        for (std::int32_t item = 0; item < model.items; ++item) CHECK(model.supports(item, found[item]));
    }
}

// A run takes new surcharges after each stage: fewer tensors cross where they are free in the first stage alone.
void test_annealing_takes_new_surcharges() {
    std::mt19937 drawing(9);
    Problem problem = random_problem(drawing, random_graph(drawing, 40), 2, 0.0);
    std::fill(problem.transfer_us.begin(), problem.transfer_us.end(), 0.0);
    std::fill(problem.transfer_us_per_byte.begin(), problem.transfer_us_per_byte.end(), 0.0);
    const SearchSpace space(problem, problem.group);
    const AdditiveModel& model = space.levels.fine;
    const std::vector<double> none(2, 0.0), dear(2, 1e6);
    Placement fastest(static_cast<std::size_t>(model.items));
    for (std::int32_t item = 0; item < model.items; ++item) fastest[item] = model.fastest(item);
    Annealing annealing(model, false, {});
    const auto crossing = [&](const Annealing::Renew& renew) {
        std::mt19937_64 random(1);
        Budget budget(1'000'000);
        const Placement found = annealing.run(fastest, 1.0, none, none, random, 1'000'000, budget, renew);
        AdditiveState state(model, false), free(model, false);
        state.reset(found.data(), dear, none);
        free.reset(found.data(), none, none);
        return (state.us() - free.us()) / 1e6;
    };
    int calls = 0;
    const double kept = crossing([&](const Placement& placement) -> std::optional<std::vector<double>> {
        calls += placement.size() == fastest.size() ? 1 : 0;
        return std::nullopt;
    });
    CHECK(calls == SearchSettings::Annealing().stages);
    CHECK(kept == crossing({}));
    CHECK(kept > crossing([&](const Placement&) { return dear; }));
}

// Annealing by the simulator begins outside of the memory limits, returns a placement within them, and is reproducible.
void test_judged_annealing_keeps_to_memory_limits() {
    std::mt19937 drawing(11);
    int found_within = 0;
    int found_within_coarse = 0;
    for (const bool throughput : {false, true}) {
        for (int round = 0; round < 4; ++round) {
            Problem problem = random_problem(drawing, random_graph(drawing, 40), 3, 1.0);
            for (std::size_t node = 0; node < problem.group.size(); ++node) problem.supported[node * 3 + node % 3] = 0;
            Simulator simulator(problem);
            const Placement whole(problem.group.size(), 0);
            problem.memory_limit.assign(3, simulator.evaluate(whole.data()).memory_bytes[0] * 9 / 10);
            CHECK(SearchSpace(problem, problem.group).little_memory);
            const AdditiveModel model(problem, problem.group, node_orders(problem).front());
            Judge judge(problem, model, throughput);
            Placement start = whole;
            model.make_supported(start);
            const std::vector<std::uint64_t> labels(start.begin(), start.end());
            for (const std::int32_t target : {model.items, model.items / 2}) {
                std::mt19937_64 random(1), again(1);
                const Hierarchy hierarchy(model, transfer_ratings(model), {.target = target, .labels = labels}, random);
                again = random;
                Budget budget(1'000'000), same(1'000'000);
                JudgedAnnealing annealing(judge, {});
                const Placement found = annealing.run(hierarchy, start, 1.0, random, 1'000'000, budget);
                CHECK(annealing.run(hierarchy, start, 1.0, again, 1'000'000, same) == found);
                CHECK(budget.moves() == same.moves() && budget.moves() < 1'000'000);
                for (std::int32_t item = 0; item < model.items; ++item) CHECK(model.supports(item, found[item]));
                const double score = judge.exact_score(found);
                CHECK(found == start || score < kOverMemory);
                CHECK(!better(judge.exact_score(start), score));
                if (found != start) ++(target == model.items ? found_within : found_within_coarse);
            }
        }
    }
    CHECK(found_within > 4);
    CHECK(found_within_coarse > 2);
}

// A placement whose cycles could not be broken within the limit of work pays for that work, and not only for the few
// rounds that it took.
void test_work_beyond_the_limit_is_paid() {
    std::mt19937 drawing(5);
    Problem problem = random_problem(drawing, random_graph(drawing, 1500), 2, 1.0);
    const AdditiveModel model(problem, problem.group, node_orders(problem).front());
    Placement scattered(static_cast<std::size_t>(model.items));
    for (std::size_t i = 0; i < scattered.size(); ++i) scattered[i] = static_cast<std::uint8_t>(drawing() % 2);
    Simulator simulator(problem);
    const std::int64_t limit = 400'000;
    const Evaluation limited = simulator.evaluate(scattered.data(), limit);
    CHECK((limited.infeasible & kUnsortable) != 0 && limited.work > limit);
    CHECK((simulator.evaluate(scattered.data()).infeasible & kUnsortable) == 0);
    Judge judge(problem, model, true);
    // The default limit and the number of words for a move are constants of judge.cpp.
    judge.limit_work(static_cast<double>(limit) / 16'000'000);
    Budget budget(1'000'000);
    CHECK(std::isinf(judge.score(scattered, budget)));
    CHECK(1'000'000 - budget.moves() >= model.items + limited.work / 100);
}

void test_canonical_orders_are_topological() {
    std::mt19937 random(31);
    for (int round = 0; round < 20; ++round) {
        Problem problem = random_problem(random, random_graph(random, 60), 2, 3.0);
        const auto nodes = static_cast<std::size_t>(problem.graph->nodes());
        // In every second problem all nodes of a kind cost the same, so that many share a colour.
        if (round % 2 == 0) std::fill(problem.node_us.begin(), problem.node_us.end(), 1.0);
        const std::vector<std::int32_t> order = canonical_order(problem, std::vector<std::int64_t>(nodes, 0));
        std::vector<std::int32_t> place(nodes, -1);
        for (std::size_t k = 0; k < order.size(); ++k) place[order[k]] = static_cast<std::int32_t>(k);
        CHECK(order.size() == nodes && std::find(place.begin(), place.end(), -1) == place.end());
        for (std::int32_t e = 0; e < problem.graph->edges(); ++e) {
            CHECK(place[problem.graph->source[e]] < place[problem.graph->target[e]]);
        }
    }
}

// The number of threads does not change the result.
void test_descents_end_alike_on_any_number_of_threads() {
    std::mt19937 random(29);
    for (int round = 0; round < 6; ++round) {
        const auto problem = std::make_shared<Problem>(random_problem(random, random_graph(random, 60), 3, 3.0));
        std::vector<std::int32_t> coarse(problem->group.size());
        for (std::size_t i = 0; i < coarse.size(); ++i) coarse[i] = static_cast<std::int32_t>(i / 2);
        const SearchSpace space(*problem, coarse);
        SearchOptions options;
        options.throughput = round % 2 == 0;
        // Every third graph counts as large, so that its searches have one turn or two.
        const bool large = round % 3 == 2;
        options.max_moves = large ? 40'000 : 5000;
        options.settings.effort.most_moves = 80'000;
        if (large) options.settings.effort.most_groups = 10;
        const MultilevelResult alone = search_until_agreed(space, {}, options);
        options.threads = 2;
        const MultilevelResult together = search_until_agreed(space, {}, options);
        CHECK(alone.placement == together.placement && alone.score == together.score);
        CHECK(alone.elites == together.elites && alone.cycles == together.cycles);
        CHECK(std::is_sorted(alone.elite_scores.begin(), alone.elite_scores.end()));
        options.max_moves = 80'000;
        for (const std::uint64_t seed : {0, 1}) {
            options.seed = seed;
            CHECK(alone.score <= 1.1 * multilevel_search(space, {}, options).score);
        }
    }
}

void test_structure_of_a_path() {
    constexpr std::int32_t kNodes = 9;
    std::vector<std::int32_t> source(kNodes - 1), target(kNodes - 1);
    std::iota(source.begin(), source.end(), 0);
    std::iota(target.begin(), target.end(), 1);
    const StructureFeatures found = structure_features(kNodes, source, target, 1);
    for (std::int32_t node = 0; node < kNodes; ++node) {
        CHECK(found.position[node] == node && found.depth[node] == node && found.height[node] == kNodes - 1 - node);
        CHECK(found.in_degree[node] == (node > 0) && found.out_degree[node] == (node < kNodes - 1));
        // `node` nodes lead here, at distances 1 … node.
        const double expected = node == 0 ? 0.0 : 2.0 / (node + 1) * node / (kNodes - 1);
        CHECK(close(found.closeness[node], expected));
    }
    // log(1 + r) over log r, the same from both ends.
    CHECK(close(found.fractal_dimension[0], found.fractal_dimension[kNodes - 1]));
    CHECK(found.fractal_dimension[0] > 0.6 && found.fractal_dimension[0] < 1.0);
}

void test_parsing_of_a_ring() {
    const std::vector<std::int32_t> source{0, 1, 2, 3}, target{1, 2, 3, 0};
    const std::vector<float> score{1, 1, 1, 1};
    CHECK((parse(4, source, target, score, 3, 1) == std::vector<std::int32_t>{0, 0, 0, 0}));
    CHECK((parse(4, source, target, score, 3, 2) == std::vector<std::int32_t>{0, 0, 0, 1}));
    bool refused = false;
    try {
        parse(4, source, target, std::vector<float>{1, 1, 1, std::nanf("")}, 1, 1);
    } catch (const std::invalid_argument&) {
        refused = true;
    }
    CHECK(refused);
}

}  // namespace

void test_policy() {
    test_additive_state();
    test_hierarchies_are_acyclic();
    test_circles_are_broken();
    test_segments_are_few_and_supported();
    test_descents_end_where_no_slide_helps();
    test_refinement_keeps_its_promises();
    test_orders_are_topological();
    test_no_placements_are_refined_to_none();
    test_searches_on_threads_find_what_they_find_alone();
    test_annealing_keeps_to_what_devices_run();
    test_annealing_takes_new_surcharges();
    test_judged_annealing_keeps_to_memory_limits();
    test_work_beyond_the_limit_is_paid();
    test_canonical_orders_are_topological();
    test_descents_end_alike_on_any_number_of_threads();
    test_structure_of_a_path();
    test_parsing_of_a_ring();
}
