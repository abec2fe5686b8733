// Removes cycles in rounds. Each round finds the connected parts of the placement, the cycles among them (Tarjan),
// and moves small parts of cycles. The size limit grows from round to round; the last rounds move all parts but the
// largest.
#include "acyclic.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "groups.hpp"
#include "strong_components.hpp"

namespace ov_hsdag {
namespace {

// Largest part that moves in the first round, as a share of all work; the limit grows fourfold from round to round.
constexpr double kFirstShare = 0.001;
constexpr double kGrowth = 4.0;
constexpr int kRounds = 8;
// Limit of rounds in which all parts of a cycle move to the device of its largest part. Each round merges parts, unless
// devices do not support the items.
constexpr int kLastRounds = 40;

// Calls visit(tensor, source part, consumer part) for each tensor between two parts.
template <typename Visit>
void for_each_crossing(const AdditiveModel& model, const std::vector<std::int32_t>& part, Visit visit) {
    for (std::int32_t t = 0; t < model.tensors(); ++t) {
        const std::int32_t from = part[model.source[t]];
        for (std::int32_t c = model.consumer_ptr[t]; c < model.consumer_ptr[t + 1]; ++c) {
            const std::int32_t to = part[model.consumer[c]];
            if (from != to) visit(t, from, to);
        }
    }
}

}  // namespace

void break_circles(const AdditiveModel& model, Placement& placement) {
    const auto width = static_cast<std::size_t>(model.devices);
    StrongComponents strong;
    double share = kFirstShare;
    for (int round = 0; round < kRounds + kLastRounds; ++round, share *= kGrowth) {
        Groups connected(model.items);
        for (std::int32_t t = 0; t < model.tensors(); ++t) {
            for (std::int32_t c = model.consumer_ptr[t]; c < model.consumer_ptr[t + 1]; ++c) {
                if (placement[model.source[t]] == placement[model.consumer[c]]) {
                    connected.merge(model.source[t], model.consumer[c]);
                }
            }
        }
        const std::vector<std::int32_t> part = connected.numbers();
        const auto parts = static_cast<std::size_t>(part.empty() ? 0 : *std::max_element(part.begin(), part.end()) + 1);
        std::vector<std::int32_t> ptr(parts + 1, 0);
        for_each_crossing(model, part, [&](std::int32_t, std::int32_t from, std::int32_t) {
            ++ptr[static_cast<std::size_t>(from) + 1];
        });
        std::partial_sum(ptr.begin(), ptr.end(), ptr.begin());
        std::vector<std::int32_t> target(static_cast<std::size_t>(ptr.back()));
        std::vector<std::int32_t> next(ptr.begin(), ptr.end() - 1);
        for_each_crossing(model, part, [&](std::int32_t, std::int32_t from, std::int32_t to) {
            target[static_cast<std::size_t>(next[from]++)] = to;
        });
        std::vector<std::int32_t> scc;
        if (strong.find(ptr, target, scc) == 0) return;

        std::vector<double> work(parts, 0.0);
        std::vector<std::uint8_t> device(parts, 0);
        double all = 0;
        for (std::size_t i = 0; i < placement.size(); ++i) {
            const double us = model.item_us[i * width + placement[i]];
            work[part[i]] += us;
            all += us;
            device[part[i]] = placement[i];
        }
        // Bytes that a part on a cycle exchanges with the parts of each device on the same cycle.
        std::vector<double> exchanged(parts * width, 0.0);
        for_each_crossing(model, part, [&](std::int32_t t, std::int32_t from, std::int32_t to) {
            if (scc[from] < 0 || scc[from] != scc[to]) return;
            exchanged[static_cast<std::size_t>(from) * width + device[to]] += model.bytes[t] + 1.0;
            exchanged[static_cast<std::size_t>(to) * width + device[from]] += model.bytes[t] + 1.0;
        });
        // The largest part of each cycle stays, and so do all that are too large for this round.
        std::vector<std::int32_t> largest(parts, -1);
        for (std::size_t p = 0; p < parts; ++p) {
            if (scc[p] < 0) continue;
            std::int32_t& most = largest[static_cast<std::size_t>(scc[p])];
            if (most < 0 || work[p] > work[most]) most = static_cast<std::int32_t>(p);
        }
        std::vector<std::uint8_t> to(device);
        for (std::size_t p = 0; p < parts; ++p) {
            if (scc[p] < 0 || largest[static_cast<std::size_t>(scc[p])] == static_cast<std::int32_t>(p)) continue;
            if (round >= kRounds) {
                to[p] = device[static_cast<std::size_t>(largest[static_cast<std::size_t>(scc[p])])];
            } else if (work[p] <= share * all) {
                const auto begin = exchanged.begin() + static_cast<std::ptrdiff_t>(p * width);
                const auto most = std::max_element(begin, begin + static_cast<std::ptrdiff_t>(width));
                to[p] = static_cast<std::uint8_t>(most - begin);
            }
        }
        bool moved = false;
        for (std::size_t i = 0; i < placement.size(); ++i) {
            if (placement[i] == to[part[i]] || !model.supports(static_cast<std::int32_t>(i), to[part[i]])) continue;
            placement[i] = to[part[i]];
            moved = true;
        }
        // The last rounds are all alike, so that the next one would not move anything either.
        if (round >= kRounds && !moved) return;
    }
}

}  // namespace ov_hsdag
