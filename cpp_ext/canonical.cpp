// Colour refinement by partition refinement. Vertices are the nodes and the colocation groups; labelled edges carry
// the graph, groups, fusions and same-submodel constraints. A queue has the cells by which other cells still have to
// be split.
#include "canonical.hpp"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <numeric>
#include <stdexcept>
#include <tuple>

#include "orders.hpp"

namespace ov_hsdag {
namespace {

// Relations between two vertices; costs and sizes are part of the edges' labels.
enum Relation : std::uint64_t { kFeeds, kIsFed, kHas, kIsOf, kIsFusedWith, kFuses, kSharesSubmodel, kRelations };

struct Edge {
    std::int32_t from, to;  // vertices
    std::uint64_t label;    // hash of the relation and of ports or devices
};

// The labelled edges between vertices, which are the nodes followed by the colocation groups.
std::vector<Edge> edges_of(const Problem& problem) {
    const Graph& graph = *problem.graph;
    std::vector<Edge> edges;
    const auto connect = [&](std::int32_t a, std::int32_t b, Relation there, Relation back, std::uint64_t label) {
        edges.push_back({a, b, mixed(label, there)});
        edges.push_back({b, a, mixed(label, back)});
    };
    for (std::int32_t e = 0; e < graph.edges(); ++e) {
        const std::int32_t from = graph.source[e];
        const std::int32_t to = graph.target[e];
        const auto output = static_cast<std::uint64_t>(graph.input_output[e] - graph.output_ptr[from]);
        connect(from, to, kFeeds, kIsFed, mixed(output, static_cast<std::uint64_t>(e - graph.input_ptr[to])));
    }
    for (std::int32_t node = 0; node < graph.nodes(); ++node) {
        connect(graph.nodes() + problem.group[node], node, kHas, kIsOf, 0);
    }
    const auto width = static_cast<std::size_t>(problem.devices);
    for (std::size_t at = 0; at < problem.fused_with.size(); ++at) {
        const std::int32_t with = problem.fused_with[at];
        if (with >= 0) connect(static_cast<std::int32_t>(at / width), with, kIsFusedWith, kFuses, at % width);
    }
    for (std::size_t i = 0; i < problem.same_submodel.size(); i += 2) {
        connect(problem.same_submodel[i], problem.same_submodel[i + 1], kSharesSubmodel, kSharesSubmodel, 0);
    }
    return edges;
}

// A partition of vertices into cells of equal colour. Members of a cell are consecutive in `members_`, and the number
// of a cell is the position of its first member.
class Partition {
public:
    Partition(const std::vector<Edge>& edges, const std::vector<std::uint64_t>& colours)
        : members_(colours.size()),
          place_(colours.size()),
          cell_(colours.size()),
          size_(colours.size(), 0),
          queued_(colours.size(), 0),
          edge_ptr_(colours.size() + 1, 0),
          edges_(edges.size()),
          sum_(colours.size(), 0),
          is_touched_(colours.size(), 0) {
        for (const Edge& edge : edges) ++edge_ptr_[static_cast<std::size_t>(edge.from) + 1];
        std::partial_sum(edge_ptr_.begin(), edge_ptr_.end(), edge_ptr_.begin());
        std::vector<std::size_t> next(edge_ptr_.begin(), edge_ptr_.end() - 1);
        for (const Edge& edge : edges) edges_[next[edge.from]++] = edge;
        std::iota(members_.begin(), members_.end(), 0);
        std::stable_sort(members_.begin(), members_.end(),
                         [&](std::int32_t a, std::int32_t b) { return colours[a] < colours[b]; });
        std::size_t begin = 0;
        for (std::size_t k = 0; k < members_.size(); ++k) {
            if (colours[members_[k]] != colours[members_[begin]]) begin = k;
            put(members_[k], k, begin);
            if (size_[begin]++ == 0) enqueue(begin);
        }
    }

    // Refines and singles out vertices until every vertex has a cell of its own.
    void make_discrete() {
        refine();
        for (std::size_t cell = 0; cell < members_.size(); cell += size_[cell]) {
            while (size_[cell] > 1) {
                single_out(cell);
                refine();
            }
        }
    }

    // Cell of each vertex, [vertices].
    [[nodiscard]] const std::vector<std::size_t>& cells() const { return cell_; }

private:
    // A vertex that an edge of the splitter leads to.
    struct Touched {
        std::size_t cell;
        std::uint64_t sum;  // of the labels of these edges
        std::int32_t vertex;
    };

    // Puts a vertex at a place of members_ and into a cell.
    void put(std::int32_t vertex, std::size_t place, std::size_t cell) {
        members_[place] = vertex;
        place_[vertex] = place;
        cell_[vertex] = cell;
    }

    // Adds a cell to the queue unless it is there.
    void enqueue(std::size_t cell) {
        if (queued_[cell] != 0) return;
        queued_[cell] = 1;
        queue_.push_back(cell);
    }

    // Moves the vertex with the least number of a cell into a cell of its own, behind the others.
    void single_out(std::size_t cell) {
        const auto begin = members_.begin() + static_cast<std::ptrdiff_t>(cell);
        const std::size_t last = cell + size_[cell] - 1;
        const std::int32_t least = *std::min_element(begin, begin + static_cast<std::ptrdiff_t>(size_[cell]));
        const std::size_t place = place_[least];
        put(members_[last], place, cell);
        put(least, last, last);
        --size_[cell];
        size_[last] = 1;
        enqueue(last);
    }

    // Splits cells until vertices of one cell have equal sums of labels from every cell.
    void refine() {
        while (!queue_.empty()) {
            const std::size_t splitter = queue_.front();
            queue_.pop_front();
            queued_[splitter] = 0;
            collect_touched(splitter);
            for (auto first = touched_.begin(); first != touched_.end();) {
                const auto end = std::find_if(first, touched_.end(),
                                              [&](const Touched& other) { return other.cell != first->cell; });
                split(std::span<const Touched>(first, end));
                first = end;
            }
        }
    }

    // Collects the vertices that edges of the splitter's members lead to, sorted by cell and by the sum of labels.
    void collect_touched(std::size_t splitter) {
        touched_.clear();
        for (std::size_t k = splitter; k < splitter + size_[splitter]; ++k) {
            const auto vertex = static_cast<std::size_t>(members_[k]);
            for (std::size_t e = edge_ptr_[vertex]; e < edge_ptr_[vertex + 1]; ++e) {
                const std::int32_t to = edges_[e].to;
                sum_[to] += edges_[e].label;
                if (is_touched_[to] == 0) touched_.push_back({cell_[to], 0, to});
                is_touched_[to] = 1;
            }
        }
        for (Touched& one : touched_) {
            one.sum = sum_[one.vertex];
            sum_[one.vertex] = 0;
            is_touched_[one.vertex] = 0;
        }
        std::sort(touched_.begin(), touched_.end(), [](const Touched& a, const Touched& b) {
            return std::tie(a.cell, a.sum, a.vertex) < std::tie(b.cell, b.sum, b.vertex);
        });
    }

    // Splits a cell by the sums of its touched vertices, sorted by sum; vertices that were not touched stay in front.
    void split(std::span<const Touched> touched) {
        const std::size_t cell = touched.front().cell;
        const std::size_t end = cell + size_[cell];
        const std::size_t untouched = size_[cell] - touched.size();
        if (size_[cell] == 1 || (untouched == 0 && touched.front().sum == touched.back().sum)) return;
        move_behind(touched, end);
        std::vector<std::size_t> cells;
        if (untouched > 0) cells.push_back(cell);
        size_[cell] = untouched;
        for (std::size_t k = 0; k < touched.size(); ++k) {
            if (k == 0 || touched[k].sum != touched[k - 1].sum) {
                cells.push_back(cell + untouched + k);
                size_[cells.back()] = 0;
            }
            put(touched[k].vertex, cell + untouched + k, cells.back());
            ++size_[cells.back()];
        }
        // If the cell was still in the queue, all parts must split others; otherwise the largest part follows from the
        // others.
        const auto largest = std::max_element(cells.begin(), cells.end(),
                                              [&](std::size_t a, std::size_t b) { return size_[a] < size_[b]; });
        const bool all = queued_[cell] != 0;
        for (auto part = cells.begin(); part != cells.end(); ++part) {
            if (all || part != largest) enqueue(*part);
        }
    }

    // Moves the touched vertices to the end of their cell, which ends at `end`.
    void move_behind(std::span<const Touched> touched, std::size_t end) {
        const std::size_t begin = end - touched.size();
        for (const Touched& one : touched) is_touched_[one.vertex] = 1;
        std::size_t next = begin;
        for (const Touched& one : touched) {
            const std::size_t place = place_[one.vertex];
            if (place >= begin) continue;
            while (is_touched_[members_[next]] != 0) ++next;
            const std::int32_t other = members_[next++];
            put(other, place, cell_[other]);
        }
        for (const Touched& one : touched) is_touched_[one.vertex] = 0;
    }

    std::vector<std::int32_t> members_;     // [vertices]
    std::vector<std::size_t> place_;        // [vertices] in `members_`
    std::vector<std::size_t> cell_;         // [vertices]
    std::vector<std::size_t> size_;         // by cell
    std::deque<std::size_t> queue_;         // cells by which others still have to be split
    std::vector<std::uint8_t> queued_;      // by cell
    std::vector<std::size_t> edge_ptr_;     // [vertices + 1]
    std::vector<Edge> edges_;               // sorted by their first vertex
    std::vector<std::uint64_t> sum_;        // [vertices]
    std::vector<std::uint8_t> is_touched_;  // [vertices]
    std::vector<Touched> touched_;
};

}  // namespace

std::vector<std::int32_t> canonical_order(const Problem& problem, std::span<const std::int64_t> labels) {
    const auto nodes = static_cast<std::size_t>(problem.graph->nodes());
    if (labels.size() != nodes) throw std::invalid_argument("expected one label per node");
    std::vector<std::uint64_t> colours = node_costs(problem);
    for (std::size_t node = 0; node < nodes; ++node) {
        colours[node] = mixed(colours[node], static_cast<std::uint64_t>(labels[node]));
    }
    colours.resize(nodes + static_cast<std::size_t>(problem.groups()), 0);
    Partition partition(edges_of(problem), colours);
    partition.make_discrete();
    const std::vector<std::size_t>& cells = partition.cells();
    return branch_order(problem, {cells.begin(), cells.begin() + static_cast<std::ptrdiff_t>(nodes)});
}

}  // namespace ov_hsdag
