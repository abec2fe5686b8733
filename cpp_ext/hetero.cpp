// The splitting rule on bit sets. A split begins with the connected components of equal affinity. While components
// form a cycle, further inputs become boundaries: per node by which boundaries it depends on (split_cycles_once),
// and by the later rule also by isolating single nodes.
#include "hetero.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <numeric>
#include <utility>

namespace ov_hsdag {
namespace {

// Whether two bit sets of `words` words have a common bit.
bool intersects(const std::uint64_t* a, const std::uint64_t* b, std::size_t words) {
    for (std::size_t w = 0; w < words; ++w) {
        if ((a[w] & b[w]) != 0) return true;
    }
    return false;
}

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

void set_bit(std::uint64_t* bits, std::int32_t bit) {
    bits[static_cast<std::size_t>(bit) / 64] |= std::uint64_t{1} << (static_cast<std::size_t>(bit) % 64);
}

}  // namespace

SplitRule split_rule_of(const std::string& openvino_version) {
    char* rest = nullptr;
    const long year = std::strtol(openvino_version.c_str(), &rest, 10);
    const long minor = *rest == '.' ? std::strtol(rest + 1, nullptr, 10) : 0;
    return std::pair(year, minor) >= std::pair(2026L, 3L) ? SplitRule::kScc : SplitRule::kClassic;
}

Splitter::Splitter(const Graph& graph, SplitRule rule) : graph_(graph), rule_(rule) {
    const auto nodes = static_cast<std::size_t>(graph.nodes());
    affinity_.resize(nodes);
    boundary_.resize(static_cast<std::size_t>(graph.edges()));
    component_.resize(nodes);
    parent_.resize(nodes);
    edge_bit_.resize(boundary_.size());
    node_bit_.resize(nodes);
    row_.resize(nodes);
    shared_bit_.resize(nodes);
    only_consumer_.assign(nodes, -1);
    for (std::int32_t e = 0; e < graph.edges(); ++e) {
        const std::int32_t from = graph.source[e];
        if (graph.kind[from] == NodeKind::kConstant && graph.consumers[graph.input_output[e]] == 1) {
            only_consumer_[from] = graph.target[e];
        }
    }
}

const Split& Splitter::split(const std::uint8_t* device, std::int64_t most_work) {
    split_.sortable = true;
    split_.rounds = 0;
    split_.work = 0;
    std::copy(device, device + graph_.nodes(), affinity_.begin());
    for (std::int32_t e = 0; e < graph_.edges(); ++e) {
        const std::int32_t to = graph_.target[e];
        const std::uint8_t from_affinity = affinity_[graph_.source[e]];
        // A Result belongs to the submodel of its producer.
        if (graph_.kind[to] == NodeKind::kResult) affinity_[to] = from_affinity;
        boundary_[e] = affinity_[to] != from_affinity;
    }

    find_components();
    // Without a cycle among the components no node depends on tensors that left its own component, so that the per-node
    // rule has nothing to do. The converse does not hold, hence the further rule for remaining cycles.
    if (find_cyclic_components(true)) {
        work_left_ = most_work;
        while (split_cycles_once()) {
            find_components();
            split_.sortable = split_.sortable && split_.rounds <= graph_.nodes();
            if (!split_.sortable) break;
        }
        split_.sortable = split_.sortable && work_left_ >= 0;
        if (rule_ == SplitRule::kScc) {
            while (find_cyclic_components(true) && split_.sortable) {
                isolate_one_node();
                find_components();
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

void Splitter::find_components() {
    ++split_.rounds;
    std::iota(parent_.begin(), parent_.end(), 0);
    for (std::int32_t e = 0; e < graph_.edges(); ++e) {
        if (boundary_[e] != 0) continue;
        const std::int32_t a = find_root(parent_, graph_.source[e]);
        const std::int32_t b = find_root(parent_, graph_.target[e]);
        // The root is the smallest node, so that one pass numbers the components.
        if (a < b) parent_[b] = a;
        if (b < a) parent_[a] = b;
    }
    components_ = 0;
    for (std::int32_t node = 0; node < graph_.nodes(); ++node) {
        const std::int32_t root = find_root(parent_, node);
        component_[node] = root == node ? components_++ : component_[root];
    }
}

// The rule depends only on tensors that leave a component and return to it, and on boundaries of that component. All of
// these lie within strongly connected components of the quotient graph, so that bits are numbered in each of them.
bool Splitter::find_cyclic_components() {
    find_cyclic_components(true);
    for (std::int32_t e = 0; e < graph_.edges(); ++e) {
        const std::int32_t component = component_[graph_.target[e]];
        // A boundary inside a component is a tensor that leaves it and returns at once.
        if (boundary_[e] != 0 && component_[graph_.source[e]] == component && scc_[component] < 0) {
            scc_[component] = sccs_++;
        }
    }
    return sccs_ > 0;
}

void Splitter::collect_dependencies() {
    const std::int32_t nodes = graph_.nodes();
    std::vector<std::int32_t>& bits = scc_bits_;
    bits.assign(static_cast<std::size_t>(sccs_), 0);
    std::fill(shared_bit_.begin(), shared_bit_.end(), -1);
    std::int32_t rows = 0;
    for (std::int32_t node = 0; node < nodes; ++node) {
        node_bit_[node] = row_[node] = -1;
        const std::int32_t scc = scc_[component_[node]];
        if (scc < 0) continue;
        row_[node] = rows++;
        if (!graph_.is_graph_input(node)) continue;
        const std::int32_t consumer = only_consumer_[node];
        // A constant whose own edge became a boundary is a component by itself and needs its own bit.
        if (consumer >= 0 && component_[consumer] == component_[node]) {
            if (shared_bit_[consumer] < 0) shared_bit_[consumer] = bits[scc]++;
            node_bit_[node] = shared_bit_[consumer];
        } else {
            node_bit_[node] = bits[scc]++;
        }
    }
    for (std::int32_t e = 0; e < graph_.edges(); ++e) {
        edge_bit_[e] = -1;
        const std::int32_t scc = scc_[component_[graph_.target[e]]];
        if (boundary_[e] != 0 && scc >= 0) edge_bit_[e] = bits[scc]++;
    }

    words_ = (static_cast<std::size_t>(*std::max_element(bits.begin(), bits.end())) + 63) / 64;
    work_left_ -= static_cast<std::int64_t>(rows) * static_cast<std::int64_t>(words_);
    if (work_left_ < 0) return;
    const auto width = words_ * 64;
    bit_edge_.assign(static_cast<std::size_t>(sccs_) * width, -1);
    depends_.assign(static_cast<std::size_t>(rows) * words_, 0);
    owned_.assign(static_cast<std::size_t>(components_) * words_, 0);
    produced_.assign(owned_.size(), 0);
    wanted_.assign(owned_.size(), 0);
    left_.assign(owned_.size(), 0);
    entered_.assign(owned_.size(), 0);
    for (std::int32_t node = 0; node < nodes; ++node) {
        if (row_[node] < 0) continue;
        const std::int32_t component = component_[node];
        const std::int32_t scc = scc_[component];
        std::uint64_t* mine = depends(node);
        std::uint64_t* owned = &owned_[static_cast<std::size_t>(component) * words_];
        if (node_bit_[node] >= 0) {
            set_bit(mine, node_bit_[node]);
            set_bit(owned, node_bit_[node]);
        }
        for (std::int32_t e = graph_.input_ptr[node]; e < graph_.input_ptr[node + 1]; ++e) {
            const std::int32_t from = graph_.source[e];
            const bool within = scc_[component_[from]] == scc;
            if (within) {
                const std::uint64_t* theirs = depends(from);
                for (std::size_t w = 0; w < words_; ++w) mine[w] |= theirs[w];
            }
            if (edge_bit_[e] < 0) continue;
            bit_edge_[static_cast<std::size_t>(scc) * width + static_cast<std::size_t>(edge_bit_[e])] = e;
            set_bit(mine, edge_bit_[e]);
            set_bit(owned, edge_bit_[e]);
            if (within) set_bit(&produced_[static_cast<std::size_t>(component_[from]) * words_], edge_bit_[e]);
        }
    }
}

// Sets wanted_ of the node's component to the boundaries before its tensors that return to the node and, by the later
// rule, also to those before tensors of other components that enter on the way to the node.
void Splitter::update_wanted(std::int32_t node) {
    const std::int32_t component = component_[node];
    const std::size_t begin = static_cast<std::size_t>(component) * words_;
    const std::uint64_t* mine = depends(node);
    const std::uint64_t* owned = &owned_[begin];
    const std::uint64_t* produced = &produced_[begin];
    std::uint64_t* wanted = &wanted_[begin];
    std::uint64_t* left = &left_[begin];
    std::uint64_t* entered = &entered_[begin];
    const bool later = rule_ == SplitRule::kScc;
    // Within a component the sets of bits mostly grow from node to node, so that the previous result is extended.
    bool grown = true;
    for (std::size_t w = 0; w < words_ && grown; ++w) {
        grown = (left[w] & ~(mine[w] & produced[w])) == 0 && (entered[w] & ~(mine[w] & owned[w])) == 0;
    }
    if (!grown) {
        std::fill_n(wanted, words_, 0);
        std::fill_n(left, words_, 0);
        std::fill_n(entered, words_, 0);
    }
    const std::int32_t* edge_of = &bit_edge_[static_cast<std::size_t>(scc_[component]) * words_ * 64];
    const auto add = [&](std::int32_t before) {
        const std::uint64_t* bits = depends(before);
        for (std::size_t w = 0; w < words_; ++w) wanted[w] |= bits[w] & owned[w];
        work_left_ -= static_cast<std::int64_t>(words_);
    };
    for (std::size_t w = 0; w < words_; ++w) {
        const auto each = [&](std::uint64_t word, const auto& visit) {
            for (; word != 0; word &= word - 1) {
                visit(edge_of[w * 64 + static_cast<std::size_t>(std::countr_zero(word))]);
            }
        };
        each(mine[w] & produced[w] & ~left[w], [&](std::int32_t edge) { add(graph_.source[edge]); });
        left[w] = mine[w] & produced[w];
        if (!later) continue;
        each(mine[w] & owned[w] & ~entered[w], [&](std::int32_t edge) {
            if (edge >= 0 && component_[graph_.source[edge]] != component) add(graph_.target[edge]);
        });
        entered[w] = mine[w] & owned[w];
    }
}

bool Splitter::split_cycles_once() {
    if (!find_cyclic_components()) return false;
    collect_dependencies();
    if (work_left_ < 0) return false;
    const std::size_t words = words_;
    const auto row = [words](const std::vector<std::uint64_t>& matrix, std::int32_t index) {
        return &matrix[static_cast<std::size_t>(index) * words];
    };
    bool added = false;
    std::vector<std::int32_t> boundaries;
    for (std::int32_t node = 0; node < graph_.nodes(); ++node) {
        if (row_[node] < 0) continue;
        const std::uint64_t* mine = depends(node);
        const std::int32_t* edge_of = &bit_edge_[static_cast<std::size_t>(scc_[component_[node]]) * words * 64];
        const std::uint64_t* produced = row(produced_, component_[node]);
        // The rule is only about nodes that depend on tensors that left their component.
        if (!intersects(mine, produced, words)) continue;
        bool wanted_ready = false;
        for (std::int32_t e = graph_.input_ptr[node]; e < graph_.input_ptr[node + 1]; ++e) {
            if (boundary_[e] != 0) continue;
            // The edge is no boundary, so both of its ends lie in this component.
            const std::int32_t from = graph_.source[e];
            const std::uint64_t* theirs = depends(from);
            // If the source already depends on these tensors, the cycle is closed further up.
            if (intersects(theirs, produced, words)) continue;
            const std::uint64_t* owned = row(owned_, component_[node]);
            const std::uint64_t* wanted = row(wanted_, component_[node]);
            if (!wanted_ready) {
                wanted_ready = true;
                update_wanted(node);
                if (work_left_ < 0) return false;
            }
            bool reaches = false;
            for (std::size_t w = 0; w < words && !reaches; ++w) reaches = (wanted[w] & theirs[w]) != 0;
            if (!reaches) continue;
            if (rule_ == SplitRule::kScc && !graph_.is_graph_input(from) &&
                graph_.consumers[graph_.input_output[e]] == 1) {
                // A source with no other consumer that depends on model inputs only (a decompressed weight) stays.
                bool rests_on_graph_inputs = true;
                for_each_bit(theirs, owned, words, [&](std::int32_t bit) {
                    const std::int32_t edge = edge_of[bit];
                    rests_on_graph_inputs =
                        rests_on_graph_inputs && (edge < 0 || graph_.is_graph_input(graph_.source[edge]));
                });
                if (rests_on_graph_inputs) continue;
            }
            boundaries.push_back(e);
            added = true;
        }
    }
    for (const std::int32_t e : boundaries) boundary_[e] = 1;
    return added;
}

bool Splitter::find_cyclic_components(bool with_constants) {
    const auto components = static_cast<std::size_t>(components_);
    const auto connects = [&](std::int32_t e) {
        return boundary_[e] != 0 && component_[graph_.source[e]] != component_[graph_.target[e]] &&
               (with_constants || graph_.kind[graph_.source[e]] != NodeKind::kConstant);
    };
    quotient_ptr_.assign(components + 1, 0);
    for (std::int32_t e = 0; e < graph_.edges(); ++e) {
        if (!connects(e)) continue;
        ++quotient_ptr_[static_cast<std::size_t>(component_[graph_.source[e]]) + 1];
    }
    std::partial_sum(quotient_ptr_.begin(), quotient_ptr_.end(), quotient_ptr_.begin());
    quotient_edge_.resize(static_cast<std::size_t>(quotient_ptr_.back()));
    order_.assign(quotient_ptr_.begin(), quotient_ptr_.end() - 1);
    for (std::int32_t e = 0; e < graph_.edges(); ++e) {
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
    for (std::int32_t e = graph_.input_ptr[best]; e < graph_.input_ptr[best + 1]; ++e) boundary_[e] = 1;
}

void Splitter::number_submodels() {
    // A component becomes a submodel if it has an input, an output or a state; a lone constant does not.
    std::vector<std::int32_t>& number = order_;
    number.assign(static_cast<std::size_t>(components_), -1);
    split_.submodel.assign(component_.size(), -1);
    split_.submodel_device.clear();
    const auto add = [&](std::int32_t node) {
        std::int32_t& id = number[component_[node]];
        if (id >= 0) return;
        id = split_.submodels();
        split_.submodel_device.push_back(affinity_[node]);
    };
    for (std::int32_t node = 0; node < graph_.nodes(); ++node) {
        const NodeKind kind = graph_.kind[node];
        if (kind == NodeKind::kParameter || kind == NodeKind::kResult || kind == NodeKind::kSink) add(node);
        for (std::int32_t e = graph_.input_ptr[node]; e < graph_.input_ptr[node + 1]; ++e) {
            const std::int32_t from = graph_.source[e];
            // A constant before a boundary stays an inner node of its consumer's submodel; no tensor is passed on.
            if (boundary_[e] == 0 || graph_.kind[from] == NodeKind::kConstant || component_[from] == component_[node])
                continue;
            add(from);
            add(node);
        }
    }
    split_.trivial.assign(split_.submodel_device.size(), 0);
    for (std::int32_t node = 0; node < graph_.nodes(); ++node) {
        // Only submodels that are connected with an operation can be trivial: a Parameter whose only consumer is a
        // Result can be in no other submodel.
        const std::int32_t id = number[component_[node]];
        if (id >= 0 && graph_.computes[node] != 0) split_.trivial[id] = 1;
    }
    for (std::int32_t node = 0; node < graph_.nodes(); ++node) {
        const std::int32_t id = number[component_[node]];
        split_.submodel[node] = id;
        if (id >= 0 && (graph_.kind[node] == NodeKind::kOp || graph_.kind[node] == NodeKind::kSink))
            split_.trivial[id] = 0;
    }
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
