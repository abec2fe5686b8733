// Degrees, order, depth and height take one walk over the graph. Distances come from breadth-first searches from all
// nodes, 64 at a time, in parallel batches.
#include "features.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>
#include <queue>
#include <stdexcept>
#include <utility>

#include "parallel.hpp"

namespace ov_hsdag {
namespace {

// Neighbours in compressed rows.
struct Adjacency {
    std::vector<std::int32_t> ptr, node;  // [nodes + 1]; neighbours of i: node[ptr[i] … ptr[i + 1] - 1]

    // Lists neighbours along edges from `from` to `to`, and in the other direction if `both` is true.
    Adjacency(std::int32_t nodes, std::span<const std::int32_t> from, std::span<const std::int32_t> to, bool both)
        : ptr(static_cast<std::size_t>(nodes) + 1, 0) {
        for (std::size_t e = 0; e < from.size(); ++e) {
            ++ptr[static_cast<std::size_t>(from[e]) + 1];
            if (both) ++ptr[static_cast<std::size_t>(to[e]) + 1];
        }
        std::partial_sum(ptr.begin(), ptr.end(), ptr.begin());
        node.resize(static_cast<std::size_t>(ptr.back()));
        std::vector<std::int32_t> next(ptr.begin(), ptr.end() - 1);
        for (std::size_t e = 0; e < from.size(); ++e) {
            node[static_cast<std::size_t>(next[from[e]]++)] = to[e];
            if (both) node[static_cast<std::size_t>(next[to[e]]++)] = from[e];
        }
    }
};

// Number of breadth-first searches that run at the same time, one bit of a word for each (Then et al., "The more the
// merrier: efficient multi-source graph traversal", VLDB 2014).
constexpr std::int32_t kSources = 64;

// Runs up to kSources breadth-first searches at once, and reuses their buffers.
class Searches {
public:
    explicit Searches(std::int32_t nodes)
        : seen_(static_cast<std::size_t>(nodes)), here_(seen_.size(), 0), next_(seen_.size(), 0) {}

    // Searches from the nodes first … last - 1, at most `kSources`. Calls `found(source - first, r, count)` for each
    // source with the number of nodes at distance r, for r = 1, 2, … until there are none.
    template <typename Found>
    void run(const Adjacency& adjacency, std::int32_t first, std::int32_t last, const Found& found) {
        std::fill(seen_.begin(), seen_.end(), 0);
        front_.clear();
        for (std::int32_t source = first; source < last; ++source) {
            seen_[source] = here_[source] = std::uint64_t{1} << (source - first);
            front_.push_back(source);
        }
        for (std::int32_t r = 1; !front_.empty(); ++r) {
            reached_.clear();
            for (const std::int32_t from : front_) {
                for (std::int32_t i = adjacency.ptr[from]; i < adjacency.ptr[from + 1]; ++i) {
                    const std::int32_t to = adjacency.node[i];
                    const std::uint64_t first_here = here_[from] & ~seen_[to];
                    if (first_here == 0) continue;
                    if (next_[to] == 0) reached_.push_back(to);
                    next_[to] |= first_here;
                }
            }
            for (const std::int32_t from : front_) here_[from] = 0;
            std::array<std::int32_t, kSources> counts{};
            for (const std::int32_t to : reached_) {
                const std::uint64_t sources = std::exchange(next_[to], 0);
                seen_[to] |= sources;
                here_[to] = sources;
                for (std::uint64_t rest = sources; rest != 0; rest &= rest - 1) ++counts[std::countr_zero(rest)];
            }
            for (std::int32_t source = 0; source < last - first; ++source) {
                if (counts[source] > 0) found(source, r, counts[source]);
            }
            std::swap(front_, reached_);
        }
    }

private:
    std::vector<std::uint64_t> seen_, here_, next_;  // searches that have visited a node, are there, come there next
    std::vector<std::int32_t> front_, reached_;
};

// Closeness centrality of a node (StructureFeatures::closeness). reaching: number of nodes that reach it. distance: sum
// of their distances.
double closeness_of(double reaching, double distance, std::int32_t nodes) {
    // (reaching nodes / sum of their distances) · (reaching nodes / all other nodes)
    return distance > 0 ? reaching / distance * reaching / static_cast<double>(nodes - 1) : 0.0;
}

// Fills position, depth and height. out: neighbours along edges. result: must have the in-degrees.
void find_order(const Adjacency& out, StructureFeatures& result) {
    const auto nodes = static_cast<std::int32_t>(result.in_degree.size());
    std::vector<std::int32_t> waiting = result.in_degree;
    std::vector<std::int32_t> order;
    std::vector<std::uint8_t> done(result.in_degree.size(), 0);
    std::priority_queue<std::int32_t, std::vector<std::int32_t>, std::greater<>> ready;
    for (std::int32_t node = 0; node < nodes; ++node) {
        if (waiting[node] == 0) ready.push(node);
    }
    result.position.assign(result.in_degree.size(), 0);
    result.depth.assign(result.in_degree.size(), 0);
    result.height.assign(result.in_degree.size(), 0);
    order.reserve(result.in_degree.size());
    for (std::int32_t rest = 0; static_cast<std::int32_t>(order.size()) < nodes;) {
        std::int32_t node;
        if (ready.empty()) {
            while (done[rest] != 0) ++rest;
            node = rest;
        } else {
            node = ready.top();
            ready.pop();
        }
        if (done[node] != 0) continue;
        done[node] = 1;
        result.position[node] = static_cast<std::int32_t>(order.size());
        order.push_back(node);
        for (std::int32_t i = out.ptr[node]; i < out.ptr[node + 1]; ++i) {
            const std::int32_t to = out.node[i];
            if (done[to] != 0) continue;
            result.depth[to] = std::max(result.depth[to], result.depth[node] + 1);
            if (--waiting[to] == 0) ready.push(to);
        }
    }
    for (auto node = order.rbegin(); node != order.rend(); ++node) {
        for (std::int32_t i = out.ptr[*node]; i < out.ptr[*node + 1]; ++i) {
            const std::int32_t to = out.node[i];
            if (result.position[to] > result.position[*node]) {
                result.height[*node] = std::max(result.height[*node], result.height[to] + 1);
            }
        }
    }
}

}  // namespace

StructureFeatures structure_features(std::int32_t nodes, std::span<const std::int32_t> source,
                                     std::span<const std::int32_t> target, std::int32_t threads) {
    if (nodes < 0 || source.size() != target.size()) throw std::invalid_argument("expected as many sources as targets");
    const auto count = static_cast<std::size_t>(nodes);
    StructureFeatures result;
    result.in_degree.assign(count, 0);
    result.out_degree.assign(count, 0);
    for (std::size_t e = 0; e < source.size(); ++e) {
        if (source[e] < 0 || source[e] >= nodes || target[e] < 0 || target[e] >= nodes || source[e] == target[e]) {
            throw std::invalid_argument("expected edges between different nodes");
        }
        ++result.out_degree[source[e]];
        ++result.in_degree[target[e]];
    }
    const Adjacency out(nodes, source, target, false);
    const Adjacency in(nodes, target, source, false);
    const Adjacency both(nodes, source, target, true);
    find_order(out, result);

    result.fractal_dimension.assign(count, 0.0);
    result.closeness.assign(count, 0.0);
    // log r, and the sums of the logarithms of 1 … r and of their squares.
    std::vector<double> log_of(count + 1, 0.0), logs(count + 1, 0.0), squares(count + 1, 0.0);
    for (std::size_t r = 1; r <= count; ++r) {
        log_of[r] = std::log(static_cast<double>(r));
        logs[r] = logs[r - 1] + log_of[r];
        squares[r] = squares[r - 1] + log_of[r] * log_of[r];
    }
    const std::size_t batches = (count + kSources - 1) / kSources;
    parallel_for(batches, static_cast<std::size_t>(std::max(threads, 1)), [&](std::size_t) {
        return [&, searches = Searches(nodes)](std::size_t batch) mutable {
            const auto first = static_cast<std::int32_t>(batch) * kSources;
            const std::int32_t last = std::min(first + kSources, nodes);
            std::array<std::int32_t, kSources> farthest{}, within{};
            std::array<double, kSources> sum{},
                products{};  // sums of log(nodes within r hops), and of its products with log r
            within.fill(1);
            searches.run(both, first, last, [&](std::int32_t source, std::int32_t r, std::int32_t found) {
                farthest[source] = r;
                within[source] += found;
                sum[source] += log_of[within[source]];
                products[source] += log_of[r] * log_of[within[source]];
            });
            std::array<double, kSources> reaching{}, distance{};
            searches.run(in, first, last, [&](std::int32_t source, std::int32_t r, std::int32_t found) {
                reaching[source] += found;
                distance[source] += static_cast<double>(r) * found;
            });
            for (std::int32_t node = first; node < last; ++node) {
                const std::int32_t source = node - first;
                const std::int32_t r = farthest[source];
                if (r > 1) {
                    result.fractal_dimension[node] =
                        (r * products[source] - logs[r] * sum[source]) / (r * squares[r] - logs[r] * logs[r]);
                }
                result.closeness[node] = closeness_of(reaching[source], distance[source], nodes);
            }
        };
    });
    return result;
}

}  // namespace ov_hsdag
