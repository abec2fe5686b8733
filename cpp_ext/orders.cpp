// Orders of nodes by depth, height, live bytes and hashes. A hash of costs and neighbourhoods takes the place of
// node numbers, so that equal structures give equal orders.
#include "orders.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

namespace ov_hsdag {
namespace {

// Rounds in which the hashes of neighbours are mixed into that of a node.
constexpr int kNeighbourRounds = 2;

}  // namespace

// The finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
std::uint64_t mixed(std::uint64_t value) {
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
    return value ^ (value >> 31);
}

std::uint64_t mixed(std::uint64_t a, std::uint64_t b) { return mixed(mixed(a + 0x9E3779B97F4A7C15U) ^ b); }

namespace {

// The order depth first backwards from the outputs, with the inputs of each node before it. earlier(a, b): whether a
// comes before b, for two outputs and for two inputs of a node.
template <typename Earlier>
std::vector<std::int32_t> depth_first(const Graph& graph, Earlier earlier) {
    const auto count = static_cast<std::size_t>(graph.nodes());
    std::vector<std::vector<std::int32_t>> inputs(count);
    std::vector<std::uint8_t> read(count, 0);
    for (std::int32_t e = 0; e < graph.edges(); ++e) {
        inputs[graph.target[e]].push_back(graph.source[e]);
        read[graph.source[e]] = 1;
    }
    std::vector<std::int32_t> ends;
    for (std::int32_t node = 0; node < graph.nodes(); ++node) {
        std::stable_sort(inputs[node].begin(), inputs[node].end(), earlier);
        if (read[node] == 0) ends.push_back(node);
    }
    std::stable_sort(ends.begin(), ends.end(), earlier);
    std::vector<std::int32_t> order;
    std::vector<std::size_t> next(count, 0);
    std::vector<std::uint8_t> opened(count, 0);
    std::vector<std::int32_t> stack;
    for (const std::int32_t end : ends) {
        stack.push_back(end);
        while (!stack.empty()) {
            const std::int32_t node = stack.back();
            opened[node] = 1;
            if (next[node] < inputs[node].size()) {
                const std::int32_t input = inputs[node][next[node]++];
                if (opened[input] == 0) stack.push_back(input);
            } else {
                stack.pop_back();
                order.push_back(node);
            }
        }
    }
    return order;
}

// The orders of one problem, all topological, [nodes]. Equal nodes are ordered by key_: a hash of their costs and
// neighbourhoods, or the keys that the caller gives.
class Orders {
public:
    explicit Orders(const Problem& problem)
        : problem_(problem), graph_(*problem.graph), count_(static_cast<std::size_t>(graph_.nodes())) {
        measure_depths();
        hash();
    }

    Orders(const Problem& problem, std::vector<std::uint64_t> keys)
        : problem_(problem),
          graph_(*problem.graph),
          count_(static_cast<std::size_t>(graph_.nodes())),
          key_(std::move(keys)) {
        measure_depths();
    }

    // The outputs sorted by their depth, with the inputs of each node before it, the longest branch first.
    [[nodiscard]] std::vector<std::int32_t> branches() const {
        const auto is_end = [&](std::int32_t node) { return height_[node] == 0; };
        return depth_first(graph_, [&](std::int32_t a, std::int32_t b) {
            const bool ends = is_end(a) && is_end(b);
            const std::int32_t depth = ends ? depth_[a] - depth_[b] : depth_[b] - depth_[a];
            return depth != 0 ? depth < 0 : key_[a] < key_[b];
        });
    }

    // Nodes sorted by the length of the longest path from the inputs.
    [[nodiscard]] std::vector<std::int32_t> early() const {
        return sorted([&](std::int32_t node) { return std::tuple(depth_[node], -height_[node], key_[node]); });
    }

    // Nodes sorted by the length of the longest path to the outputs.
    [[nodiscard]] std::vector<std::int32_t> late() const {
        return sorted([&](std::int32_t node) { return std::tuple(-height_[node], depth_[node], key_[node]); });
    }

    // The order that takes, at each step, the ready node after which the fewest bytes are alive. Nodes without inputs
    // come right before their first readers.
    [[nodiscard]] std::vector<std::int32_t> least_alive() const {
        std::vector<std::int32_t> waits(count_, 0);
        std::vector<std::int32_t> readers(static_cast<std::size_t>(graph_.outputs()));
        const auto is_input = [&](std::int32_t node) { return graph_.input_ptr[node] == graph_.input_ptr[node + 1]; };
        for (std::int32_t e = 0; e < graph_.edges(); ++e) {
            ++readers[graph_.input_output[e]];
            if (!is_input(graph_.source[e])) ++waits[graph_.target[e]];
        }
        // The change of live bytes if a node runs now.
        const auto growth = [&](std::int32_t node) {
            double bytes = 0;
            for (std::int32_t o = graph_.output_ptr[node]; o < graph_.output_ptr[node + 1]; ++o) {
                bytes += static_cast<double>(problem_.moved(o));
            }
            for (std::int32_t e = graph_.input_ptr[node]; e < graph_.input_ptr[node + 1]; ++e) {
                if (is_input(graph_.source[e])) continue;
                // A tensor of which this node is the last reader is freed, by equal parts for each remaining input.
                const std::int32_t output = graph_.input_output[e];
                if (readers[output] == 1) bytes -= static_cast<double>(problem_.moved(output));
            }
            return bytes;
        };
        using Entry = std::tuple<double, std::int32_t, std::uint64_t, std::int32_t>;
        std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
        const auto enter = [&](std::int32_t node) { ready.emplace(growth(node), -height_[node], key_[node], node); };
        for (std::int32_t node = 0; node < graph_.nodes(); ++node) {
            if (waits[node] == 0 && !(is_input(node) && height_[node] > 0)) enter(node);
        }
        std::vector<std::int32_t> order;
        std::vector<std::uint8_t> done(count_, 0);
        while (!ready.empty()) {
            const auto [bytes, height, key, node] = ready.top();
            ready.pop();
            if (done[node] != 0) continue;
            done[node] = 1;
            for (std::int32_t e = graph_.input_ptr[node]; e < graph_.input_ptr[node + 1]; ++e) {
                const std::int32_t from = graph_.source[e];
                if (is_input(from) && done[from] == 0) {
                    done[from] = 1;
                    order.push_back(from);
                }
                const std::int32_t output = graph_.input_output[e];
                // The last remaining reader of a tensor now frees it, so that its key has changed.
                if (--readers[output] != 1 || is_input(from)) continue;
                for (std::int32_t c = graph_.consumer_ptr[output]; c < graph_.consumer_ptr[output + 1]; ++c) {
                    const std::int32_t reader = graph_.consumer_node[c];
                    if (done[reader] == 0 && waits[reader] == 0) enter(reader);
                }
            }
            order.push_back(node);
            for (std::int32_t o = graph_.output_ptr[node]; o < graph_.output_ptr[node + 1]; ++o) {
                for (std::int32_t c = graph_.consumer_ptr[o]; c < graph_.consumer_ptr[o + 1]; ++c) {
                    if (!is_input(node) && --waits[graph_.consumer_node[c]] == 0) enter(graph_.consumer_node[c]);
                }
            }
        }
        return order;
    }

private:
    // The nodes sorted by key(node).
    template <typename Key>
    [[nodiscard]] std::vector<std::int32_t> sorted(Key key) const {
        std::vector<std::int32_t> order(count_);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return key(a) < key(b); });
        return order;
    }

    // Fills depth_ and height_.
    void measure_depths() {
        depth_.assign(count_, 0);
        height_.assign(count_, 0);
        for (std::int32_t node = 0; node < graph_.nodes(); ++node) {
            for (std::int32_t e = graph_.input_ptr[node]; e < graph_.input_ptr[node + 1]; ++e) {
                depth_[node] = std::max(depth_[node], depth_[graph_.source[e]] + 1);
            }
        }
        for (std::int32_t node = graph_.nodes() - 1; node >= 0; --node) {
            for (std::int32_t e = graph_.input_ptr[node]; e < graph_.input_ptr[node + 1]; ++e) {
                height_[graph_.source[e]] = std::max(height_[graph_.source[e]], height_[node] + 1);
            }
        }
    }

    // Fills key_ with iterated hashes as in the algorithm of Weisfeiler and Leman: of all nodes before a node, of all
    // nodes behind it, of its group and of its neighbours. They are sums, as these do not depend on an order.
    void hash() {
        const std::vector<std::uint64_t> cost = node_costs(problem_);
        std::vector<std::uint64_t> before(cost), behind(cost);
        const auto port = [&](std::int32_t e) {
            return static_cast<std::uint64_t>(graph_.input_output[e] - graph_.output_ptr[graph_.source[e]]);
        };
        for (std::int32_t node = 0; node < graph_.nodes(); ++node) {
            std::uint64_t sum = 0;
            for (std::int32_t e = graph_.input_ptr[node]; e < graph_.input_ptr[node + 1]; ++e) {
                sum += mixed(before[graph_.source[e]], port(e));
            }
            before[node] = mixed(cost[node], sum);
        }
        std::vector<std::uint64_t> sums(count_, 0);
        for (std::int32_t node = graph_.nodes() - 1; node >= 0; --node) {
            behind[node] = mixed(cost[node], sums[node]);
            for (std::int32_t e = graph_.input_ptr[node]; e < graph_.input_ptr[node + 1]; ++e) {
                sums[graph_.source[e]] += mixed(behind[node], port(e));
            }
        }
        key_.resize(count_);
        for (std::size_t node = 0; node < count_; ++node) key_[node] = mixed(before[node], behind[node]);
        std::vector<std::uint64_t> of_group(static_cast<std::size_t>(problem_.groups()), 0);
        for (int round = 0; round < kNeighbourRounds; ++round) {
            std::fill(sums.begin(), sums.end(), 0);
            std::fill(of_group.begin(), of_group.end(), 0);
            for (std::int32_t e = 0; e < graph_.edges(); ++e) {
                sums[graph_.target[e]] += mixed(key_[graph_.source[e]], port(e) * 2);
                sums[graph_.source[e]] += mixed(key_[graph_.target[e]], port(e) * 2 + 1);
            }
            for (std::size_t node = 0; node < count_; ++node) of_group[problem_.group[node]] += mixed(key_[node]);
            for (std::size_t node = 0; node < count_; ++node) {
                key_[node] = mixed(mixed(key_[node], sums[node]), of_group[problem_.group[node]]);
            }
        }
    }

    const Problem& problem_;
    const Graph& graph_;
    std::size_t count_;
    std::vector<std::int32_t> depth_, height_;  // [nodes] length of the longest path from an input, to an output
    std::vector<std::uint64_t> key_;            // [nodes] decides between nodes that are otherwise equal
};

}  // namespace

std::vector<std::uint64_t> node_costs(const Problem& problem) {
    const Graph& graph = *problem.graph;
    const auto width = static_cast<std::size_t>(problem.devices);
    std::vector<std::uint64_t> result(static_cast<std::size_t>(graph.nodes()));
    for (std::int32_t node = 0; node < graph.nodes(); ++node) {
        std::uint64_t value = static_cast<std::uint64_t>(graph.kind[node]);
        for (std::size_t d = 0; d < width; ++d) {
            const std::size_t at = static_cast<std::size_t>(node) * width + d;
            value = mixed(value, std::bit_cast<std::uint64_t>(problem.node_us[at]));
            value = mixed(value, static_cast<std::uint64_t>(problem.held(node, d)) * 2 + problem.supported[at]);
            if (!problem.fused_with.empty() && problem.fused_with[at] >= 0) {
                value = mixed(value, std::bit_cast<std::uint64_t>(problem.fusion_penalty_us[at]));
            }
        }
        for (std::int32_t o = graph.output_ptr[node]; o < graph.output_ptr[node + 1]; ++o) {
            value = mixed(value, static_cast<std::uint64_t>(problem.moved(o)));
            value = mixed(value, static_cast<std::uint64_t>(problem.live()[static_cast<std::size_t>(o)]));
        }
        result[node] = value;
    }
    return result;
}

std::vector<std::int32_t> branch_order(const Problem& problem, std::vector<std::uint64_t> keys) {
    return Orders(problem, std::move(keys)).branches();
}

std::vector<std::vector<std::int32_t>> node_orders(const Problem& problem) {
    const Orders orders(problem);
    return {orders.branches(), orders.late(), orders.early(), orders.least_alive()};
}

std::vector<std::int32_t> item_order(const Problem& problem, std::span<const std::int32_t> item,
                                     std::span<const std::int32_t> node_order) {
    std::int32_t items = 0;
    for (const std::int32_t i : item) items = std::max(items, i + 1);
    std::vector<std::int32_t> order;
    std::vector<std::uint8_t> placed(static_cast<std::size_t>(items), 0);
    std::vector<std::int32_t> first(placed.size(), problem.graph->nodes());  // place of the first operation
    std::vector<std::int32_t> fallback(first);                               // place of the first node of any kind
    for (std::int32_t k = 0; k < problem.graph->nodes(); ++k) {
        const std::int32_t node = node_order[static_cast<std::size_t>(k)];
        const auto i = static_cast<std::size_t>(item[static_cast<std::size_t>(node)]);
        const NodeKind kind = problem.graph->kind[node];
        fallback[i] = std::min(fallback[i], k);
        if (kind == NodeKind::kOp || kind == NodeKind::kSink) first[i] = std::min(first[i], k);
    }
    for (std::size_t i = 0; i < first.size(); ++i) {
        if (first[i] == problem.graph->nodes()) first[i] = fallback[i];
    }
    order.resize(first.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](std::int32_t a, std::int32_t b) { return first[a] != first[b] ? first[a] < first[b] : a < b; });
    return order;
}

std::vector<std::int32_t> random_branch_order(const Problem& problem, std::span<const std::int32_t> from,
                                              std::mt19937_64& random) {
    const Graph& graph = *problem.graph;
    std::vector<std::uint64_t> key(from.size());
    // Nodes without inputs come last, right before their readers.
    constexpr std::uint64_t kLast = std::uint64_t{1} << 63;
    for (const std::int32_t node : from) {
        key[node] = random() | kLast;
        if (graph.input_ptr[node] < graph.input_ptr[node + 1]) key[node] ^= kLast;
    }
    return depth_first(graph, [&](std::int32_t a, std::int32_t b) { return key[a] < key[b]; });
}

OrderedProblem::OrderedProblem(const Problem& problem)
    : problem_(problem), orders_(ov_hsdag::node_orders(problem)), number_(static_cast<std::size_t>(problem.groups())) {
    const std::vector<std::int32_t> order = item_order(problem, problem.group, orders_.front());
    for (std::size_t k = 0; k < order.size(); ++k) number_[order[k]] = static_cast<std::int32_t>(k);
    for (std::int32_t& group : problem_.group) group = number_[group];
}

std::vector<std::vector<std::int32_t>> OrderedProblem::group_orders() const {
    std::vector<std::vector<std::int32_t>> result;
    for (const std::vector<std::int32_t>& nodes : orders_) {
        std::vector<std::int32_t> groups = item_order(problem_, problem_.group, nodes);
        if (std::find(result.begin(), result.end(), groups) == result.end()) result.push_back(std::move(groups));
    }
    return result;
}

}  // namespace ov_hsdag
