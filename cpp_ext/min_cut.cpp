// Dinic's algorithm: layers of the residual network, then a blocking flow along them, until the sink has no layer.
// After the last round the nodes with a layer are the source's side.
#include "min_cut.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace ov_hsdag {

namespace {

// Share of the largest finite capacity; residual capacities below it are rounding errors and count as 0.
constexpr double kRelativeRest = 1e-12;

// Edges and their reverses in one adjacency array; edge e and its reverse `twin[e]` have residual capacities `rest`.
class ResidualNetwork {
public:
    ResidualNetwork(std::int32_t nodes, std::span<const std::int32_t> start, std::span<const std::int32_t> end,
                    std::span<const double> capacity)
        : first_(static_cast<std::size_t>(nodes) + 1, 0),
          layer_(static_cast<std::size_t>(nodes), -1),
          next_(static_cast<std::size_t>(nodes), 0) {
        const std::size_t edges = start.size();
        for (std::size_t e = 0; e < edges; ++e) {
            ++first_[start[e] + 1];
            ++first_[end[e] + 1];
        }
        for (std::int32_t n = 0; n < nodes; ++n) first_[n + 1] += first_[n];
        head_.resize(2 * edges);
        twin_.resize(2 * edges);
        rest_.resize(2 * edges);
        std::vector<std::int32_t> place(first_.begin(), first_.end() - 1);
        double largest = 0;
        for (std::size_t e = 0; e < edges; ++e) {
            const std::int32_t forth = place[start[e]]++;
            const std::int32_t back = place[end[e]]++;
            head_[forth] = end[e];
            head_[back] = start[e];
            twin_[forth] = back;
            twin_[back] = forth;
            rest_[forth] = capacity[e];
            rest_[back] = 0;
            if (std::isfinite(capacity[e])) largest = std::max(largest, capacity[e]);
        }
        none_ = largest * kRelativeRest;
    }

    // ---- Phase 1: numbers the layers of nodes by breadth first search from the source. Returns whether the sink is
    // reached.
    bool layer(std::int32_t source, std::int32_t sink) {
        std::fill(layer_.begin(), layer_.end(), -1);
        queue_.assign(1, source);
        layer_[source] = 0;
        for (std::size_t at = 0; at < queue_.size(); ++at) {
            const std::int32_t node = queue_[at];
            for (std::int32_t e = first_[node]; e < first_[node + 1]; ++e) {
                if (rest_[e] <= none_ || layer_[head_[e]] >= 0) continue;
                layer_[head_[e]] = layer_[node] + 1;
                queue_.push_back(head_[e]);
            }
        }
        return layer_[sink] >= 0;
    }

    // ---- Phase 2: sends a blocking flow along edges from layer to layer, by depth first search without recursion.
    void block(std::int32_t source, std::int32_t sink) {
        std::copy(first_.begin(), first_.end() - 1, next_.begin());
        path_.clear();
        std::int32_t node = source;
        while (true) {
            if (node == sink) {
                node = augment(source);
                continue;
            }
            const std::int32_t e = advance(node);
            if (e >= 0) {
                path_.push_back(e);
                node = head_[e];
            } else if (path_.empty()) {
                return;
            } else {  // a dead end: the edge to it is not used any more in this phase
                node = head_[twin_[path_.back()]];
                path_.pop_back();
                ++next_[node];
            }
        }
    }

    // Whether the last layering reached a node from the source.
    bool reached(std::int32_t node) const { return layer_[node] >= 0; }

private:
    // The next edge with residual capacity from a node to the next layer; -1 if there is none.
    std::int32_t advance(std::int32_t node) {
        for (std::int32_t& e = next_[node]; e < first_[node + 1]; ++e) {
            if (rest_[e] > none_ && layer_[head_[e]] == layer_[node] + 1) return e;
        }
        return -1;
    }

    // Sends as much flow along the path as its narrowest edge takes. Returns the node before the first saturated edge.
    std::int32_t augment(std::int32_t source) {
        double flow = std::numeric_limits<double>::infinity();
        for (const std::int32_t e : path_) flow = std::min(flow, rest_[e]);
        if (!std::isfinite(flow)) throw std::invalid_argument("expected a cut of finite capacity");
        std::size_t full = path_.size();
        for (std::size_t at = path_.size(); at-- > 0;) {
            rest_[path_[at]] -= flow;
            rest_[twin_[path_[at]]] += flow;
            if (rest_[path_[at]] <= none_) full = at;
        }
        const std::int32_t node = full == 0 ? source : head_[path_[full - 1]];
        path_.resize(full);
        return node;
    }

    std::vector<std::int32_t> first_;  // [nodes + 1], edges of each node
    std::vector<std::int32_t> head_;   // [2 edges] node at which the edge ends
    std::vector<std::int32_t> twin_;   // [2 edges] the reverse edge
    std::vector<double> rest_;         // [2 edges] residual capacity
    std::vector<std::int32_t> layer_;  // [nodes], -1: not reached
    std::vector<std::int32_t> next_;   // [nodes], the first edge that this phase may still use
    std::vector<std::int32_t> queue_;
    std::vector<std::int32_t> path_;  // edges from the source on
    double none_ = 0;                 // residual capacities up to this count as 0
};

}  // namespace

std::vector<std::uint8_t> sink_side_of_min_cut(std::int32_t nodes, std::int32_t source, std::int32_t sink,
                                               std::span<const std::int32_t> start, std::span<const std::int32_t> end,
                                               std::span<const double> capacity) {
    const auto is_node = [nodes](std::int32_t node) { return node >= 0 && node < nodes; };
    if (!is_node(source) || !is_node(sink) || source == sink) {
        throw std::invalid_argument("expected two different nodes as source and sink");
    }
    if (start.size() != capacity.size() || end.size() != capacity.size() ||
        capacity.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max() / 2)) {
        throw std::invalid_argument("expected a start, an end and a capacity for each edge");
    }
    for (std::size_t e = 0; e < capacity.size(); ++e) {
        if (!is_node(start[e]) || !is_node(end[e])) throw std::invalid_argument("expected edges between node numbers");
        if (!(capacity[e] >= 0)) throw std::invalid_argument("expected capacities of 0 or more");
    }
    ResidualNetwork network(nodes, start, end, capacity);
    while (network.layer(source, sink)) network.block(source, sink);
    std::vector<std::uint8_t> side(static_cast<std::size_t>(nodes));
    for (std::int32_t n = 0; n < nodes; ++n) side[n] = !network.reached(n);
    return side;
}

}  // namespace ov_hsdag
