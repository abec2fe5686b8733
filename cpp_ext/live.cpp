// Computes the peaks of all parts without simulating each. A first walk gives the live bytes at each place if all
// groups were one submodel. For each begin of a part, tensors from before it are subtracted until their last reader,
// and the inputs of the part, which stay alive until its end, are added.
#include "live.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace ov_hsdag {
namespace {

// A tensor that is read at another place of the order than where it is made.
struct Lifetime {
    double bytes;
    std::int32_t first,
        last;                 // the places where it is made and last read; for Results the number of places
    std::int32_t begin, end;  // range of its readers in the list of all readers
};

// The peak of live bytes while each group runs, if all groups were one submodel, [places].
std::vector<double> levels(const Problem& problem, std::span<const std::int32_t> place) {
    const Graph& graph = *problem.graph;
    const std::vector<std::int64_t>& bytes = problem.live();
    std::vector<std::int32_t> last_use(static_cast<std::size_t>(graph.outputs()), -1);
    for (std::int32_t output = 0; output < graph.outputs(); ++output) {
        for (std::int32_t c = graph.consumer_ptr[output]; c < graph.consumer_ptr[output + 1]; ++c) {
            const std::int32_t to = graph.consumer_node[c];
            const std::int32_t use = graph.kind[to] == NodeKind::kResult ? graph.nodes() : to;
            last_use[output] = std::max(last_use[output], use);
        }
    }
    std::vector<double> result(place.size(), 0.0);
    double live = 0;
    for (std::int32_t node = 0; node < graph.nodes(); ++node) {
        // Results make no tensor and come last, whatever the place of their group.
        if (graph.kind[node] == NodeKind::kConstant || graph.kind[node] == NodeKind::kResult) continue;
        for (std::int32_t o = graph.output_ptr[node]; o < graph.output_ptr[node + 1]; ++o) {
            live += static_cast<double>(bytes[o]);
        }
        double& most = result[static_cast<std::size_t>(place[problem.group[node]])];
        most = std::max(most, live);
        for (std::int32_t o = graph.output_ptr[node]; o < graph.output_ptr[node + 1]; ++o) {
            if (last_use[o] < 0) live -= static_cast<double>(bytes[o]);
        }
        for (std::int32_t e = graph.input_ptr[node]; e < graph.input_ptr[node + 1]; ++e) {
            const std::int32_t output = graph.input_output[e];
            if (last_use[output] != node || graph.kind[graph.source[e]] == NodeKind::kConstant) continue;
            live -= static_cast<double>(bytes[output]);
            last_use[output] = graph.nodes();  // a tensor at several inputs is freed only once
        }
    }
    return result;
}

// The tensors that are read at another place than where they are made, sorted by the latter. readers: set to the places
// of all readers, ascending for each tensor.
std::vector<Lifetime> lifetimes(const Problem& problem, std::span<const std::int32_t> place,
                                std::vector<std::int32_t>& readers) {
    const Graph& graph = *problem.graph;
    const std::vector<std::int64_t>& bytes = problem.live();
    std::vector<Lifetime> result;
    for (std::int32_t output = 0; output < graph.outputs(); ++output) {
        const std::int32_t from = graph.output_node[output];
        if (graph.kind[from] == NodeKind::kConstant) continue;
        const auto begin = static_cast<std::int32_t>(readers.size());
        Lifetime life{static_cast<double>(bytes[output]), place[problem.group[from]], 0, begin, begin};
        life.last = life.first;
        for (std::int32_t c = graph.consumer_ptr[output]; c < graph.consumer_ptr[output + 1]; ++c) {
            const std::int32_t to = graph.consumer_node[c];
            if (graph.kind[to] == NodeKind::kResult) {
                life.last = static_cast<std::int32_t>(place.size());
            } else if (place[problem.group[to]] > life.first) {
                readers.push_back(place[problem.group[to]]);
            }
        }
        if (readers.size() > static_cast<std::size_t>(begin)) {
            std::sort(readers.begin() + begin, readers.end());
            life.last = std::max(life.last, readers.back());
        }
        life.end = static_cast<std::int32_t>(readers.size());
        if (life.last > life.first) result.push_back(life);
    }
    std::sort(result.begin(), result.end(), [](const Lifetime& a, const Lifetime& b) {
        return a.first != b.first ? a.first < b.first : a.begin < b.begin;
    });
    return result;
}

}  // namespace

std::vector<double> live_peaks(const Problem& problem, std::span<const std::int32_t> place,
                               std::span<const std::int32_t> cuts) {
    const std::vector<double> level = levels(problem, place);
    std::vector<std::int32_t> readers;
    const std::vector<Lifetime> all = lifetimes(problem, place, readers);
    const std::size_t width = cuts.size();
    const std::size_t parts = width - 1;
    // The segment between two cuts of each place, [places], and the peak in each segment, [segments].
    std::vector<std::size_t> segment(level.size(), 0);
    std::vector<double> highest(parts, 0.0);
    for (std::size_t m = 0; m < parts; ++m) {
        for (std::int32_t k = cuts[m]; k < cuts[m + 1]; ++k) {
            segment[static_cast<std::size_t>(k)] = m;
            highest[m] = std::max(highest[m], level[static_cast<std::size_t>(k)]);
        }
    }
    std::vector<double> result(width * width, 0.0);
    std::vector<double> freed(level.size(), 0.0);  // [places] bytes from before the cut that are read there last
    std::vector<double> received(parts, 0.0);      // [segments] bytes from before the cut that are read there first
    std::vector<std::uint8_t> frees(parts, 0);     // [segments] whether any are freed in it
    std::vector<std::size_t> crossing;
    std::size_t next = 0;
    for (std::size_t i = 0; i < parts; ++i) {
        const std::int32_t cut = cuts[i];
        for (; next < all.size() && all[next].first < cut; ++next) crossing.push_back(next);
        std::erase_if(crossing, [&](std::size_t t) { return all[t].last < cut; });
        double before = 0;
        for (const std::size_t t : crossing) {
            const Lifetime& life = all[t];
            before += life.bytes;
            const auto end = readers.begin() + life.end;
            const auto reader = std::lower_bound(readers.begin() + life.begin, end, cut);
            if (reader != end) received[segment[static_cast<std::size_t>(*reader)]] += life.bytes;
            if (static_cast<std::size_t>(life.last) >= level.size()) continue;
            freed[static_cast<std::size_t>(life.last)] += life.bytes;
            frees[segment[static_cast<std::size_t>(life.last)]] = 1;
        }
        double inputs = 0;
        double most = 0;
        for (std::size_t m = i; m < parts; ++m) {
            inputs += received[m];
            if (frees[m] != 0) {
                for (std::int32_t k = cuts[m]; k < cuts[m + 1]; ++k) {
                    most = std::max(most, level[static_cast<std::size_t>(k)] - before);
                    before -= freed[static_cast<std::size_t>(k)];
                }
            } else {
                most = std::max(most, highest[m] - before);
            }
            result[i * width + m + 1] = inputs + most;
        }
        for (const std::size_t t : crossing) {
            if (static_cast<std::size_t>(all[t].last) < level.size()) freed[static_cast<std::size_t>(all[t].last)] = 0;
        }
        std::fill(received.begin(), received.end(), 0.0);
        std::fill(frees.begin(), frees.end(), std::uint8_t{0});
    }
    return result;
}

}  // namespace ov_hsdag
