#include "legality.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "groups.hpp"
#include "openvino/core/version.hpp"

namespace ov_hsdag {
namespace {

// Inputs whose values decide the shape of the output. The table of ov_hsdag/legality.py; a test compares the two.
// clang-format off
const std::unordered_map<std::string, std::vector<std::int32_t>> kShapeInputs = {
    {"Reshape", {1}}, {"Squeeze", {1}}, {"Unsqueeze", {1}}, {"Broadcast", {1, 2}}, {"Tile", {1}},
    {"StridedSlice", {1, 2, 3}}, {"Slice", {1, 2, 3, 4}}, {"Gather", {2}}, {"Range", {0, 1, 2}},
    {"Interpolate", {1, 2, 3}}, {"Pad", {1, 2}}, {"TopK", {1}}, {"Split", {1}}, {"VariadicSplit", {1, 2}},
    {"Transpose", {1}}, {"OneHot", {1}}, {"ConvolutionBackpropData", {2}}, {"GroupConvolutionBackpropData", {2}},
    {"RandomUniform", {0}}, {"BatchToSpace", {1, 2, 3}}, {"SpaceToBatch", {1, 2, 3}}, {"NonMaxSuppression", {2}},
    {"AdaptiveAvgPool", {1}}, {"AdaptiveMaxPool", {1}}, {"DFT", {1, 2}}, {"IDFT", {1, 2}}, {"RDFT", {1, 2}},
    {"IRDFT", {1, 2}}, {"Eye", {0, 1, 2, 3}}, {"Multinomial", {1}}, {"PriorBox", {0, 1}}, {"Col2Im", {1, 2}},
    {"PriorBoxClustered", {0, 1}}, {"STFT", {2, 3}}, {"ISTFT", {2, 3, 4}}, {"EmbeddingSegmentsSum", {3}},
    {"SegmentMax", {2}}, {"ReduceMax", {1}}, {"ReduceMin", {1}}, {"ReduceMean", {1}}, {"ReduceSum", {1}},
    {"ReduceProd", {1}}, {"ReduceL1", {1}}, {"ReduceL2", {1}}, {"ReduceLogicalAnd", {1}}, {"ReduceLogicalOr", {1}},
    {"Roll", {1, 2}}, {"MVN", {1}}, {"CumSum", {1}}, {"NormalizeL2", {1}}, {"Loop", {0}}
};
// clang-format on

// A list of dimensions, axes or scales is no longer than this; longer vectors are data.
constexpr std::int64_t kShapeVector = 32;

// A copy would have a state of its own, or draw other numbers.
const std::unordered_set<std::string> kNeverCopied = {"ReadValue", "RandomUniform", "Multinomial"};

Flags shape_arithmetic(const ModelGraph& model) {
    const Graph& graph = model.graph;
    Flags wanted(model.nodes.size(), 0);
    for (std::int32_t node = graph.nodes() - 1; node >= 0; --node) {
        const std::int32_t first = graph.input_ptr[node];
        const std::int32_t inputs = graph.input_ptr[node + 1] - first;
        std::vector<std::int32_t> ports;
        if (wanted[node] != 0) {
            if (model.types[node] != "ShapeOf") {
                ports.resize(static_cast<std::size_t>(inputs));
                std::iota(ports.begin(), ports.end(), 0);
            }
        } else if (const auto found = kShapeInputs.find(model.types[node]); found != kShapeInputs.end()) {
            ports = found->second;
        }
        for (const std::int32_t port : ports) {
            if (port >= inputs) continue;
            const std::int32_t output = graph.input_output[first + port];
            const std::int32_t owner = graph.output_node[output];
            if (graph.kind[owner] == NodeKind::kOp && kNeverCopied.count(model.types[owner]) == 0 &&
                model.is_short(output, kShapeVector)) {
                wanted[owner] = 1;
            }
        }
    }
    return wanted;
}

// The ReadValue and the Assign of each variable that has both.
Pairs states(const ModelGraph& model) {
    std::unordered_map<std::string, std::int32_t> readers;
    Pairs pairs;
    for (std::int32_t node = 0; node < model.graph.nodes(); ++node) {
        if (!model.variables[node].empty() && model.graph.kind[node] != NodeKind::kSink) {
            readers[model.variables[node]] = node;
        }
    }
    for (std::int32_t node = 0; node < model.graph.nodes(); ++node) {
        if (model.graph.kind[node] != NodeKind::kSink) continue;
        const auto reader = readers.find(model.variables[node]);
        if (reader != readers.end()) pairs.emplace_back(reader->second, node);
    }
    return pairs;
}

// Ties every node between a ReadValue and the Assign of its variable to them.
void add_state_paths(const ModelGraph& model, Pairs& pairs) {
    const Graph& graph = model.graph;
    for (const auto& [read, assign] : states(model)) {
        Flags ahead(model.nodes.size(), 0);
        ahead[assign] = 1;
        for (std::int32_t node = assign; node > read; --node) {
            if (ahead[node] == 0) continue;
            for (std::int32_t e = graph.input_ptr[node]; e < graph.input_ptr[node + 1]; ++e) ahead[graph.source[e]] = 1;
        }
        Flags after(model.nodes.size(), 0);
        after[read] = 1;
        for (std::int32_t node = read + 1; node < assign; ++node) {
            for (std::int32_t e = graph.input_ptr[node]; e < graph.input_ptr[node + 1]; ++e) {
                if (after[graph.source[e]] != 0) after[node] = 1;
            }
            if (after[node] != 0 && ahead[node] != 0) pairs.emplace_back(read, node);
        }
    }
}

}  // namespace

Flags constant_nodes(const ModelGraph& model) {
    const Graph& graph = model.graph;
    Flags constant(model.nodes.size(), 0);
    for (std::int32_t node = 0; node < graph.nodes(); ++node) {
        if (graph.kind[node] == NodeKind::kConstant) constant[node] = 1;
        const std::int32_t first = graph.input_ptr[node];
        const std::int32_t last = graph.input_ptr[node + 1];
        if (graph.kind[node] != NodeKind::kOp || first == last || kNeverCopied.count(model.types[node]) != 0) continue;
        constant[node] = 1;
        for (std::int32_t e = first; e < last; ++e) {
            if (constant[graph.source[e]] == 0) constant[node] = 0;
        }
    }
    return constant;
}

Flags followers(const ModelGraph& model) {
    Flags follows = constant_nodes(model);
    const Flags shapes = shape_arithmetic(model);
    for (std::size_t node = 0; node < follows.size(); ++node) follows[node] |= shapes[node];
    return follows;
}

Pairs tied(const ModelGraph& model, const Flags& follows) {
    const Graph& graph = model.graph;
    Pairs pairs;
    std::unordered_map<std::string, std::int32_t> variables;
    std::vector<std::int32_t> user(model.nodes.size(), -1), computing_user(model.nodes.size(), -1);
    for (std::int32_t node = 0; node < graph.nodes(); ++node) {
        const std::string& variable = model.variables[node];
        if (!variable.empty()) pairs.emplace_back(variables.emplace(variable, node).first->second, node);
    }
    for (std::int32_t e = 0; e < graph.edges(); ++e) {
        const std::int32_t source = graph.source[e];
        const std::int32_t target = graph.target[e];
        const bool result = graph.kind[target] == NodeKind::kResult;
        if (result || model.movable[graph.input_output[e]] == 0) pairs.emplace_back(source, target);
        if (user[source] < 0) user[source] = target;
        if (!result && follows[target] == 0 && computing_user[source] < 0) computing_user[source] = target;
    }
    add_state_paths(model, pairs);
    for (std::int32_t node = 0; node < graph.nodes(); ++node) {
        if (graph.kind[node] != NodeKind::kParameter) continue;
        // Its submodel would hold nothing but Parameter → Result otherwise. A computing consumer is the better host.
        const std::int32_t host = computing_user[node] >= 0 ? computing_user[node] : user[node];
        if (host >= 0) pairs.emplace_back(node, host);
    }
    return pairs;
}

Pairs bonds(const ModelGraph& model) {
    const Graph& graph = model.graph;
    const Flags follows = followers(model);
    Pairs pairs;
    for (std::int32_t e = 0; e < graph.edges(); ++e) {
        const std::int32_t source = graph.source[e];
        if (graph.kind[source] == NodeKind::kConstant) continue;
        if (follows[source] != 0 || model.movable[graph.input_output[e]] == 0) {
            pairs.emplace_back(source, graph.target[e]);
        }
    }
    for (const auto& pair : states(model)) pairs.push_back(pair);
    return pairs;
}

std::vector<std::int32_t> merged(const ModelGraph& model, const Pairs& pairs) {
    Groups groups(model.graph.nodes());
    for (const auto& [a, b] : pairs) groups.merge(a, b);
    return groups.numbers();
}

std::vector<std::int32_t> colocation(const ModelGraph& model) {
    const Flags follows = followers(model);
    Pairs pairs = tied(model, follows);
    for (std::int32_t e = 0; e < model.graph.edges(); ++e) {
        if (follows[model.graph.source[e]] != 0) pairs.emplace_back(model.graph.source[e], model.graph.target[e]);
    }
    return merged(model, pairs);
}

std::vector<std::uint8_t> repair(const ModelGraph& model, const std::vector<std::int32_t>& group,
                                 std::vector<std::uint8_t> device, std::int32_t devices) {
    const Graph& graph = model.graph;
    const Pairs pairs = bonds(model);
    Splitter splitter(graph, split_rule());
    std::vector<std::uint8_t> node_device(group.size());
    const auto smallest = [](const std::map<std::int32_t, std::int32_t>& sizes) {
        return std::min_element(sizes.begin(), sizes.end(),
                                [](const auto& a, const auto& b) { return a.second < b.second; })
            ->first;
    };
    for (std::size_t round = 0; round < device.size(); ++round) {
        for (std::size_t node = 0; node < group.size(); ++node) node_device[node] = device[group[node]];
        const Split& split = splitter.split(node_device.data());
        const std::vector<std::int32_t>& submodel = split.submodel;
        const auto trivial = std::find_if(submodel.begin(), submodel.end(),
                                          [&](std::int32_t id) { return id >= 0 && split.trivial[id] != 0; });
        const auto torn = std::find_if(pairs.begin(), pairs.end(),
                                       [&](const auto& pair) { return submodel[pair.first] != submodel[pair.second]; });
        std::int32_t moving = -1;
        std::map<std::int32_t, std::int32_t> sizes;
        if (trivial != submodel.end()) {
            moving = *trivial;
        } else if (torn != pairs.end()) {
            // What tears it is a submodel elsewhere that feeds one end of the bond; the smallest of them comes over.
            const std::int32_t end = submodel[torn->second];
            std::set<std::int32_t> feeders;
            for (std::int32_t e = 0; e < graph.edges(); ++e) {
                const std::int32_t source = graph.source[e];
                const std::int32_t target = graph.target[e];
                if (submodel[target] == end && node_device[source] != node_device[target]) {
                    feeders.insert(submodel[source]);
                }
            }
            for (const std::int32_t id : submodel) {
                if (feeders.count(id) != 0) ++sizes[id];
            }
            moving = sizes.empty() ? end : smallest(sizes);
        } else if (!split.sortable) {
            for (std::size_t node = 0; node < submodel.size(); ++node) {
                if (split.cyclic[node] != 0) ++sizes[submodel[node]];
            }
            moving = smallest(sizes);
        } else {
            return device;
        }
        const auto inside = [&](std::int32_t node) { return submodel[node] == moving; };
        std::vector<std::int64_t> votes(static_cast<std::size_t>(devices), 0);
        for (std::int32_t e = 0; e < graph.edges(); ++e) {
            const std::int32_t source = graph.source[e];
            const std::int32_t target = graph.target[e];
            if (inside(source) != inside(target)) ++votes[node_device[inside(source) ? target : source]];
        }
        std::set<std::int32_t> moved;
        for (std::int32_t node = 0; node < graph.nodes(); ++node) {
            if (inside(node)) moved.insert(group[node]);
        }
        votes[device[*moved.begin()]] = -1;
        const auto best = std::max_element(votes.begin(), votes.end());
        if (*best < 0) break;
        for (const std::int32_t g : moved) device[g] = static_cast<std::uint8_t>(best - votes.begin());
    }
    return std::vector<std::uint8_t>(device.size(), 0);
}

SplitRule split_rule() {
    // "2026.4.1-22982-…": the rule changed in 2026.3 (openvinotoolkit/openvino pull request 36126).
    char* rest = nullptr;
    const long year = std::strtol(ov::get_openvino_version().buildNumber, &rest, 10);
    const long minor = *rest == '.' ? std::strtol(rest + 1, nullptr, 10) : 0;
    return std::pair(year, minor) >= std::pair(2026L, 3L) ? SplitRule::kScc : SplitRule::kClassic;
}

}  // namespace ov_hsdag
