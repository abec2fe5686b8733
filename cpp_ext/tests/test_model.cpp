// Tests of the rules of legality, and of completion by them.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "colocation.hpp"
#include "complete.hpp"
#include "repair.hpp"
#include "tests.hpp"

namespace {

using namespace ov_hsdag;

// Builds a graph in topological order. Each node has one output, so that inputs are given by their producing nodes.
struct Builder {
    std::vector<NodeKind> kinds;
    std::vector<std::int32_t> input_ptr{0}, inputs, output_ptr{0};
    NodeArrays arrays{{}, {}, {}, {}, {}, {0}, {}};

    std::int32_t add(const std::string& type, const std::vector<std::int32_t>& from,
                     const std::vector<std::int64_t>& shape = {2, 3}, const std::string& variable = "") {
        NodeKind kind = NodeKind::kOp;
        if (type == "Parameter") kind = NodeKind::kParameter;
        if (type == "Constant") kind = NodeKind::kConstant;
        if (type == "Result") kind = NodeKind::kResult;
        if (type == "Assign") kind = NodeKind::kSink;
        kinds.push_back(kind);
        inputs.insert(inputs.end(), from.begin(), from.end());
        input_ptr.push_back(static_cast<std::int32_t>(inputs.size()));
        output_ptr.push_back(static_cast<std::int32_t>(kinds.size()));
        arrays.types.push_back(type);
        arrays.variables.push_back(variable);
        arrays.movable.push_back(1);
        arrays.open_lengths.push_back(type == "Gather" ? 1 : 0);
        arrays.ranks.push_back(static_cast<std::int16_t>(shape.size()));
        arrays.dimensions.insert(arrays.dimensions.end(), shape.begin(), shape.end());
        arrays.shape_ptr.push_back(static_cast<std::int32_t>(arrays.dimensions.size()));
        return static_cast<std::int32_t>(kinds.size()) - 1;
    }
    [[nodiscard]] Legality legality() const {
        const std::vector<std::int64_t> sizes(kinds.size(), 8);
        return {std::make_shared<Graph>(kinds, input_ptr, inputs, output_ptr, sizes, sizes), arrays};
    }
};

// x → relu → Reshape, and tanh → Reshape, both by one pattern that is computed from the shape of x.
Builder reshapes() {
    Builder model;
    const auto x = model.add("Parameter", {});
    const auto relu = model.add("Relu", {x});
    const auto shape = model.add("ShapeOf", {x}, {2});
    const auto minus = model.add("Constant", {}, {1});
    const auto pattern = model.add("Concat", {shape, minus}, {3});
    const auto first = model.add("Reshape", {relu, pattern}, {1, 2, 3});
    const auto tanh = model.add("Tanh", {relu});
    const auto second = model.add("Reshape", {tanh, pattern}, {1, 2, 3});
    model.add("Result", {first});
    model.add("Result", {second});
    return model;
}

void test_shape_arithmetic_is_with_its_consumers() {
    const Legality legality = reshapes().legality();
    CHECK((legality.replicable() == Flags{0, 0, 1, 1, 1, 0, 0, 0, 0, 0}));
    CHECK((legality.constant() == Flags{0, 0, 0, 1, 0, 0, 0, 0, 0, 0}));
    const auto& group = legality.groups();
    CHECK(group[2] == group[5] && group[4] == group[5] && group[5] == group[7]);
    CHECK(group[0] == group[1] && group[1] != group[5]);
    CHECK(legality.hosts()[5] != legality.hosts()[7]);
}

void test_copies_for_consumers_elsewhere() {
    const Legality legality = reshapes().legality();
    const std::vector<std::int32_t> home{0, 0, 0, 0, 0, 0, 1, 1, 0, 1};
    const Replication plan = replication(legality, home, {});
    // The pattern first, for the consumer on device 1; what feeds its copy then.
    CHECK(plan.replicas.size() == 3);
    CHECK(plan.replicas[0].node == 4 && plan.replicas[0].inputs.size() == 1 && plan.home[4] == 1);
    CHECK(plan.replicas[0].home == 0 && (plan.replicas[0].inputs[0] == Replica::Input{5, 1}));
    CHECK(plan.replicas[1].node == 3 && (plan.replicas[1].inputs[0] == Replica::Input{10, 1}));
    CHECK(plan.replicas[2].node == 2 && (plan.replicas[2].inputs[0] == Replica::Input{10, 0}));
    const std::vector<std::uint8_t> none(home.size(), 0);
    CHECK(replication(legality, home, none).replicas.empty());
}

void test_states_and_attention_share_a_device() {
    Builder model;
    const auto x = model.add("Parameter", {});
    const auto read = model.add("ReadValue", {}, {2, 3}, "state");
    const auto sum = model.add("Add", {x, read});
    const auto apart = model.add("Relu", {x});
    model.add("Assign", {sum}, {2, 3}, "state");
    const auto attention = model.add("ScaledDotProductAttention", {apart, apart, apart}, {1, 4, 4, 8});
    const auto transpose = model.add("Transpose", {attention}, {1, 4, 4, 8});
    const auto relu = model.add("Relu", {transpose});
    model.add("Result", {relu});
    const Legality legality = model.legality();
    const auto& group = legality.groups();
    CHECK(group[read] == group[sum] && group[sum] == group[4]);
    CHECK(group[attention] == group[transpose] && group[transpose] != group[relu]);
    CHECK((legality.same_submodel() == Pairs{{read, 4}}));
    // Nodes that must share a device get the device of most of them; others follow their producers.
    const std::vector<std::int32_t> known{-1, 1, 1, -1, 0, 1, 1, 0, -1};
    const auto device = host_devices(legality, known, 2);
    CHECK(device[read] == 1 && device[4] == 1 && device[apart] == device[x] && device[relu] == 0);
    const auto settled = complete_in_place(legality, known, 2, SplitRule::kScc);
    CHECK(settled[read] == settled[4] && settled[attention] == settled[transpose]);
}

void test_completed_placements_keep_every_constraint() {
    std::mt19937 random(7);
    const std::vector<std::string> types{"Relu",   "Add",    "ShapeOf",   "Reshape",
                                         "Concat", "MatMul", "Transpose", "Gather"};
    for (int round = 0; round < 200; ++round) {
        Builder model;
        model.add("Parameter", {});
        model.add("Constant", {}, {2});
        while (model.kinds.size() < 30) {
            const auto size = static_cast<std::uint32_t>(model.kinds.size());
            std::vector<std::int32_t> from;
            for (std::uint32_t i = 0; i < 1 + random() % 2; ++i) {
                from.push_back(static_cast<std::int32_t>(size - 1 - random() % std::min(size, 6U)));
            }
            const std::vector<std::int64_t> shape(1 + random() % 2, 4);
            model.add(types[random() % types.size()], from, shape);
            model.arrays.movable.back() = random() % 10 != 0 ? 1 : 0;
        }
        model.add("Result", {29});
        const Legality legality = model.legality();
        std::vector<std::int32_t> known;
        for (std::size_t node = 0; node < model.kinds.size(); ++node) {
            known.push_back(static_cast<std::int32_t>(random() % 4) - 1);
        }
        const auto device = complete_in_place(legality, known, 3, SplitRule::kScc);
        for (const auto& [a, b] : legality.colocated()) CHECK(device[a] == device[b]);
        for (std::int32_t e = 0; e < legality.graph().edges(); ++e) {
            const std::int32_t source = legality.graph().source[e];
            CHECK(legality.replicable()[source] == 0 || device[source] == device[legality.graph().target[e]]);
        }
        Splitter splitter(legality.graph(), SplitRule::kScc);
        const Split& split = splitter.split(device.data());
        CHECK(split.sortable);
        for (const auto& [a, b] : legality.same_submodel()) CHECK(split.submodel[a] == split.submodel[b]);
    }
}

template <typename Call>
void check_refused(Call call) {
    try {
        call();
    } catch (const std::invalid_argument&) {
        return;
    }
    CHECK(false);
}

void test_wrong_arrays_are_refused() {
    const Builder good = reshapes();
    Builder model = good;
    model.arrays.types.pop_back();
    check_refused([&] { (void)model.legality(); });
    model = good;
    model.arrays.ranks[0] = 1;
    check_refused([&] { (void)model.legality(); });
    const Legality legality = good.legality();
    const std::vector<std::int32_t> far(good.kinds.size(), 2);
    check_refused([&] { (void)host_devices(legality, far, 2); });
    check_refused([&] { (void)settle(legality, far, 2, SplitRule::kScc); });
    check_refused([&] { (void)replication(legality, std::vector<std::int32_t>{0}, {}); });
    const std::vector<std::uint8_t> all(4, 1);
    check_refused([&] { (void)repair(legality.graph(), far, {}, {0, 0}, all, 2, SplitRule::kScc); });
}

void test_releases_have_their_rule() {
    CHECK(split_rule_of("2026.4.1-22982-abc") == SplitRule::kScc);
    CHECK(split_rule_of("2026.3.0") == SplitRule::kScc);
    CHECK(split_rule_of("2026.2.0") == SplitRule::kClassic);
    CHECK(split_rule_of("2024.6.0-17404") == SplitRule::kClassic);
}

}  // namespace

void test_model() {
    test_shape_arithmetic_is_with_its_consumers();
    test_copies_for_consumers_elsewhere();
    test_states_and_attention_share_a_device();
    test_completed_placements_keep_every_constraint();
    test_wrong_arrays_are_refused();
    test_releases_have_their_rule();
}
