#include "features.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <random>
#include <stdexcept>

#include "parallel.hpp"

namespace ov_hsdag {
namespace {

struct Adjacency {
    std::vector<std::int32_t> ptr, node;

    // Neighbours over the given edges, from `from` to `to`, and back where `both`.
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

// Breadth-first search whose buffers are used again.
class Search {
public:
    explicit Search(std::int32_t nodes) : seen_(static_cast<std::size_t>(nodes), 0) { order_.reserve(seen_.size()); }

    // Nodes in the order of their distance from `start`, until all are found or a whole level ends beyond `enough`
    // nodes. levels()[r] is the number of nodes within r hops.
    void run(const Adjacency& adjacency, std::int32_t start, std::size_t enough) {
        if (++stamp_ == 0) {
            std::fill(seen_.begin(), seen_.end(), 0);
            stamp_ = 1;
        }
        order_.assign(1, start);
        levels_.clear();
        seen_[start] = stamp_;
        complete_ = true;
        for (std::size_t begin = 0; begin < order_.size();) {
            const std::size_t end = order_.size();
            levels_.push_back(static_cast<std::int32_t>(end));
            if (end > enough) {
                complete_ = false;
                return;
            }
            for (; begin < end; ++begin) {
                const std::int32_t from = order_[begin];
                for (std::int32_t i = adjacency.ptr[from]; i < adjacency.ptr[from + 1]; ++i) {
                    const std::int32_t to = adjacency.node[i];
                    if (seen_[to] == stamp_) continue;
                    seen_[to] = stamp_;
                    order_.push_back(to);
                }
            }
        }
    }

    [[nodiscard]] const std::vector<std::int32_t>& order() const { return order_; }
    [[nodiscard]] const std::vector<std::int32_t>& levels() const { return levels_; }
    [[nodiscard]] bool complete() const { return complete_; }

private:
    std::vector<std::uint32_t> seen_;
    std::vector<std::int32_t> order_, levels_;
    std::uint32_t stamp_ = 0;
    bool complete_ = true;
};

class Slope {
public:
    void add(double x, double y) {
        ++count_;
        x_ += x;
        y_ += y;
        xx_ += x * x;
        xy_ += x * y;
    }
    [[nodiscard]] double value() const {
        const double spread = count_ * xx_ - x_ * x_;
        return count_ < 2 ? 0.0 : (count_ * xy_ - x_ * y_) / spread;
    }

private:
    double count_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;
};

double closeness_of(double reaching, double distance, std::int32_t nodes) {
    // Of (reaching nodes / sum of their distances) · (reaching nodes / all other nodes).
    return distance > 0 ? reaching / distance * reaching / static_cast<double>(nodes - 1) : 0.0;
}

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

std::vector<std::int32_t> draw(std::int32_t nodes, std::int32_t samples, std::uint64_t seed) {
    // Fisher and Yates by hand: std::shuffle differs between standard libraries.
    std::mt19937_64 random(seed);
    std::vector<std::int32_t> drawn(static_cast<std::size_t>(nodes));
    std::iota(drawn.begin(), drawn.end(), 0);
    for (std::int32_t i = 0; i < samples; ++i) {
        std::swap(drawn[i], drawn[i + static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(nodes - i))]);
    }
    drawn.resize(static_cast<std::size_t>(samples));
    return drawn;
}

}  // namespace

StructureFeatures structure_features(std::int32_t nodes, std::span<const std::int32_t> source,
                                     std::span<const std::int32_t> target, const StructureOptions& options) {
    if (nodes < 0 || source.size() != target.size()) throw std::invalid_argument("expected as many sources as targets");
    if (options.samples < 1 || options.ball < 1) throw std::invalid_argument("expected samples and balls of 1 or more");
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
    std::vector<double> log_of(count + 1, 0.0);
    for (std::size_t i = 1; i <= count; ++i) log_of[i] = std::log(static_cast<double>(i));
    const auto threads = static_cast<std::size_t>(std::clamp(options.threads, 1, std::max(nodes, 1)));

    if (nodes <= std::max(options.exact_nodes, options.samples)) {
        parallel_for(count, threads, [&](std::size_t) {
            return [&, search = Search(nodes)](std::size_t item) mutable {
                const auto node = static_cast<std::int32_t>(item);
                search.run(both, node, count);
                Slope slope;
                for (std::size_t r = 1; r < search.levels().size(); ++r)
                    slope.add(log_of[r], log_of[search.levels()[r]]);
                result.fractal_dimension[node] = slope.value();
                search.run(in, node, count);
                double distance = 0;
                for (std::size_t r = 1; r < search.levels().size(); ++r) {
                    distance += static_cast<double>(r) * (search.levels()[r] - search.levels()[r - 1]);
                }
                result.closeness[node] = closeness_of(search.levels().back() - 1, distance, nodes);
            };
        });
        return result;
    }

    const std::vector<std::int32_t> pivots = draw(nodes, options.samples, options.seed);
    const auto samples = static_cast<std::size_t>(options.samples);
    constexpr std::int32_t kFar = std::numeric_limits<std::int32_t>::max();
    // [nodes, samples] hops to each pivot in either direction, and along the edges from it.
    std::vector<std::int32_t> hops(count * samples, kFar);
    std::vector<std::vector<std::int64_t>> reach(threads, std::vector<std::int64_t>(count, 0));
    std::vector<std::vector<std::int64_t>> distance = reach;
    parallel_for(samples, threads, [&](std::size_t thread) {
        return [&, thread, search = Search(nodes)](std::size_t sample) mutable {
            search.run(both, pivots[sample], count);
            for (std::size_t r = 0, i = 0; r < search.levels().size(); ++r) {
                for (; i < static_cast<std::size_t>(search.levels()[r]); ++i) {
                    hops[static_cast<std::size_t>(search.order()[i]) * samples + sample] = static_cast<std::int32_t>(r);
                }
            }
            search.run(out, pivots[sample], count);
            for (std::size_t r = 1, i = 1; r < search.levels().size(); ++r) {
                for (; i < static_cast<std::size_t>(search.levels()[r]); ++i) {
                    ++reach[thread][search.order()[i]];
                    distance[thread][search.order()[i]] += static_cast<std::int64_t>(r);
                }
            }
        };
    });
    const double scale = static_cast<double>(nodes) / options.samples;
    parallel_for(count, threads, [&](std::size_t) {
        return [&, search = Search(nodes)](std::size_t item) mutable {
            const auto node = static_cast<std::int32_t>(item);
            const auto ball = static_cast<std::size_t>(options.ball);
            search.run(in, node, ball);
            double reaching = 0, sum = 0;
            if (search.complete()) {
                reaching = search.levels().back() - 1;
                for (std::size_t r = 1; r < search.levels().size(); ++r) {
                    sum += static_cast<double>(r) * (search.levels()[r] - search.levels()[r - 1]);
                }
            } else {
                for (std::size_t thread = 0; thread < threads; ++thread) {
                    reaching += static_cast<double>(reach[thread][node]) * scale;
                    sum += static_cast<double>(distance[thread][node]) * scale;
                }
            }
            result.closeness[node] = closeness_of(reaching, sum, nodes);

            search.run(both, node, ball);
            Slope slope;
            for (std::size_t r = 1; r < search.levels().size(); ++r) slope.add(log_of[r], log_of[search.levels()[r]]);
            if (!search.complete()) {
                const auto first = hops.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(node) * samples);
                const auto last = first + static_cast<std::ptrdiff_t>(samples);
                std::sort(first, last);
                auto within = static_cast<double>(search.levels().back());
                auto next = first;
                for (auto r = static_cast<std::int32_t>(search.levels().size()); next != last; ++r) {
                    while (next != last && *next <= r) ++next;
                    within = std::max(within, static_cast<double>(next - first) * scale);
                    slope.add(log_of[r], std::log(within));
                    if (next != last && *next == kFar) break;
                }
            }
            result.fractal_dimension[node] = slope.value();
        };
    });
    return result;
}

}  // namespace ov_hsdag
