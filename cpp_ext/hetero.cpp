// The splitting rule on bit sets. Searches split thousands of placements of one graph, most of which have no cycles. So
// the constructor merges what is never split at first, and a split looks only at edges that may be boundaries. A split
// begins with the connected components of equal affinity. While components form a cycle, further inputs become
// boundaries: per node by which boundaries it depends on (split_cycles_once), and by the later rule also by isolating
// single nodes.
#include "hetero.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <numeric>
#include <utility>

namespace ov_hsdag {
namespace {

// Calls visit(number of the bit) for each bit that is in both sets, ascending.
template <typename Visit>
void for_each_bit(const std::uint64_t* bits, const std::uint64_t* mask, std::size_t words, Visit visit) {
    for (std::size_t w = 0; w < words; ++w) {
        for (std::uint64_t word = bits[w] & mask[w]; word != 0; word &= word - 1) {
            visit(static_cast<std::int32_t>(w * 64 + static_cast<std::size_t>(std::countr_zero(word))));
        }
    }
}

// The root of a node's set in a union-find forest; shortens the path to it.
std::int32_t find_root(std::vector<std::int32_t>& parent, std::int32_t node) {
    while (parent[node] != node) {
        parent[node] = parent[parent[node]];
        node = parent[node];
    }
    return node;
}

// Merges the sets of two nodes. The root of a set is its smallest node.
void merge(std::vector<std::int32_t>& parent, std::int32_t a, std::int32_t b) {
    a = find_root(parent, a);
    b = find_root(parent, b);
    if (a < b) parent[b] = a;
    if (b < a) parent[a] = b;
}

// What a node is to the submodel that has it, as bits: it is connected with an operation; it is one.
constexpr std::uint8_t kComputes = 1;
constexpr std::uint8_t kOperation = 2;

void set_bit(std::uint64_t* bits, std::int32_t bit) {
    bits[static_cast<std::size_t>(bit) / 64] |= std::uint64_t{1} << (static_cast<std::size_t>(bit) % 64);
}

bool has_bit(const std::uint64_t* bits, std::int32_t bit) {
    return (bits[static_cast<std::size_t>(bit) / 64] >> (static_cast<std::size_t>(bit) % 64) & 1) != 0;
}

}  // namespace

SplitRule split_rule_of(const std::string& openvino_version) {
    char* rest = nullptr;
    const long year = std::strtol(openvino_version.c_str(), &rest, 10);
    const long minor = *rest == '.' ? std::strtol(rest + 1, nullptr, 10) : 0;
    return std::pair(year, minor) >= std::pair(2026L, 3L) ? SplitRule::kScc : SplitRule::kClassic;
}

Splitter::Splitter(const Graph& graph, SplitRule rule, std::span<const std::int32_t> group)
    : graph_(graph), rule_(rule) {
    const auto nodes = static_cast<std::size_t>(graph.nodes());
    affinity_.resize(nodes);
    boundary_.assign(static_cast<std::size_t>(graph.edges()), 0);
    component_.resize(nodes);
    rooted_.resize(nodes);
    edge_bit_.assign(boundary_.size(), -1);
    node_bit_.resize(nodes);
    row_.resize(nodes);
    words_of_row_.resize(nodes);
    only_consumer_.assign(nodes, -1);
    content_.resize(nodes);
    std::iota(rooted_.begin(), rooted_.end(), 0);
    for (std::int32_t e = 0; e < graph.edges(); ++e) {
        const std::int32_t from = graph.source[e];
        const std::int32_t to = graph.target[e];
        if (graph.kind[from] == NodeKind::kConstant && graph.input_ptr[from] == graph.input_ptr[from + 1] &&
            graph.output_ptr[from + 1] - graph.output_ptr[from] == 1 && graph.consumers[graph.input_output[e]] == 1) {
            only_consumer_[from] = to;
        }
        // A Result belongs to the submodel of its producer.
        const bool to_result = graph.kind[to] == NodeKind::kResult;
        if (to_result) result_edges_.push_back(e);
        if (to_result || (!group.empty() && group[from] == group[to] && graph.kind[from] != NodeKind::kResult)) {
            merge(rooted_, from, to);
        } else {
            open_edges_.push_back(e);
        }
    }
    for (std::int32_t node = 0; node < graph.nodes(); ++node) {
        rooted_[node] = find_root(rooted_, node);
        const NodeKind kind = graph.kind[node];
        if (kind == NodeKind::kParameter || kind == NodeKind::kResult || kind == NodeKind::kSink) ends_.push_back(node);
        content_[node] = static_cast<std::uint8_t>((graph.computes[node] != 0 ? kComputes : 0) |
                                                   (kind == NodeKind::kOp || kind == NodeKind::kSink ? kOperation : 0));
    }
}

const Split& Splitter::split(const std::uint8_t* device, std::int64_t most_work) {
    split_.sortable = true;
    split_.rounds = 0;
    split_.work = 0;
    begin(device);
    find_first_components();
    // Without a cycle among the components no node depends on tensors that left its own component, so that the per-node
    // rule has nothing to do. The converse does not hold, hence the further rule for remaining cycles.
    if (find_cyclic_components(true)) {
        work_left_ = most_work;
        while (split_cycles_once()) {
            find_changed_components();
            split_.sortable = split_.sortable && split_.rounds <= graph_.nodes();
            if (!split_.sortable) break;
        }
        split_.sortable = split_.sortable && work_left_ >= 0;
        if (rule_ == SplitRule::kScc) {
            while (find_cyclic_components(true) && split_.sortable) {
                isolate_one_node();
                find_changed_components();
                work_left_ -= graph_.nodes();
                split_.sortable = work_left_ >= 0;
            }
        } else {
            // Constants are compiled into their consumers, so that no submodel waits for one.
            split_.sortable = !find_cyclic_components(false) && split_.sortable;
        }
        split_.work = most_work - work_left_;
    }
    split_.cyclic.clear();
    if (!split_.sortable) {
        for (const std::int32_t component : component_) split_.cyclic.push_back(scc_[component] >= 0 ? 1 : 0);
    }
    number_submodels();
    return split_;
}

void Splitter::begin(const std::uint8_t* device) {
    for (const std::int32_t e : boundaries_) {
        boundary_[e] = 0;
        edge_bit_[e] = -1;
    }
    boundaries_.clear();
    std::copy(device, device + graph_.nodes(), affinity_.begin());
    for (const std::int32_t e : result_edges_) affinity_[graph_.target[e]] = affinity_[graph_.source[e]];
    for (const std::int32_t e : open_edges_) {
        if (affinity_[graph_.source[e]] == affinity_[graph_.target[e]]) continue;
        boundary_[e] = 1;
        boundaries_.push_back(e);
    }
}

void Splitter::add_boundaries(std::span<const std::int32_t> edges) {
    const auto before = static_cast<std::ptrdiff_t>(boundaries_.size());
    for (const std::int32_t e : edges) {
        boundary_[e] = 1;
        changed_[component_[graph_.target[e]]] = 1;
    }
    boundaries_.insert(boundaries_.end(), edges.begin(), edges.end());
    std::inplace_merge(boundaries_.begin(), boundaries_.begin() + before, boundaries_.end());
}

void Splitter::find_first_components() {
    parent_ = rooted_;
    for (const std::int32_t e : open_edges_) {
        if (boundary_[e] == 0) merge(parent_, graph_.source[e], graph_.target[e]);
    }
    number_components();
}

void Splitter::find_changed_components() {
    for (std::int32_t node = 0; node < graph_.nodes(); ++node) {
        if (changed_[component_[node]] == 0) continue;
        parent_[node] = node;
        for (std::int32_t e = graph_.input_ptr[node]; e < graph_.input_ptr[node + 1]; ++e) {
            if (boundary_[e] == 0) merge(parent_, graph_.source[e], node);
        }
    }
    number_components();
}

void Splitter::number_components() {
    ++split_.rounds;
    components_ = 0;
    for (std::int32_t node = 0; node < graph_.nodes(); ++node) {
        component_[node] = parent_[node] == node ? components_++ : component_[parent_[node]];
    }
    changed_.assign(static_cast<std::size_t>(components_), 0);
}

// The rule depends only on tensors that leave a component and return to it, and on boundaries of that component. All of
// these lie within strongly connected components of the quotient graph, so that bits are numbered in each of them.
bool Splitter::find_cyclic_components() {
    find_cyclic_components(true);
    for (const std::int32_t e : boundaries_) {
        const std::int32_t component = component_[graph_.target[e]];
        // A boundary inside a component is a tensor that leaves it and returns at once.
        if (component_[graph_.source[e]] == component && scc_[component] < 0) scc_[component] = sccs_++;
    }
    return sccs_ > 0;
}

void Splitter::collect_dependencies() {
    const std::int32_t nodes = graph_.nodes();
    // Bits are numbered in the order of the nodes. So a node depends on no bit after its own, and the bits of a
    // component are mostly close to each other.
    std::vector<std::int32_t>& bits = scc_bits_;
    bits.assign(static_cast<std::size_t>(sccs_), 0);
    for (const std::int32_t e : boundaries_) edge_bit_[e] = -1;
    std::int32_t rows = 0;
    std::int32_t inside = 0;
    for (std::int32_t node = 0; node < nodes; ++node) {
        node_bit_[node] = row_[node] = -1;
        const std::int32_t scc = scc_[component_[node]];
        if (scc < 0) continue;
        if (is_inside(node)) {
            ++inside;
            continue;
        }
        row_[node] = rows++;
        // A constant whose own edge became a boundary is a component by itself and needs its own bit.
        if (graph_.is_graph_input(node)) node_bit_[node] = bits[scc]++;
        std::int32_t shared = -1;
        for (std::int32_t e = graph_.input_ptr[node]; e < graph_.input_ptr[node + 1]; ++e) {
            if (boundary_[e] != 0) {
                edge_bit_[e] = bits[scc]++;
            } else if (is_inside(graph_.source[e])) {
                if (shared < 0) shared = bits[scc]++;
                node_bit_[graph_.source[e]] = shared;
            }
        }
        words_of_row_[node] = (bits[scc] + 63) / 64;
    }

    words_ = (static_cast<std::size_t>(*std::max_element(bits.begin(), bits.end())) + 63) / 64;
    // Constants count as rows, although they need none: the limits of work were chosen so.
    work_left_ -= static_cast<std::int64_t>(rows + inside) * static_cast<std::int64_t>(words_);
    if (work_left_ < 0) return;
    const auto width = words_ * 64;
    bit_edge_.assign(static_cast<std::size_t>(sccs_) * width, -1);
    depends_.resize(static_cast<std::size_t>(rows) * words_);
    owned_.assign(static_cast<std::size_t>(components_) * words_, 0);
    entering_.assign(owned_.size(), 0);
    produced_.assign(owned_.size(), 0);
    wanted_.assign(owned_.size(), 0);
    left_.assign(owned_.size(), 0);
    entered_.assign(owned_.size(), 0);
    owned_words_.assign(static_cast<std::size_t>(components_), {});
    produced_words_.assign(static_cast<std::size_t>(components_), {});
    const auto set = [&](std::vector<std::uint64_t>& matrix, std::vector<Words>& spans, std::int32_t component,
                         std::int32_t bit) {
        set_bit(&matrix[static_cast<std::size_t>(component) * words_], bit);
        spans[component].include(static_cast<std::size_t>(bit) / 64);
    };
    for (std::int32_t node = 0; node < nodes; ++node) {
        const std::int32_t component = component_[node];
        const std::int32_t scc = scc_[component];
        if (scc < 0) continue;
        if (node_bit_[node] >= 0) set(owned_, owned_words_, component, node_bit_[node]);
        if (row_[node] < 0) continue;
        std::uint64_t* mine = depends(node);
        std::fill_n(mine, words_, 0);
        if (node_bit_[node] >= 0) set_bit(mine, node_bit_[node]);
        for (std::int32_t e = graph_.input_ptr[node]; e < graph_.input_ptr[node + 1]; ++e) {
            const std::int32_t from = graph_.source[e];
            const bool within = scc_[component_[from]] == scc;
            if (within && row_[from] >= 0) {
                const std::uint64_t* theirs = depends(from);
                for (std::size_t w = 0; w < static_cast<std::size_t>(words_of_row_[from]); ++w) mine[w] |= theirs[w];
            } else if (within) {
                set_bit(mine, node_bit_[from]);
            }
            if (edge_bit_[e] < 0) continue;
            bit_edge_[static_cast<std::size_t>(scc) * width + static_cast<std::size_t>(edge_bit_[e])] = e;
            set_bit(mine, edge_bit_[e]);
            set(owned_, owned_words_, component, edge_bit_[e]);
            if (component_[from] != component)
                set_bit(&entering_[static_cast<std::size_t>(component) * words_], edge_bit_[e]);
            if (within) set(produced_, produced_words_, component_[from], edge_bit_[e]);
        }
    }
}

bool Splitter::returns_to(std::int32_t component, std::int32_t node) {
    const std::uint64_t* produced = &produced_[static_cast<std::size_t>(component) * words_];
    if (row_[node] < 0) return has_bit(produced, node_bit_[node]);
    const std::uint64_t* mine = depends(node);
    const Words span = produced_words_[component];
    for (std::size_t w = span.begin; w < span.end; ++w) {
        if ((mine[w] & produced[w]) != 0) return true;
    }
    return false;
}

bool Splitter::wants_boundary(std::int32_t component, std::int32_t node) {
    const std::size_t begin = static_cast<std::size_t>(component) * words_;
    const std::uint64_t* wanted = &wanted_[begin];
    if (row_[node] < 0) return has_bit(wanted, node_bit_[node]);
    const std::uint64_t* theirs = depends(node);
    const std::uint64_t* owned = &owned_[begin];
    const Words span = owned_words_[component];
    for (std::size_t w = span.begin; w < span.end; ++w) {
        if ((wanted[w] & owned[w] & theirs[w]) != 0) return true;
    }
    return false;
}

void Splitter::update_wanted(std::int32_t node) {
    const std::int32_t component = component_[node];
    const std::size_t begin = static_cast<std::size_t>(component) * words_;
    const std::uint64_t* mine = depends(node);
    const std::uint64_t* owned = &owned_[begin];
    const std::uint64_t* entering = &entering_[begin];
    const std::uint64_t* produced = &produced_[begin];
    std::uint64_t* wanted = &wanted_[begin];
    std::uint64_t* left = &left_[begin];
    std::uint64_t* entered = &entered_[begin];
    const bool later = rule_ == SplitRule::kScc;
    // Only bits that the component owns or produces matter.
    Words span = owned_words_[component];
    if (produced_words_[component].begin < produced_words_[component].end) {
        span.include(produced_words_[component].begin);
        span.include(produced_words_[component].end - 1);
    }
    // Within a component the sets of bits mostly grow from node to node, so that the previous result is extended.
    bool grown = true;
    for (std::size_t w = span.begin; w < span.end && grown; ++w) {
        grown = (left[w] & ~(mine[w] & produced[w])) == 0 && (entered[w] & ~(mine[w] & owned[w])) == 0;
    }
    if (!grown) {
        std::fill(wanted + span.begin, wanted + span.end, 0);
        std::fill(left + span.begin, left + span.end, 0);
        std::fill(entered + span.begin, entered + span.end, 0);
    }
    const std::int32_t* edge_of = &bit_edge_[static_cast<std::size_t>(scc_[component]) * words_ * 64];
    // Adds what `before` depends on, unless a node after the boundary was added: that one depends on all of it.
    const auto add = [&](std::size_t bit, std::int32_t before) {
        work_left_ -= static_cast<std::int64_t>(words_);
        if (has_bit(wanted, static_cast<std::int32_t>(bit))) return;
        const std::uint64_t* bits = depends(before);
        for (std::size_t w = span.begin; w < span.end; ++w) wanted[w] |= bits[w];
    };
    // Late boundaries first, as nodes after them depend on much.
    for (std::size_t w = span.end; w-- > span.begin;) {
        const auto each = [&](std::uint64_t word, const auto& visit) {
            while (word != 0) {
                const auto bit = static_cast<std::size_t>(63 - std::countl_zero(word));
                word ^= std::uint64_t{1} << bit;
                visit(w * 64 + bit, edge_of[w * 64 + bit]);
            }
        };
        if (later) {
            each(mine[w] & entering[w] & ~entered[w],
                 [&](std::size_t bit, std::int32_t edge) { add(bit, graph_.target[edge]); });
            entered[w] = mine[w] & owned[w];
        }
        each(mine[w] & produced[w] & ~left[w],
             [&](std::size_t bit, std::int32_t edge) { add(bit, graph_.source[edge]); });
        left[w] = mine[w] & produced[w];
    }
}

bool Splitter::split_cycles_once() {
    if (!find_cyclic_components()) return false;
    collect_dependencies();
    if (work_left_ < 0) return false;
    std::vector<std::int32_t> boundaries;
    for (std::int32_t node = 0; node < graph_.nodes(); ++node) {
        const std::int32_t component = component_[node];
        // The rule is only about nodes that depend on tensors that left their component.
        if (row_[node] < 0 || !returns_to(component, node)) continue;
        bool wanted_ready = false;
        for (std::int32_t e = graph_.input_ptr[node]; e < graph_.input_ptr[node + 1]; ++e) {
            if (boundary_[e] != 0) continue;
            // The edge is no boundary, so both of its ends lie in this component. If the source already depends on
            // these tensors, the cycle is closed further up.
            const std::int32_t from = graph_.source[e];
            if (returns_to(component, from)) continue;
            if (!wanted_ready) {
                wanted_ready = true;
                update_wanted(node);
                if (work_left_ < 0) return false;
            }
            if (!wants_boundary(component, from)) continue;
            if (rule_ == SplitRule::kScc && !graph_.is_graph_input(from) &&
                graph_.consumers[graph_.input_output[e]] == 1) {
                // A source with no other consumer that depends on model inputs only (a decompressed weight) stays.
                const std::uint64_t* theirs = depends(from);
                const std::uint64_t* owned = &owned_[static_cast<std::size_t>(component) * words_];
                const std::int32_t* edge_of = &bit_edge_[static_cast<std::size_t>(scc_[component]) * words_ * 64];
                bool rests_on_graph_inputs = true;
                for_each_bit(theirs, owned, words_, [&](std::int32_t bit) {
                    const std::int32_t edge = edge_of[bit];
                    rests_on_graph_inputs =
                        rests_on_graph_inputs && (edge < 0 || graph_.is_graph_input(graph_.source[edge]));
                });
                if (rests_on_graph_inputs) continue;
            }
            boundaries.push_back(e);
        }
    }
    add_boundaries(boundaries);
    return !boundaries.empty();
}

bool Splitter::find_cyclic_components(bool with_constants) {
    const auto components = static_cast<std::size_t>(components_);
    const auto connects = [&](std::int32_t e) {
        return component_[graph_.source[e]] != component_[graph_.target[e]] &&
               (with_constants || graph_.kind[graph_.source[e]] != NodeKind::kConstant);
    };
    quotient_ptr_.assign(components + 1, 0);
    for (const std::int32_t e : boundaries_) {
        if (!connects(e)) continue;
        ++quotient_ptr_[static_cast<std::size_t>(component_[graph_.source[e]]) + 1];
    }
    std::partial_sum(quotient_ptr_.begin(), quotient_ptr_.end(), quotient_ptr_.begin());
    quotient_edge_.resize(static_cast<std::size_t>(quotient_ptr_.back()));
    order_.assign(quotient_ptr_.begin(), quotient_ptr_.end() - 1);
    for (const std::int32_t e : boundaries_) {
        if (!connects(e)) continue;
        quotient_edge_[static_cast<std::size_t>(order_[component_[graph_.source[e]]]++)] = component_[graph_.target[e]];
    }

    sccs_ = strong_.find(quotient_ptr_, quotient_edge_, scc_);
    return sccs_ > 0;
}

void Splitter::isolate_one_node() {
    // The rule isolates one node of one cyclic component by making all of its inner inputs boundaries. It prefers, in
    // this order: nodes that a tensor of a cyclic component enters; nodes with an inner input from a node with several
    // users; nodes without a private source that depends on model inputs only; nodes that are no link of a chain; few
    // inner inputs; early nodes.
    const auto rests_on_inputs = [&](std::int32_t node) {
        if (graph_.is_graph_input(node) || graph_.compute_users[node] != 1) return false;
        for (std::int32_t e = graph_.input_ptr[node]; e < graph_.input_ptr[node + 1]; ++e) {
            if (!graph_.is_graph_input(graph_.source[e])) return false;
        }
        return true;
    };
    std::int32_t best = -1;
    std::array<std::int32_t, 5> best_rank{};
    for (std::int32_t node = 0; node < graph_.nodes(); ++node) {
        if (scc_[component_[node]] < 0) continue;
        std::int32_t inner = 0;
        bool entered = false;
        bool shared_source = false;
        bool helper = false;
        for (std::int32_t e = graph_.input_ptr[node]; e < graph_.input_ptr[node + 1]; ++e) {
            const std::int32_t from = graph_.source[e];
            if (boundary_[e] != 0) {
                entered = entered || (component_[from] != component_[node] && scc_[component_[from]] >= 0);
                continue;
            }
            ++inner;
            shared_source = shared_source || graph_.compute_users[from] > 1;
            helper = helper || rests_on_inputs(from);
        }
        if (inner == 0) continue;
        const bool link = inner == 1 && graph_.compute_users[node] <= 1;
        const std::array<std::int32_t, 5> rank{entered ? 0 : 1, shared_source ? 0 : 1, helper ? 1 : 0, link ? 1 : 0,
                                               inner};
        if (best < 0 || rank < best_rank) {
            best = node;
            best_rank = rank;
        }
    }
    std::vector<std::int32_t> inner;
    for (std::int32_t e = graph_.input_ptr[best]; e < graph_.input_ptr[best + 1]; ++e) {
        if (boundary_[e] == 0) inner.push_back(e);
    }
    add_boundaries(inner);
}

void Splitter::number_submodels() {
    // A component becomes a submodel if it has an input, an output or a state; a lone constant does not.
    std::vector<std::int32_t>& number = order_;
    number.assign(static_cast<std::size_t>(components_), -1);
    split_.submodel.resize(component_.size());
    split_.submodel_device.clear();
    const auto add = [&](std::int32_t node) {
        std::int32_t& id = number[component_[node]];
        if (id >= 0) return;
        id = split_.submodels();
        split_.submodel_device.push_back(affinity_[node]);
    };
    auto end = ends_.begin();
    for (const std::int32_t e : boundaries_) {
        const std::int32_t from = graph_.source[e];
        const std::int32_t to = graph_.target[e];
        for (; end != ends_.end() && *end <= to; ++end) add(*end);
        // A constant before a boundary stays an inner node of its consumer's submodel; no tensor is passed on.
        if (graph_.kind[from] == NodeKind::kConstant || component_[from] == component_[to]) continue;
        add(from);
        add(to);
    }
    for (; end != ends_.end(); ++end) add(*end);
    // A submodel is trivial if it has no operation, but its nodes are connected with one: a Parameter whose only
    // consumer is a Result can be in no other submodel.
    split_.trivial.assign(split_.submodel_device.size(), 0);
    for (std::int32_t node = 0; node < graph_.nodes(); ++node) {
        const std::int32_t id = number[component_[node]];
        split_.submodel[node] = id;
        if (id >= 0) split_.trivial[id] |= content_[node];
    }
    for (std::uint8_t& trivial : split_.trivial) trivial = trivial == kComputes ? 1 : 0;
}

std::vector<std::int32_t> turns_of(const Graph& graph, const Split& split) {
    std::vector<std::int32_t> turn(split.submodel_device.size(), 0);
    for (bool changed = true; changed;) {
        changed = false;
        for (std::int32_t e = 0; e < graph.edges(); ++e) {
            // A constant is compiled into its consumers.
            if (graph.kind[graph.source[e]] == NodeKind::kConstant) continue;
            const std::int32_t from = split.submodel[graph.source[e]];
            const std::int32_t to = split.submodel[graph.target[e]];
            if (from < 0 || to < 0 || from == to || turn[to] > turn[from]) continue;
            if (turn[from] >= split.submodels()) return turn;  // a cycle, which HETERO does not compile
            turn[to] = turn[from] + 1;
            changed = true;
        }
    }
    return turn;
}

}  // namespace ov_hsdag
