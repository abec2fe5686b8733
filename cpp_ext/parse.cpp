// Graph parsing on a union-find structure: each level finds the best edge of each cluster among the original edges
// and merges along these edges, the highest score first.
#include "parse.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "groups.hpp"

namespace ov_hsdag {

std::vector<std::int32_t> parse(std::int32_t nodes, std::span<const std::int32_t> source,
                                std::span<const std::int32_t> target, std::span<const float> score, std::int32_t levels,
                                std::int32_t min_clusters) {
    const auto edges = static_cast<std::int32_t>(score.size());
    if (nodes < 0 || levels < 0 || min_clusters < 1) {
        throw std::invalid_argument("expected no negative 'nodes' and 'levels', and 'min_clusters' of 1 or more");
    }
    if (source.size() != score.size() || target.size() != score.size()) {
        throw std::invalid_argument("expected one score per edge");
    }
    for (std::int32_t e = 0; e < edges; ++e) {
        if (source[e] < 0 || source[e] >= nodes || target[e] < 0 || target[e] >= nodes) {
            throw std::invalid_argument("expected edges between node numbers");
        }
        if (!std::isfinite(score[e])) throw std::invalid_argument("expected finite edge scores");
    }

    std::int32_t clusters = nodes;
    Groups groups(nodes);
    std::vector<std::int32_t> best(static_cast<std::size_t>(nodes));
    std::vector<std::int32_t> chosen;
    // The best edge of a cluster in the quotient graph is the best of the original edges that leave it, so that the
    // quotient graph need not be built.
    for (std::int32_t level = 0; level < levels && clusters > min_clusters; ++level) {
        std::fill(best.begin(), best.end(), -1);
        for (std::int32_t e = 0; e < edges; ++e) {
            const std::int32_t a = groups.root(source[e]);
            const std::int32_t b = groups.root(target[e]);
            if (a == b) continue;
            for (const std::int32_t end : {a, b}) {
                if (best[end] < 0 || score[e] > score[best[end]]) best[end] = e;
            }
        }
        chosen.clear();
        for (const std::int32_t e : best) {
            if (e >= 0) chosen.push_back(e);
        }
        if (chosen.empty()) break;
        std::sort(chosen.begin(), chosen.end(),
                  [&](std::int32_t a, std::int32_t b) { return score[a] != score[b] ? score[a] > score[b] : a < b; });
        chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
        for (const std::int32_t e : chosen) {
            if (clusters == min_clusters) break;
            const std::int32_t a = groups.root(source[e]);
            const std::int32_t b = groups.root(target[e]);
            if (a == b) continue;  // a second edge between two quotient nodes, or the last edge of a ring
            groups.merge(a, b);
            --clusters;
        }
    }
    return groups.numbers();
}

}  // namespace ov_hsdag
