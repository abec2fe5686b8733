// The rules of legality, one member function each, in the order in which the constructor applies them
// (colocation.hpp). The tables name types of operations as the OpenVINO specification does. Nodes are numbered in
// topological order, so that loops over ascending numbers see producers before consumers.
#include "colocation.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "groups.hpp"

namespace ov_hsdag {
namespace {

// Input ports whose values determine the shape of the output (OpenVINO operation specifications). Constants at these
// ports need no rule, as they are replicable.
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

// Elements in a list of dimensions, axes or scales, at most; longer vectors are data.
constexpr std::int64_t kShapeVector = 32;

// Types that are never copied: a copy would have its own state, or draw other random numbers.
const std::unordered_set<std::string> kNeverCopied = {"ReadValue", "RandomUniform", "Multinomial"};

// Types of integer arithmetic whose results are unknown if their inputs are (Legality::open_values).
const std::unordered_set<std::string> kOpenValueOps = {"Add",     "Concat",   "Convert",  "Gather",
                                                       "Maximum", "Minimum",  "Multiply", "Reshape",
                                                       "Squeeze", "Subtract", "Unsqueeze"};

// Types that compute masks and position biases: they move data or work element by element, no slower than a transfer.
const std::unordered_set<std::string> kMaskOps = {
    "Add",      "BitwiseAnd", "Broadcast",  "Convert",    "Equal",     "Greater",  "GreaterEqual",
    "Less",     "LessEqual",  "LogicalAnd", "LogicalNot", "LogicalOr", "Maximum",  "Minimum",
    "Multiply", "NotEqual",   "Reshape",    "Select",     "Squeeze",   "Subtract", "Unsqueeze"};

// Types between the cache of an attention and its product: they change the layout, repeat heads, or take the part
// within a window.
const std::unordered_set<std::string> kCacheOps = {"Broadcast", "Concat",    "Convert",      "Gather",       "Multiply",
                                                   "Reshape",   "Slice",     "StridedSlice", "Split",        "Squeeze",
                                                   "Tile",      "Transpose", "Unsqueeze",    "VariadicSplit"};

// Types between the two products of an attention, in addition to Softmax.
const std::unordered_set<std::string> kScoreOps = {"Add",      "Clamp",   "Convert", "Divide",   "Maximum", "Minimum",
                                                   "Multiply", "Reshape", "Select",  "Subtract", "Tanh"};

// The group of each node after merging all pairs, dense numbers, [nodes].
std::vector<std::int32_t> merged(std::int32_t nodes, const Pairs& pairs) {
    Groups groups(nodes);
    for (const auto& [a, b] : pairs) groups.merge(a, b);
    return groups.numbers();
}

}  // namespace

Legality::Legality(std::shared_ptr<const Graph> graph, NodeArrays arrays)
    : graph_(std::move(graph)), arrays_(std::move(arrays)) {
    const auto nodes = static_cast<std::size_t>(graph_->nodes());
    const auto outputs = static_cast<std::size_t>(graph_->outputs());
    const std::vector<std::int32_t>& pointer = arrays_.shape_ptr;
    bool fits = arrays_.types.size() == nodes && arrays_.variables.size() == nodes &&
                arrays_.open_lengths.size() == nodes && arrays_.movable.size() == outputs &&
                arrays_.ranks.size() == outputs && pointer.size() == outputs + 1 && pointer.front() == 0 &&
                static_cast<std::size_t>(pointer.back()) == arrays_.dimensions.size();
    for (std::size_t output = 0; fits && output < outputs; ++output) {
        const std::int32_t dimensions = pointer[output + 1] - pointer[output];
        fits = dimensions >= 0 && (arrays_.ranks[output] != 1 || dimensions == 1);
    }
    if (!fits) throw std::invalid_argument("expected types, variables and shapes of the graph's nodes and outputs");

    constant_ = constant_nodes();
    open_ = open_values();
    replicable_ = shape_arithmetic();
    for (std::size_t node = 0; node < nodes; ++node) replicable_[node] |= constant_[node];
    add_initial_values();
    add_state_paths(state_paths_);
    caches_ = cached_attention();
    add_shared_masks();
    experts_ = find_experts(*graph_, arrays_.types, arrays_.ranks, constant_);
    colocated_ = colocation_constraints();
    same_submodel_ = same_submodel_constraints();
    hosts_ = merged(graph_->nodes(), colocated_);
    Pairs all = colocated_;
    for (std::int32_t e = 0; e < graph_->edges(); ++e) {
        if (replicable_[graph_->source[e]] != 0) all.emplace_back(graph_->source[e], graph_->target[e]);
    }
    groups_ = merged(graph_->nodes(), all);
}

// Constants, and operations that depend on constants only. Operations without inputs and types of kNeverCopied do not
// count.
Flags Legality::constant_nodes() const {
    const Graph& graph = *graph_;
    Flags constant(graph.kind.size(), 0);
    for (std::int32_t node = 0; node < graph.nodes(); ++node) {
        if (graph.kind[node] == NodeKind::kConstant) constant[node] = 1;
        const std::int32_t first = graph.input_ptr[node];
        const std::int32_t last = graph.input_ptr[node + 1];
        if (graph.kind[node] != NodeKind::kOp || first == last || kNeverCopied.count(arrays_.types[node]) != 0)
            continue;
        constant[node] = 1;
        for (std::int32_t e = first; e < last; ++e) {
            if (constant[graph.source[e]] == 0) constant[node] = 0;
        }
    }
    return constant;
}

// Whether an output is a scalar or a short vector.
bool Legality::is_short(std::int32_t output) const {
    const std::int16_t rank = arrays_.ranks[output];
    return rank == 0 || (rank == 1 && arrays_.dimensions[arrays_.shape_ptr[output]] <= kShapeVector);
}

// Nodes that compute lengths without bounds: those of `open_lengths`, and integer arithmetic on them that knows no
// element of its result.
Flags Legality::open_values() const {
    const Graph& graph = *graph_;
    Flags open = arrays_.open_lengths;
    for (std::int32_t node = 0; node < graph.nodes(); ++node) {
        const std::int32_t first = graph.input_ptr[node];
        const std::int32_t last = graph.input_ptr[node + 1];
        const bool computes = graph.output_ptr[node] < graph.output_ptr[node + 1];
        if (open[node] != 0 || !computes || kOpenValueOps.count(arrays_.types[node]) == 0 ||
            !is_short(graph.output_ptr[node])) {
            continue;
        }
        bool any = false;
        bool all = true;
        for (std::int32_t e = first; e < last; ++e) {
            const std::int32_t source = graph.source[e];
            if (open[source] != 0) any = true;
            // A Concat with a constant has known elements; in other operations constants add no knowledge.
            else if (constant_[source] == 0 || arrays_.types[node] == "Concat")
                all = false;
        }
        open[node] = any && all ? 1 : 0;
    }
    return open;
}

// Nodes that compute the values of shape inputs, upwards to a ShapeOf or to where the values are data.
Flags Legality::shape_arithmetic() const {
    const Graph& graph = *graph_;
    Flags wanted(graph.kind.size(), 0);
    const auto want = [&](std::int32_t edge) {
        const std::int32_t output = graph.input_output[edge];
        const std::int32_t owner = graph.output_node[output];
        if (graph.kind[owner] == NodeKind::kOp && kNeverCopied.count(arrays_.types[owner]) == 0 && is_short(output) &&
            open_[owner] == 0) {
            wanted[owner] = 1;
        }
    };
    for (std::int32_t node = graph.nodes() - 1; node >= 0; --node) {
        const std::int32_t first = graph.input_ptr[node];
        const std::int32_t last = graph.input_ptr[node + 1];
        if (wanted[node] != 0) {
            if (arrays_.types[node] == "ShapeOf") continue;
            for (std::int32_t e = first; e < last; ++e) want(e);
        } else if (const auto found = kShapeInputs.find(arrays_.types[node]); found != kShapeInputs.end()) {
            for (const std::int32_t port : found->second) {
                if (first + port < last) want(first + port);
            }
        }
    }
    return wanted;
}

// Makes Broadcasts of constants to initial values of states replicable. Most are empty tensors that the states of all
// layers read.
void Legality::add_initial_values() {
    const Graph& graph = *graph_;
    Flags other(graph.kind.size(), 0), first(graph.kind.size(), 0);
    for (std::int32_t e = 0; e < graph.edges(); ++e) {
        (arrays_.types[graph.target[e]] == "ReadValue" ? first : other)[graph.source[e]] = 1;
    }
    for (std::int32_t node = 0; node < graph.nodes(); ++node) {
        if (arrays_.types[node] != "Broadcast" || first[node] == 0 || other[node] != 0) continue;
        bool cheap = true;
        for (std::int32_t e = graph.input_ptr[node]; e < graph.input_ptr[node + 1]; ++e) {
            const bool data = e == graph.input_ptr[node];
            if ((data ? constant_ : replicable_)[graph.source[e]] == 0) cheap = false;
        }
        if (!cheap) continue;
        replicable_[node] = 1;
        for (std::int32_t e = graph.input_ptr[node] + 1; e < graph.input_ptr[node + 1]; ++e)
            add_open_sizes(graph.source[e]);
    }
}

// Makes the open lengths of a Concat replicable if one of its inputs is a constant of several elements. If an element
// of such a Concat comes from another submodel, OpenVINO knows none of its elements (docs/reference/facts.md), and it
// refuses an initial value of a state without any known length.
void Legality::add_open_sizes(std::int32_t concat) {
    const Graph& graph = *graph_;
    if (arrays_.types[concat] != "Concat") return;
    bool several = false;
    for (std::int32_t e = graph.input_ptr[concat]; e < graph.input_ptr[concat + 1]; ++e) {
        const std::int32_t output = graph.input_output[e];
        several |= constant_[graph.source[e]] != 0 && arrays_.ranks[output] == 1 &&
                   arrays_.dimensions[arrays_.shape_ptr[output]] > 1;
    }
    std::vector<std::int32_t> ahead(several ? 1 : 0, concat);
    while (!ahead.empty()) {
        const std::int32_t node = ahead.back();
        ahead.pop_back();
        for (std::int32_t e = graph.input_ptr[node]; e < graph.input_ptr[node + 1]; ++e) {
            const std::int32_t source = graph.source[e];
            if (replicable_[source] != 0 || (open_[source] == 0 && arrays_.types[source] != "ShapeOf")) continue;
            replicable_[source] = 1;
            if (arrays_.types[source] != "ShapeOf") ahead.push_back(source);
        }
    }
}

// Makes masks replicable: tensors with several readers that HETERO cannot pass on, and that cheap nodes compute from
// others. The mask of a decoder's attention, for example, would otherwise keep all layers together. The tensors from
// which they are computed cross instead.
void Legality::add_shared_masks() {
    const Graph& graph = *graph_;
    Flags fixed(graph.kind.size(), 0);  // 1: has an output that HETERO cannot pass on
    for (std::int32_t output = 0; output < graph.outputs(); ++output) {
        if (arrays_.movable[output] != 1) fixed[graph.output_node[output]] = 1;
    }
    Flags bound(graph.kind.size(), 0);  // 1: cannot be copied, as it belongs to a state or is an output of the model
    for (const auto& [read, node] : state_paths_) bound[read] = bound[node] = 1;
    std::vector<std::int32_t> readers(graph.kind.size(), 0);
    for (std::int32_t e = 0; e < graph.edges(); ++e) {
        const std::int32_t source = graph.source[e];
        ++readers[source];
        if (graph.kind[graph.target[e]] == NodeKind::kResult) bound[source] = 1;
    }
    masks_.assign(graph.kind.size(), 0);
    Flags copied(graph.kind.size(), 0);
    for (std::int32_t node = 0; node < graph.nodes(); ++node) {
        if (fixed[node] == 0 || bound[node] != 0 || replicable_[node] != 0 || graph.kind[node] != NodeKind::kOp ||
            kMaskOps.count(arrays_.types[node]) == 0) {
            continue;
        }
        copied[node] = 1;
        for (std::int32_t e = graph.input_ptr[node]; e < graph.input_ptr[node + 1]; ++e) {
            const std::int32_t source = graph.source[e];
            if (arrays_.movable[graph.input_output[e]] != 1 && copied[source] == 0) copied[node] = 0;
        }
    }
    for (std::int32_t node = graph.nodes() - 1; node >= 0; --node) {
        if (copied[node] == 0 || (readers[node] < 2 && masks_[node] == 0)) continue;
        masks_[node] = replicable_[node] = 1;
        for (std::int32_t e = graph.input_ptr[node]; e < graph.input_ptr[node + 1]; ++e) {
            if (copied[graph.source[e]] != 0) masks_[graph.source[e]] = 1;
        }
    }
}

// The ReadValue and the Assign of each variable that has both.
Pairs Legality::states() const {
    std::unordered_map<std::string, std::int32_t> readers;
    Pairs pairs;
    for (std::int32_t node = 0; node < graph_->nodes(); ++node) {
        if (!arrays_.variables[node].empty() && graph_->kind[node] != NodeKind::kSink) {
            readers[arrays_.variables[node]] = node;
        }
    }
    for (std::int32_t node = 0; node < graph_->nodes(); ++node) {
        if (graph_->kind[node] != NodeKind::kSink) continue;
        const auto reader = readers.find(arrays_.variables[node]);
        if (reader != readers.end()) pairs.emplace_back(reader->second, node);
    }
    return pairs;
}

// Adds pairs of a ReadValue with each node between it and the Assign of its variable. The plugin that holds the state
// needs both in one submodel, so no tensor between them may be cut.
void Legality::add_state_paths(Pairs& pairs) const {
    const Graph& graph = *graph_;
    const auto consumers = [&](std::int32_t node, const auto& visit) {
        for (std::int32_t o = graph.output_ptr[node]; o < graph.output_ptr[node + 1]; ++o) {
            for (std::int32_t c = graph.consumer_ptr[o]; c < graph.consumer_ptr[o + 1]; ++c)
                visit(graph.consumer_node[c]);
        }
    };
    const auto sources = [&](std::int32_t node, const auto& visit) {
        for (std::int32_t e = graph.input_ptr[node]; e < graph.input_ptr[node + 1]; ++e) visit(graph.source[e]);
    };
    // The last state for which each node was reached, from the ReadValue downwards and from the Assign upwards.
    std::vector<std::int32_t> after(graph.kind.size(), -1), ahead(graph.kind.size(), -1);
    std::vector<std::int32_t> down, up;
    std::int32_t state = -1;
    for (const auto& ends : states()) {
        const std::int32_t read = ends.first, assign = ends.second;
        ++state;
        const auto reach = [=](std::int32_t node, std::vector<std::int32_t>& marks,
                               std::vector<std::int32_t>& reached) {
            if (node < read || node > assign || marks[node] == state) return;
            marks[node] = state;
            reached.push_back(node);
        };
        const auto reach_down = [&](std::int32_t node) { reach(node, after, down); };
        const auto reach_up = [&](std::int32_t node) { reach(node, ahead, up); };
        down.clear();
        up.clear();
        reach_down(read);
        reach_up(assign);
        // Walks from both ends in turn until one walk is complete; the other one might go to the first or last layer.
        std::size_t walked = 0;
        for (; walked < down.size() && walked < up.size(); ++walked) {
            consumers(down[walked], reach_down);
            sources(up[walked], reach_up);
        }
        // The incomplete walk is then finished among the nodes that the complete one has reached.
        const bool downwards = walked == down.size();
        std::vector<std::int32_t>& reached = downwards ? down : up;
        std::sort(reached.begin(), reached.end());
        if (downwards) {
            for (auto node = reached.rbegin(); node != reached.rend(); ++node) {
                consumers(*node, [&](std::int32_t next) {
                    if (ahead[next] == state) ahead[*node] = state;
                });
            }
        } else {
            for (const std::int32_t node : reached) {
                sources(node, [&](std::int32_t next) {
                    if (after[next] == state) after[node] = state;
                });
            }
        }
        for (const std::int32_t node : reached) {
            if (node != read && node != assign && after[node] == state && ahead[node] == state)
                pairs.emplace_back(read, node);
        }
    }
}

// Pairs that keep an attention (ScaledDotProductAttention, or MatMul, Softmax, MatMul) together with the states of its
// keys and values and with all nodes between them. Plugins fuse them. The CPU plugin (2026.4; docs/reference/facts.md)
// fails or computes wrong values with a state whose initial value is empty, unless its submodel has the attention or a
// second such state.
Pairs Legality::cached_attention() const {
    enum : std::uint8_t { kNone, kCache, kScores, kWeights };  // the part of an attention that a node computes
    const Graph& graph = *graph_;
    Flags part(graph.kind.size(), kNone), held(graph.kind.size(), 0);
    for (const auto& [read, node] : state_paths_) held[read] = held[node] = 1;
    Pairs pairs;
    Flags bound(graph.kind.size(), 0);
    std::vector<std::int32_t> ahead;
    // Adds the pairs of the attention that ends with a node, from there upwards to the states.
    const auto bind = [&](std::int32_t end) {
        bound[end] = 1;
        ahead.assign(1, end);
        while (!ahead.empty()) {
            const std::int32_t node = ahead.back();
            ahead.pop_back();
            for (std::int32_t e = graph.input_ptr[node]; e < graph.input_ptr[node + 1]; ++e) {
                const std::int32_t source = graph.source[e];
                if (part[source] == kNone) continue;
                pairs.emplace_back(source, node);
                if (bound[source] == 0 && held[source] == 0) ahead.push_back(source);
                bound[source] = 1;
            }
        }
    };
    for (std::int32_t node = 0; node < graph.nodes(); ++node) {
        bool cache = false, scores = false, weights = false;
        for (std::int32_t e = graph.input_ptr[node]; e < graph.input_ptr[node + 1]; ++e) {
            cache |= part[graph.source[e]] == kCache;
            scores |= part[graph.source[e]] == kScores;
            weights |= part[graph.source[e]] == kWeights;
        }
        const std::string& type = arrays_.types[node];
        if (type == "ScaledDotProductAttention" && cache) bind(node);
        if (type == "MatMul" && cache) {
            if (weights)
                bind(node);
            else
                part[node] = kScores;
        } else if (scores && type == "Softmax") {
            part[node] = kWeights;
        } else if ((scores || weights) && kScoreOps.count(type) != 0) {
            part[node] = scores ? kScores : kWeights;
        } else if (held[node] != 0 || (cache && kCacheOps.count(type) != 0)) {
            part[node] = kCache;
        }
    }
    std::sort(pairs.begin(), pairs.end());
    pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
    return pairs;
}

// Keeps an attention with the nodes that compute its queries, keys and values, and with the Transposes around it, as
// plugins fuse them. The CPU plugin (2026.4; docs/reference/facts.md) confuses heads and tokens if the last Transpose
// is in another submodel and there are as many tokens as heads. In bf16 it does not run a dynamic submodel whose
// attentions have different neighbours.
void Legality::add_transposes_of_attention(Pairs& pairs) const {
    const Graph& graph = *graph_;
    const auto is = [&](std::int32_t node, const char* type) { return node >= 0 && arrays_.types[node] == type; };
    for (std::int32_t node = 0; node < graph.nodes(); ++node) {
        Pairs read;  // queries, keys and values, each with its reader
        if (is(node, "ScaledDotProductAttention")) {
            read = {{graph.input(node, 0), node}, {graph.input(node, 1), node}, {graph.input(node, 2), node}};
        } else if (is(node, "MatMul") && is(graph.input(node, 0), "Softmax")) {
            std::int32_t scores = graph.input(graph.input(node, 0), 0);
            while (scores >= 0 && kScoreOps.count(arrays_.types[scores]) != 0) scores = graph.input(scores, 0);
            read = {{graph.input(node, 1), node}};
            if (is(scores, "MatMul")) {
                read.insert(read.end(), {{graph.input(scores, 0), scores}, {graph.input(scores, 1), scores}});
            }
        } else {
            continue;
        }
        // All of several Transposes in a row are included, as normalizing again merges them.
        for (auto [source, reader] : read) {
            while (source >= 0 && graph.kind[source] == NodeKind::kOp) {
                pairs.emplace_back(source, reader);
                reader = std::exchange(source, is(source, "Transpose") ? graph.input(source, 0) : -1);
            }
        }
        for (std::int32_t o = graph.output_ptr[node]; o < graph.output_ptr[node + 1]; ++o) {
            for (std::int32_t c = graph.consumer_ptr[o]; c < graph.consumer_ptr[o + 1]; ++c) {
                if (is(graph.consumer_node[c], "Transpose")) pairs.emplace_back(node, graph.consumer_node[c]);
            }
        }
    }
}

// Keeps a ShapeOf, and open lengths that are taken from it, on the device of the node that computes the tensor.
void Legality::add_lengths(Pairs& pairs) const {
    const Graph& graph = *graph_;
    for (std::int32_t e = 0; e < graph.edges(); ++e) {
        const std::int32_t source = graph.source[e];
        const std::int32_t target = graph.target[e];
        if (arrays_.types[target] == "ShapeOf" && replicable_[target] == 0) pairs.emplace_back(source, target);
        if (arrays_.types[source] == "ShapeOf" && arrays_.open_lengths[target] != 0 && replicable_[target] == 0) {
            pairs.emplace_back(graph.source[graph.input_ptr[source]], target);
        }
    }
}

// Keeps each Parameter with one of its consumers; otherwise its submodel would be only Parameter → Result. Consumers
// that compute are preferred, and among these the one with the longest path to the end of the graph. The beams of a
// decoder, for example, are read by the states of all layers; in a submodel of a later layer they would come too late
// for the first.
void Legality::add_parameters(Pairs& pairs) const {
    const Graph& graph = *graph_;
    std::vector<std::int32_t> height(graph.kind.size(), 0);  // longest path to an end of the graph
    for (std::int32_t e = graph.edges() - 1; e >= 0; --e) {
        height[graph.source[e]] = std::max(height[graph.source[e]], height[graph.target[e]] + 1);
    }
    std::vector<std::int32_t> user(graph.kind.size(), -1), computing(graph.kind.size(), -1);
    const auto earlier = [&](std::int32_t target, std::int32_t than) {
        return than < 0 || height[target] > height[than];
    };
    for (std::int32_t e = 0; e < graph.edges(); ++e) {
        const std::int32_t source = graph.source[e];
        const std::int32_t target = graph.target[e];
        if (earlier(target, user[source])) user[source] = target;
        const bool computes = graph.kind[target] != NodeKind::kResult && replicable_[target] == 0;
        if (computes && earlier(target, computing[source])) computing[source] = target;
    }
    for (std::int32_t node = 0; node < graph.nodes(); ++node) {
        if (graph.kind[node] != NodeKind::kParameter) continue;
        const std::int32_t host = computing[node] >= 0 ? computing[node] : user[node];
        if (host >= 0) pairs.emplace_back(node, host);
    }
}

// Keeps the nodes of each block of experts with the sum at its end, except replicable producers.
void Legality::add_experts(Pairs& pairs) const {
    for (const Experts& block : experts_) {
        for (const std::int32_t node : block.nodes) {
            if (node != block.sum && replicable_[node] == 0) pairs.emplace_back(node, block.sum);
        }
    }
}

// All pairs of nodes that must share a device, except those of replicable producers with their consumers (rule 9).
Pairs Legality::colocation_constraints() const {
    const Graph& graph = *graph_;
    Pairs pairs;
    std::unordered_map<std::string, std::int32_t> variables;
    for (std::int32_t node = 0; node < graph.nodes(); ++node) {
        const std::string& variable = arrays_.variables[node];
        if (!variable.empty()) pairs.emplace_back(variables.emplace(variable, node).first->second, node);
    }
    for (std::int32_t e = 0; e < graph.edges(); ++e) {
        const std::int32_t source = graph.source[e];
        const bool can_cut = arrays_.movable[graph.input_output[e]] != 0 || masks_[source] != 0;
        if (graph.kind[graph.target[e]] == NodeKind::kResult || !can_cut) pairs.emplace_back(source, graph.target[e]);
    }
    pairs.insert(pairs.end(), state_paths_.begin(), state_paths_.end());
    pairs.insert(pairs.end(), caches_.begin(), caches_.end());
    add_transposes_of_attention(pairs);
    add_lengths(pairs);
    add_parameters(pairs);
    add_experts(pairs);
    return pairs;
}

// All pairs of nodes that must share a submodel (rule 10); the header says which and why.
Pairs Legality::same_submodel_constraints() const {
    const Graph& graph = *graph_;
    Pairs pairs;
    for (std::int32_t e = 0; e < graph.edges(); ++e) {
        const std::int32_t source = graph.source[e];
        if (graph.kind[source] == NodeKind::kConstant) continue;
        if (replicable_[source] != 0 || arrays_.movable[graph.input_output[e]] == 0) {
            pairs.emplace_back(source, graph.target[e]);
        }
    }
    for (const auto& pair : states()) pairs.push_back(pair);
    pairs.insert(pairs.end(), caches_.begin(), caches_.end());
    add_experts(pairs);
    return pairs;
}

}  // namespace ov_hsdag
