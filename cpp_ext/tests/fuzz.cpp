// A fuzzing target of libFuzzer: calls the native core with arbitrary arrays that the bindings let in. Invalid input
// must cause std::invalid_argument or std::length_error and nothing else; sanitizers watch for the rest. fuzz_main.cpp
// has a main function for machines without libFuzzer.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../transformations/src/json.hpp"
#include "coarsen.hpp"
#include "colocation.hpp"
#include "complete.hpp"
#include "contiguous.hpp"
#include "descents.hpp"
#include "features.hpp"
#include "graph.hpp"
#include "groups.hpp"
#include "hetero.hpp"
#include "multilevel.hpp"
#include "parse.hpp"
#include "problem.hpp"
#include "refine.hpp"
#include "repair.hpp"
#include "simulate.hpp"

namespace {

using namespace ov_hsdag;

// Makes numbers from the fuzzer's bytes; zeros when no bytes are left.
class Bytes {
public:
    Bytes(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}

    // The next byte.
    std::uint8_t byte() {
        if (left_ == 0) return 0;
        --left_;
        return *data_++;
    }
    // A number from 0 to end - 1; 0 if end is not positive.
    std::int32_t below(std::int32_t end) { return end <= 0 ? 0 : (byte() * 256 + byte()) % end; }
    // True in most cases; callers then make valid values, so that calls get past the checks.
    bool often() { return left_ == 0 || byte() != 0; }

    // Any value of T.
    template <typename T>
    T raw() {
        std::uint8_t bytes[sizeof(T)];
        for (std::uint8_t& one : bytes) one = byte();
        T value;
        std::memcpy(&value, bytes, sizeof(T));
        return value;
    }
    // An index below `end`, or sometimes any number.
    std::int32_t index(std::int32_t end) { return often() ? below(end) : raw<std::int32_t>(); }
    // A time in µs and a size in bytes, or sometimes any number.
    double time() { return often() ? below(1000) * 0.25 : raw<double>(); }
    std::int64_t size() { return often() ? below(5000) : raw<std::int64_t>(); }
    // All remaining bytes as text; they are not consumed.
    std::string_view rest() { return {reinterpret_cast<const char*>(data_), left_}; }

    // A vector of `count` results of make(), or sometimes of another number of them.
    template <typename Make>
    auto many(std::size_t count, const Make& make) {
        if (!often()) count = static_cast<std::size_t>(below(40));  // another number than there should be
        std::vector<decltype(make())> values;
        for (std::size_t i = 0; i < count; ++i) values.push_back(make());
        return values;
    }

private:
    const std::uint8_t* data_;
    std::size_t left_;
};

// The value minus 1; the least value of T stays, as it would overflow.
template <typename T>
T before(T value) {
    return value == std::numeric_limits<T>::min() ? value : static_cast<T>(value - 1);
}

const std::vector<std::string> kTypes = {
    "Add",       "Assign",    "Broadcast", "Concat",    "Constant",
    "Convert",   "Gather",    "MatMul",    "Parameter", "Range",
    "ReadValue", "Reshape",   "Result",    "ShapeOf",   "Softmax",
    "Squeeze",   "Transpose", "Unsqueeze", "Multiply",  "Subtract",
    "Slice",     "If",        "Loop",      "Select",    "ScaledDotProductAttention"};

// Makes a call that may throw the exceptions that Python gets as ValueError.
template <typename Call>
void attempt(const Call& call) {
    try {
        call();
    } catch (const std::invalid_argument&) {
    } catch (const std::length_error&) {
    }
}

// A graph from bytes, mostly a valid one.
std::shared_ptr<Graph> graph_of(Bytes& bytes) {
    const std::int32_t nodes = bytes.below(24);
    std::vector<NodeKind> kinds;
    std::vector<std::int32_t> input_ptr{0}, inputs, output_ptr{0};
    for (std::int32_t node = 0; node < nodes; ++node) {
        kinds.push_back(static_cast<NodeKind>(bytes.often() ? bytes.byte() % 5 : bytes.byte()));
        const std::int32_t outputs = output_ptr.back();
        if (outputs > 0) {
            for (std::int32_t i = bytes.below(4); i > 0; --i) inputs.push_back(bytes.index(outputs));
        }
        input_ptr.push_back(bytes.often() ? static_cast<std::int32_t>(inputs.size()) : bytes.raw<std::int32_t>());
        output_ptr.push_back(outputs + bytes.below(3));
    }
    if (!bytes.often()) output_ptr = bytes.many(output_ptr.size(), [&] { return bytes.index(nodes); });
    const auto sized = [&] { return bytes.size(); };
    const auto outputs = static_cast<std::size_t>(std::max(output_ptr.empty() ? 0 : output_ptr.back(), 0) % 256);
    std::vector<std::int64_t> output_bytes = bytes.many(outputs, sized);
    std::vector<std::int64_t> weight_bytes = bytes.many(kinds.size(), sized);
    return std::make_shared<Graph>(std::move(kinds), std::move(input_ptr), std::move(inputs), std::move(output_ptr),
                                   std::move(output_bytes), std::move(weight_bytes));
}

// Applies the rules of legality and completion to a graph with properties from bytes.
void legality_of(Bytes& bytes, const std::shared_ptr<Graph>& graph) {
    const auto nodes = static_cast<std::size_t>(graph->nodes());
    const auto outputs = static_cast<std::size_t>(graph->outputs());
    NodeArrays arrays;
    const auto type = [&] {
        return kTypes[static_cast<std::size_t>(bytes.below(static_cast<std::int32_t>(kTypes.size())))];
    };
    const auto flag = [&] { return static_cast<std::uint8_t>(bytes.byte() % 2); };
    arrays.types = bytes.many(nodes, type);
    arrays.variables = bytes.many(nodes, [&] { return bytes.often() ? std::string() : std::string("state"); });
    arrays.movable = bytes.many(outputs, flag);
    arrays.open_lengths = bytes.many(nodes, flag);
    arrays.shape_ptr = {0};
    for (std::size_t output = 0; output < outputs; ++output) {
        const std::int32_t rank = bytes.below(5);
        arrays.ranks.push_back(bytes.often() ? static_cast<std::int16_t>(rank) : bytes.raw<std::int16_t>());
        for (std::int32_t i = 0; i < rank; ++i) arrays.dimensions.push_back(bytes.size());
        arrays.shape_ptr.push_back(static_cast<std::int32_t>(arrays.dimensions.size()));
    }
    if (!bytes.often()) arrays.shape_ptr = bytes.many(outputs + 1, [&] { return bytes.index(100); });
    const Legality legality(graph, std::move(arrays));
    const std::int32_t devices = bytes.index(4);
    const SplitRule rule = bytes.byte() % 2 == 0 ? SplitRule::kClassic : SplitRule::kScc;
    const auto device = [&] { return bytes.index(std::min(devices, 4)); };
    attempt([&] {
        (void)host_devices(legality, bytes.many(nodes, [&] { return before(device()); }), std::min(devices, 9));
    });
    attempt([&] { (void)replication(legality, bytes.many(nodes, device), bytes.many(nodes, flag)); });
    attempt([&] { (void)settle(legality, bytes.many(nodes, device), std::min(devices, 9), rule); });
    attempt([&] { (void)complete_in_place(legality, bytes.many(nodes, device), std::min(devices, 9), rule); });
}

// Simulates, searches and repairs placements of a problem from bytes.
void problem_of(Bytes& bytes, const std::shared_ptr<Graph>& graph) {
    const auto nodes = static_cast<std::size_t>(graph->nodes());
    const auto outputs = static_cast<std::size_t>(graph->outputs());
    const std::int32_t count = bytes.below(5);
    const auto devices = static_cast<std::size_t>(count);
    const auto time = [&] { return bytes.time(); };
    const auto size = [&] { return bytes.size(); };
    const auto flag = [&] { return static_cast<std::uint8_t>(bytes.byte() % 4 != 0); };
    const auto node = [&] { return bytes.index(graph->nodes()); };
    auto problem = std::make_shared<Problem>();
    problem->graph = graph;
    problem->rule = bytes.byte() % 2 == 0 ? SplitRule::kClassic : SplitRule::kScc;
    problem->devices = bytes.often() ? count : bytes.raw<std::int32_t>();
    problem->node_us = bytes.many(nodes * devices, time);
    problem->supported = bytes.many(nodes * devices, flag);
    problem->group = bytes.many(nodes, node);
    problem->transfer_us = bytes.many(devices * devices, time);
    problem->transfer_us_per_byte = bytes.many(devices * devices, time);
    problem->submodel_us = bytes.many(devices, time);
    problem->memory_limit = bytes.many(devices, [&] { return before(bytes.size()); });
    if (bytes.often()) problem->same_submodel = bytes.many(2 * static_cast<std::size_t>(bytes.below(4)), node);
    problem->fused_with = bytes.many(nodes * devices, [&] { return before(node()); });
    problem->fusion_penalty_us = bytes.many(nodes * devices, time);
    problem->moved_bytes = bytes.many(outputs, size);
    problem->held_bytes = bytes.many(nodes * devices, size);
    problem->live_bytes = bytes.many(outputs, size);
    problem->transfer_share = bytes.many(devices, [&] { return bytes.below(5) / 4.0; });
    problem->check();

    const std::int32_t groups = problem->groups();
    const auto width = static_cast<std::size_t>(groups);
    // The bindings let in no other device numbers.
    const auto device = [&] { return static_cast<std::uint8_t>(bytes.below(count)); };
    std::vector<std::uint8_t> placement(width);
    for (std::uint8_t& one : placement) one = device();
    attempt([&] { (void)Simulator(*problem).evaluate(placement.data(), 1000); });
    attempt([&] { (void)Simulator(*problem).evaluate(placement.data()); });
    const bool throughput = bytes.byte() % 2 == 0;
    std::vector<std::int32_t> coarse = bytes.many(width, [&] { return bytes.index(groups); });
    attempt([&] {
        const SearchSpace space(*problem, coarse);
        SearchOptions options;
        options.throughput = throughput;
        options.max_moves = 50;
        (void)refine(space, placement, options);
        options.max_moves = 200;
        options.settings.coarsening.target = 2 + bytes.below(8);
        (void)multilevel_search(space, placement, options);
        options.settings.effort.most_moves = 400;
        (void)search_until_agreed(space, placement, options);
    });
    attempt([&] {
        Pairs pairs;
        for (std::int32_t i = bytes.below(4); i > 0; --i) pairs.emplace_back(node(), node());
        (void)repair(*graph, bytes.many(nodes, node), pairs, bytes.many(width, device),
                     bytes.many(width * devices, flag), bytes.often() ? count : bytes.raw<std::int32_t>(),
                     problem->rule);
    });
}

// Groups, parses and measures a graph of edges from bytes.
void edges_of(Bytes& bytes) {
    const std::int32_t nodes = bytes.below(40);
    const auto edges = static_cast<std::size_t>(bytes.below(80));
    const auto node = [&] { return bytes.index(nodes); };
    const std::vector<std::int32_t> source = bytes.many(edges, node), target = bytes.many(edges, node);
    attempt([&] { (void)merge_groups(nodes, source, target); });
    attempt([&] {
        const auto score = bytes.many(edges, [&] { return static_cast<float>(bytes.time()); });
        (void)parse(nodes, source, target, score, bytes.index(5) % 1000, bytes.index(10));
    });
    attempt([&] { (void)structure_features(nodes, source, target, bytes.below(3)); });
}

// Finds contiguous partitions by costs from bytes.
void partitions_of(Bytes& bytes) {
    PartitionCosts costs;
    costs.cuts = 2 + bytes.below(6);
    costs.throughput = bytes.byte() % 2 == 0;
    std::int32_t device = 0;
    for (std::int32_t kind = 1 + bytes.below(3); kind > 0; --kind) {
        costs.kinds.emplace_back();
        for (std::int32_t i = 1 + bytes.below(2); i > 0; --i) costs.kinds.back().push_back(device++);
    }
    // Shapes are valid, as the bindings check them.
    const auto cost = [&] { return bytes.often() ? bytes.time() : PartitionCosts::infinite; };
    const auto fill = [&](std::vector<double>& values, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) values.push_back(cost());
    };
    const auto cuts = static_cast<std::size_t>(costs.cuts);
    const std::size_t kinds = costs.kinds.size();
    PartitionOptions options;
    options.any_order = bytes.byte() % 2 == 0 || kinds != static_cast<std::size_t>(device);
    options.skip = bytes.byte() % 2 == 0;
    options.sequences = bytes.index(4);
    options.per_sequence = bytes.index(4);
    if (options.sequences > 100) options.sequences = 100;
    if (options.per_sequence > 100) options.per_sequence = 100;
    if (bytes.byte() % 2 == 0) {
        fill(costs.span, kinds * cuts * cuts);
    } else {
        fill(costs.work, kinds * cuts);
        fill(costs.fixed, kinds);
        for (std::size_t i = 0; i < kinds * (cuts - 1); ++i) costs.blocked.push_back(bytes.byte() % 2);
    }
    if (!options.skip && bytes.byte() % 2 == 0) {
        fill(costs.enter, kinds * kinds * cuts);
        fill(costs.leave, kinds * kinds * cuts);
    }
    attempt([&] { (void)contiguous_partitions(costs, options); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    Bytes bytes(data, size);
    switch (bytes.byte() % 5) {
        case 0:
            attempt([&] { (void)parse_list(bytes.rest()); });
            attempt([&] { (void)parse_lists(bytes.rest()); });
            break;
        case 1:
            edges_of(bytes);
            break;
        case 2:
            partitions_of(bytes);
            break;
        case 3:
            attempt([&] { legality_of(bytes, graph_of(bytes)); });
            break;
        default:
            attempt([&] { problem_of(bytes, graph_of(bytes)); });
    }
    return 0;
}
