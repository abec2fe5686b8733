#include "stages.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

#include "contiguous.hpp"

namespace ov_hsdag {
namespace {

// What exact_stages may look at: pairs of places of all states, and at least so many places; items after all places.
constexpr double kMostPairs = 4e6;
constexpr std::int32_t kFewestPlaces = 40;
constexpr double kMostItems = 600e3;
// Places where parts may end, at most, where pairs of them are looked at.
constexpr std::int32_t kPairs = 96;
// Cost of what exceeds a memory limit, in times of all work for all of the model's memory.
constexpr double kExcess = 10.0;

std::size_t at(std::int32_t row, std::size_t width, std::size_t column) {
    return static_cast<std::size_t>(row) * width + column;
}

double mean_off_diagonal(const std::vector<double>& matrix, std::size_t width) {
    double sum = 0;
    for (std::size_t a = 0; a < width; ++a) {
        for (std::size_t b = 0; b < width; ++b) sum += a == b ? 0.0 : matrix[a * width + b];
    }
    return sum / static_cast<double>(std::max<std::size_t>(width * (width - 1), 1));
}

std::size_t fastest_device(const AdditiveModel& model, std::int32_t item) {
    const auto width = static_cast<std::size_t>(model.devices);
    std::size_t fastest = 0;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t d = 0; d < width; ++d) {
        if (!model.supports(item, d) || model.item_us[at(item, width, d)] >= least) continue;
        least = model.item_us[at(item, width, d)];
        fastest = d;
    }
    return fastest;
}

// Mean over the devices, in the order. [items]
std::vector<double> mean_work(const AdditiveModel& model, const std::vector<double>& us,
                              std::span<const std::int32_t> order) {
    const auto width = static_cast<std::size_t>(model.devices);
    std::vector<double> work(order.size(), 0.0);
    for (std::size_t k = 0; k < work.size(); ++k) {
        for (std::size_t d = 0; d < width; ++d) work[k] += us[at(order[k], width, d)] / static_cast<double>(width);
    }
    return work;
}

// Devices of equal costs, memory and links are of one kind.
std::vector<std::vector<std::int32_t>> kinds_of(const AdditiveModel& model, const std::vector<double>& us,
                                                const std::vector<double>& submodel_us) {
    const auto width = static_cast<std::size_t>(model.devices);
    const auto same = [&](std::size_t a, std::size_t b) {
        if (model.memory_limit[a] != model.memory_limit[b] || submodel_us[a] != submodel_us[b] ||
            model.transfer_share[a] != model.transfer_share[b]) {
            return false;
        }
        for (std::int32_t i = 0; i < model.items; ++i) {
            if (us[at(i, width, a)] != us[at(i, width, b)] ||
                model.weight[at(i, width, a)] != model.weight[at(i, width, b)]) {
                return false;
            }
        }
        return true;
    };
    std::vector<std::vector<std::int32_t>> kinds;
    for (std::int32_t d = 0; d < model.devices; ++d) {
        const auto like = std::find_if(kinds.begin(), kinds.end(), [&](const std::vector<std::int32_t>& kind) {
            return same(static_cast<std::size_t>(kind[0]), static_cast<std::size_t>(d));
        });
        if (like != kinds.end()) {
            like->push_back(d);
        } else {
            kinds.push_back({d});
        }
    }
    return kinds;
}

// What a device does not run, the fastest one does, with a transfer each way. [items, devices]
std::vector<double> us_or_transferred(const AdditiveModel& model) {
    const auto width = static_cast<std::size_t>(model.devices);
    const double transfer = mean_off_diagonal(model.transfer_us, width);
    std::vector<double> us(model.item_us);
    for (std::int32_t i = 0; i < model.items; ++i) {
        const std::size_t fastest = fastest_device(model, i);
        for (std::size_t d = 0; d < width; ++d) {
            if (!model.supports(i, d)) us[at(i, width, d)] = us[at(i, width, fastest)] + 2 * transfer;
        }
    }
    return us;
}

// The placement by parts of an order, [items]; what a device does not run, the fastest one that does.
Placement placement_of(const AdditiveModel& model, std::span<const std::int32_t> order, const Partition& partition,
                       const std::vector<std::int32_t>& cuts) {
    Placement placement(order.size(), 0);
    for (std::size_t part = 0; part < partition.devices.size(); ++part) {
        const auto d = static_cast<std::size_t>(partition.devices[part]);
        const std::int32_t end = cuts[static_cast<std::size_t>(partition.bounds[part + 1])];
        for (std::int32_t k = cuts[static_cast<std::size_t>(partition.bounds[part])]; k < end; ++k) {
            const std::int32_t i = order[static_cast<std::size_t>(k)];
            const std::size_t device = model.supports(i, d) ? d : fastest_device(model, i);
            placement[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(device);
        }
    }
    return placement;
}

// What parts of an order send and receive: each tensor once, however many read it.
class Traffic {
public:
    Traffic(const AdditiveModel& model, std::span<const std::int32_t> order)
        : model_(model), order_(order), place_(order.size()), last_use_(static_cast<std::size_t>(model.tensors())) {
        for (std::size_t k = 0; k < order.size(); ++k) {
            place_[static_cast<std::size_t>(order[k])] = static_cast<std::int32_t>(k);
        }
        ending_ptr_.assign(order.size() + 1, 0);
        for (std::int32_t t = 0; t < model.tensors(); ++t) {
            std::int32_t last = place_[model.source[t]];
            for (std::int32_t c = model.consumer_ptr[t]; c < model.consumer_ptr[t + 1]; ++c) {
                last = std::max(last, place_[model.consumer[c]]);
            }
            last_use_[t] = last;
            ++ending_ptr_[static_cast<std::size_t>(last) + 1];
        }
        std::partial_sum(ending_ptr_.begin(), ending_ptr_.end(), ending_ptr_.begin());
        ending_.resize(last_use_.size());
        std::vector<std::int32_t> next(ending_ptr_.begin(), ending_ptr_.end() - 1);
        for (std::int32_t t = 0; t < model.tensors(); ++t) ending_[next[last_use_[t]]++] = t;
        seen_.assign(last_use_.size(), -1);
    }

    [[nodiscard]] std::int32_t place(std::int32_t item) const { return place_[item]; }
    [[nodiscard]] std::int32_t last_use(std::int32_t tensor) const { return last_use_[tensor]; }

    struct Sums {
        double tensors = 0, bytes = 0;          // both directions
        std::vector<double> fusion_penalty_us;  // [devices] of what is received
    };

    // visit(end, sums) for the parts from `first` to each end behind it.
    template <typename Visit>
    void for_each_end(std::int32_t first, Visit visit) {
        const auto width = static_cast<std::size_t>(model_.devices);
        Sums sums;
        sums.fusion_penalty_us.assign(width, 0.0);
        for (auto k = static_cast<std::size_t>(first); k < order_.size(); ++k) {
            const std::int32_t i = order_[k];
            for (std::int32_t r = model_.received_ptr[i]; r < model_.received_ptr[i + 1]; ++r) {
                const std::int32_t t = model_.received[r];
                const std::int32_t from = place_[model_.source[t]];
                if ((from >= first && from <= static_cast<std::int32_t>(k)) || seen_[t] == first) continue;
                seen_[t] = first;
                add(sums, t, 1.0);
                for (std::size_t d = 0; d < width; ++d) {
                    sums.fusion_penalty_us[d] += model_.fusion_penalty_us[static_cast<std::size_t>(t) * width + d];
                }
            }
            for (std::int32_t p = model_.produced_ptr[i]; p < model_.produced_ptr[i + 1]; ++p) {
                if (last_use_[model_.produced[p]] > static_cast<std::int32_t>(k)) add(sums, model_.produced[p], 1.0);
            }
            for (std::int32_t e = ending_ptr_[k]; e < ending_ptr_[k + 1]; ++e) {
                const std::int32_t t = ending_[static_cast<std::size_t>(e)];
                const std::int32_t from = place_[model_.source[t]];
                if (from >= first && from < static_cast<std::int32_t>(k)) add(sums, t, -1.0);
            }
            visit(static_cast<std::int32_t>(k) + 1, sums);
        }
        // The next `first` is another mark.
    }

private:
    void add(Sums& sums, std::int32_t tensor, double sign) const {
        sums.tensors += sign;
        sums.bytes += sign * model_.bytes[tensor];
    }

    const AdditiveModel& model_;
    std::span<const std::int32_t> order_;
    std::vector<std::int32_t> place_;       // [items]
    std::vector<std::int32_t> last_use_;    // [tensors] place
    std::vector<std::int32_t> ending_ptr_;  // [items + 1]
    std::vector<std::int32_t> ending_;      // tensors by the place of their last use
    std::vector<std::int32_t> seen_;        // [tensors] first place of the last part that received it
};

// Places of the order [cuts], both ends among them: the cheapest to cut of equal slices of the work.
std::vector<std::int32_t> candidate_cuts(const std::vector<double>& work, const std::vector<double>& crossing,
                                         std::int32_t most) {
    const auto last = static_cast<std::int32_t>(crossing.size()) - 1;
    std::vector<std::int32_t> cuts{0};
    if (last <= most) {
        for (std::int32_t place = 1; place < last; ++place) cuts.push_back(place);
    } else {
        double all = 0;
        for (const double us : work) all += us;
        double before = 0;
        std::int32_t slice = 0;
        std::int32_t best = -1;
        for (std::int32_t place = 1; place < last; ++place) {
            before += work[static_cast<std::size_t>(place) - 1];
            const auto of = static_cast<std::int32_t>(before / std::max(all, 1e-30) * (most - 1));
            if (of != slice && best >= 0) {
                cuts.push_back(best);
                best = -1;
            }
            slice = of;
            if (best < 0 || crossing[place] < crossing[best]) best = place;
        }
        if (best >= 0) cuts.push_back(best);
    }
    cuts.push_back(last);
    return cuts;
}

}  // namespace

std::vector<Placement> stages(const AdditiveModel& model, bool throughput, const std::vector<double>& submodel_us,
                              const std::vector<double>& reserved, const StageOptions& wanted) {
    const auto width = static_cast<std::size_t>(model.devices);
    const auto count = static_cast<std::size_t>(model.items);
    if (count < 2) return {};
    std::vector<std::int32_t> place(count);
    for (std::size_t k = 0; k < count; ++k) place[static_cast<std::size_t>(model.order[k])] = static_cast<int>(k);
    // Tensors and bytes that cross each place of the order.
    std::vector<double> number(count + 1, 0.0), bytes(count + 1, 0.0);
    for (std::int32_t t = 0; t < model.tensors(); ++t) {
        const std::int32_t from = place[model.source[t]];
        std::int32_t to = from;
        for (std::int32_t c = model.consumer_ptr[t]; c < model.consumer_ptr[t + 1]; ++c) {
            to = std::max(to, place[model.consumer[c]]);
        }
        number[static_cast<std::size_t>(from) + 1] += 1;
        number[static_cast<std::size_t>(to) + 1] -= 1;
        bytes[static_cast<std::size_t>(from) + 1] += model.bytes[t];
        bytes[static_cast<std::size_t>(to) + 1] -= model.bytes[t];
    }
    for (std::size_t k = 1; k <= count; ++k) {
        number[k] += number[k - 1];
        bytes[k] += bytes[k - 1];
    }

    const std::vector<double> us = us_or_transferred(model);
    const std::vector<double> work = mean_work(model, us, model.order);
    bool limited = false;
    double all = 0;
    for (const double item : work) all += item;
    for (std::size_t d = 0; d < width; ++d) {
        double held = 0;
        for (std::size_t i = 0; i < count; ++i) held += static_cast<double>(model.weight[i * width + d]);
        const std::int64_t limit = model.memory_limit[d];
        limited = limited || (limit >= 0 && held + reserved[d] > static_cast<double>(limit));
    }
    std::vector<std::vector<std::int32_t>> kinds = kinds_of(model, us, submodel_us);
    const bool any_order = wanted.any_order;
    if (!any_order) {
        kinds.clear();
        for (std::int32_t d = 0; d < model.devices; ++d) kinds.push_back({d});
    }
    const std::vector<std::int32_t> cuts =
        candidate_cuts(work, bytes, limited ? std::min(wanted.cuts, kPairs) : wanted.cuts);
    PartitionCosts costs;
    costs.throughput = throughput;
    costs.kinds = kinds;
    costs.cuts = static_cast<std::int32_t>(cuts.size());
    const std::size_t p = cuts.size();
    for (const auto& kind : kinds) {
        const auto d = static_cast<std::size_t>(kind[0]);
        std::vector<double> time(count + 1, 0.0), held(count + 1, 0.0);
        for (std::size_t k = 0; k < count; ++k) {
            time[k + 1] = time[k] + us[at(model.order[k], width, d)];
            held[k + 1] = held[k] + static_cast<double>(model.weight[at(model.order[k], width, d)]);
        }
        if (!limited) {
            for (const std::int32_t cut : cuts) costs.work.push_back(time[static_cast<std::size_t>(cut)]);
            costs.fixed.push_back(submodel_us[d]);
            costs.blocked.insert(costs.blocked.end(), p - 1, 0);
            continue;
        }
        const double limit = model.memory_limit[d] < 0 ? std::numeric_limits<double>::infinity()
                                                       : static_cast<double>(model.memory_limit[d]) - reserved[d];
        for (const std::int32_t first : cuts) {
            for (const std::int32_t last : cuts) {
                double span = PartitionCosts::infinite;
                if (first < last) {
                    span =
                        time[static_cast<std::size_t>(last)] - time[static_cast<std::size_t>(first)] + submodel_us[d];
                    const double over =
                        held[static_cast<std::size_t>(last)] - held[static_cast<std::size_t>(first)] - limit;
                    span += kExcess * all * std::max(over, 0.0) / std::max(held[count], 1.0);
                }
                costs.span.push_back(span);
            }
        }
    }
    // Transfers between kinds; between devices of one kind as between its first two.
    for (std::size_t a = 0; a < kinds.size(); ++a) {
        for (std::size_t b = 0; b < kinds.size(); ++b) {
            const auto from = static_cast<std::size_t>(kinds[a][0]);
            const auto to = static_cast<std::size_t>(kinds[b].back());
            const std::size_t link = from * width + (from == to ? (to + 1) % width : to);
            for (const std::int32_t cut : cuts) {
                const double moved = model.transfer_us[link] * number[static_cast<std::size_t>(cut)] +
                                     model.transfer_us_per_byte[link] * bytes[static_cast<std::size_t>(cut)];
                // Both ends are busy with a transfer, which takes its time once.
                costs.enter.push_back(throughput ? moved * model.transfer_share[to] : moved);
                costs.leave.push_back(throughput ? moved * model.transfer_share[from] : 0.0);
            }
        }
    }
    const PartitionOptions options{
        .any_order = any_order, .skip = false, .sequences = wanted.sequences, .per_sequence = wanted.per_sequence};
    std::vector<Placement> found;
    for (const Partition& partition : contiguous_partitions(costs, options)) {
        found.push_back(placement_of(model, model.order, partition, cuts));
    }
    return found;
}

std::vector<Placement> exact_stages(const AdditiveModel& model, std::span<const std::int32_t> order,
                                    const std::vector<double>& submodel_us, const std::vector<double>& reserved,
                                    const StageOptions& wanted) {
    const auto width = static_cast<std::size_t>(model.devices);
    const std::size_t count = order.size();
    if (count < 2 || width < 2) return {};
    const std::vector<double> us = us_or_transferred(model);
    const std::vector<double> work = mean_work(model, us, order);
    PartitionCosts costs;
    costs.throughput = true;
    costs.kinds = kinds_of(model, us, submodel_us);
    double states = static_cast<double>(costs.kinds.size() * costs.kinds.size());
    for (const auto& kind : costs.kinds) states *= static_cast<double>(kind.size() + 1);
    const double most = std::min({static_cast<double>(wanted.cuts), std::sqrt(2 * kMostPairs / states),
                                  kMostItems / static_cast<double>(count)});
    if (most < kFewestPlaces) return {};
    Traffic traffic(model, order);
    // What crosses each place decides which may be ends, where not all may.
    std::vector<double> crossing(count + 1, 0.0);
    for (std::int32_t t = 0; t < model.tensors(); ++t) {
        crossing[static_cast<std::size_t>(traffic.place(model.source[t])) + 1] += model.bytes[t];
        crossing[static_cast<std::size_t>(traffic.last_use(t)) + 1] -= model.bytes[t];
    }
    std::partial_sum(crossing.begin(), crossing.end(), crossing.begin());
    const std::vector<std::int32_t> cuts = candidate_cuts(work, crossing, static_cast<std::int32_t>(most));
    const std::size_t p = cuts.size();
    costs.cuts = static_cast<std::int32_t>(p);
    costs.span.assign(costs.kinds.size() * p * p, PartitionCosts::infinite);
    const std::size_t kinds = costs.kinds.size();
    const double all = std::accumulate(work.begin(), work.end(), 0.0);
    std::vector<double> fixed(kinds, 0.0), per_byte(kinds, 0.0);
    std::vector<std::vector<double>> time(kinds), held(kinds);
    for (std::size_t c = 0; c < kinds; ++c) {
        const auto d = static_cast<std::size_t>(costs.kinds[c][0]);
        for (std::size_t other = 0; other < width; ++other) {
            if (other == d) continue;
            const double share = model.transfer_share[d] / static_cast<double>(2 * (width - 1));
            fixed[c] += share * (model.transfer_us[d * width + other] + model.transfer_us[other * width + d]);
            per_byte[c] +=
                share * (model.transfer_us_per_byte[d * width + other] + model.transfer_us_per_byte[other * width + d]);
        }
        time[c].assign(count + 1, 0.0);
        held[c].assign(count + 1, 0.0);
        for (std::size_t k = 0; k < count; ++k) {
            time[c][k + 1] = time[c][k] + us[at(order[k], width, d)];
            held[c][k + 1] = held[c][k] + static_cast<double>(model.weight[at(order[k], width, d)]);
        }
    }
    for (std::size_t a = 0; a + 1 < p; ++a) {
        const auto first = static_cast<std::size_t>(cuts[a]);
        std::size_t b = a + 1;
        traffic.for_each_end(cuts[a], [&](std::int32_t end, const Traffic::Sums& sums) {
            if (b >= p || end != cuts[b]) return;
            const auto last = static_cast<std::size_t>(end);
            for (std::size_t c = 0; c < kinds; ++c) {
                const auto d = static_cast<std::size_t>(costs.kinds[c][0]);
                double span = time[c][last] - time[c][first] + submodel_us[d] + fixed[c] * sums.tensors +
                              per_byte[c] * sums.bytes + sums.fusion_penalty_us[d];
                if (model.memory_limit[d] >= 0) {
                    const double over =
                        held[c][last] - held[c][first] + reserved[d] - static_cast<double>(model.memory_limit[d]);
                    span += kExcess * all * std::max(over, 0.0) / std::max(held[c][count], 1.0);
                }
                costs.span[(c * p + a) * p + b] = span;
            }
            ++b;
        });
    }
    std::vector<Placement> found;
    for (const Partition& partition : contiguous_partitions(
             costs,
             {.any_order = true, .skip = false, .sequences = wanted.sequences, .per_sequence = wanted.per_sequence})) {
        found.push_back(placement_of(model, order, partition, cuts));
    }
    return found;
}

std::vector<std::int32_t> random_order(const AdditiveModel& model, std::mt19937_64& random) {
    const auto count = static_cast<std::size_t>(model.items);
    std::vector<std::int32_t> place(count);
    for (std::size_t k = 0; k < count; ++k) place[static_cast<std::size_t>(model.order[k])] = static_cast<int>(k);
    // Along the edges, or against them; edges back in the model's order are none.
    const bool backward = random() % 2 == 0;
    std::vector<std::vector<std::int32_t>> before(count);
    std::vector<std::uint8_t> inner(count, 0);
    for (std::int32_t t = 0; t < model.tensors(); ++t) {
        for (std::int32_t c = model.consumer_ptr[t]; c < model.consumer_ptr[t + 1]; ++c) {
            std::int32_t from = model.source[t];
            std::int32_t to = model.consumer[c];
            if (place[from] >= place[to]) continue;
            if (!backward) std::swap(from, to);
            before[static_cast<std::size_t>(to)].push_back(from);
            inner[static_cast<std::size_t>(from)] = 1;
        }
    }
    const auto shuffle = [&](std::vector<std::int32_t>& items) {
        for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random() % i]);
    };
    std::vector<std::int32_t> ends;
    for (std::int32_t i = 0; i < model.items; ++i) {
        if (inner[static_cast<std::size_t>(i)] == 0) ends.push_back(i);
        shuffle(before[static_cast<std::size_t>(i)]);
    }
    shuffle(ends);
    std::vector<std::int32_t> order;
    std::vector<std::size_t> next(count, 0);
    std::vector<std::uint8_t> opened(count, 0);
    std::vector<std::int32_t> stack;
    for (const std::int32_t end : ends) {
        stack.push_back(end);
        opened[static_cast<std::size_t>(end)] = 1;
        while (!stack.empty()) {
            const auto item = static_cast<std::size_t>(stack.back());
            if (next[item] == before[item].size()) {
                order.push_back(stack.back());
                stack.pop_back();
                continue;
            }
            const std::int32_t other = before[item][next[item]++];
            if (opened[static_cast<std::size_t>(other)] != 0) continue;
            opened[static_cast<std::size_t>(other)] = 1;
            stack.push_back(other);
        }
    }
    if (!backward) std::reverse(order.begin(), order.end());
    return order;
}

}  // namespace ov_hsdag
