#include "stages.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "contiguous.hpp"
#include "live.hpp"

namespace ov_hsdag {
namespace {

// What partitions in any order of the devices may take, in steps of some nanoseconds: places, or pairs of them, for
// each state; a state is what devices are left, and the last two.
constexpr double kSteps = 600'000;
constexpr double kPairSteps = 16'000'000;
constexpr std::int32_t kFewestCuts = 32;
// Cost of what exceeds a memory limit, in times of all work: one, and so much for all of the model's memory.
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

// Places where parts may end, at most, so that partitions in any order are soon found.
std::int32_t cuts_for(const std::vector<std::vector<std::int32_t>>& kinds, bool pairs, std::int32_t most,
                      double effort) {
    double states = static_cast<double>(kinds.size() * kinds.size()) / effort;
    for (const auto& kind : kinds) states *= static_cast<double>(kind.size() + 1);
    const double cuts = pairs ? std::sqrt(kPairSteps / states) : kSteps / states;
    return static_cast<std::int32_t>(std::clamp<double>(cuts, kFewestCuts, most));
}

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

std::vector<Stages> stages(const Problem& problem, const AdditiveModel& model, bool throughput,
                           const StageOptions& wanted) {
    const std::vector<double>& submodel_us = problem.submodel_us;
    const auto width = static_cast<std::size_t>(model.devices);
    const auto count = static_cast<std::size_t>(model.items);
    if (count < 2) return {};
    std::vector<std::int32_t> place(count);
    for (std::size_t k = 0; k < count; ++k) place[static_cast<std::size_t>(model.order[k])] = static_cast<int>(k);
    // What crosses each place of the order: tensors, bytes, and what a device behind it pays for broken fusions.
    std::vector<double> number(count + 1, 0.0), bytes(count + 1, 0.0);
    std::vector<double> penalty;  // [count + 1, devices]; empty: none
    const std::vector<double>& fusions = model.fusion_penalty_us;
    if (std::any_of(fusions.begin(), fusions.end(), [](double us) { return us != 0.0; })) {
        penalty.assign((count + 1) * width, 0.0);
    }
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
        for (std::size_t d = 0; d < width && !penalty.empty(); ++d) {
            const double us = fusions[at(t, width, d)];
            penalty[at(from + 1, width, d)] += us;
            penalty[at(to + 1, width, d)] -= us;
        }
    }
    for (std::size_t k = 1; k <= count; ++k) {
        number[k] += number[k - 1];
        bytes[k] += bytes[k - 1];
    }
    for (std::size_t k = width; k < penalty.size(); ++k) penalty[k] += penalty[k - width];

    // What a device does not run, the fastest one does, with a transfer each way.
    const double transfer = mean_off_diagonal(model.transfer_us, width);
    std::vector<double> us(model.item_us);
    // What the model counts with its first item; here each part has it.
    for (std::size_t d = 0; d < width; ++d) us[at(model.order[0], width, d)] -= submodel_us[d];
    std::vector<double> work(count, 0.0);
    bool lacking = false;
    for (std::size_t k = 0; k < count; ++k) {
        const std::int32_t i = model.order[k];
        const std::size_t fastest = fastest_device(model, i);
        for (std::size_t d = 0; d < width; ++d) {
            if (!model.supports(i, d)) {
                us[at(i, width, d)] = us[at(i, width, fastest)] + 2 * transfer;
                lacking = true;
            }
            work[k] += us[at(i, width, d)] / static_cast<double>(width);
        }
    }
    if (wanted.whole && !lacking) return {};
    const auto has_limit = [](std::int64_t limit) { return limit >= 0; };
    const bool any_limit = std::any_of(model.memory_limit.begin(), model.memory_limit.end(), has_limit);
    const std::vector<std::int32_t> ends{0, model.items};
    const double live = any_limit ? live_peaks(problem, place, ends)[1] : 0.0;
    bool limited = false;
    double all = 0;
    for (const double item : work) all += item;
    for (std::size_t d = 0; d < width; ++d) {
        double held = live;
        for (std::size_t i = 0; i < count; ++i) held += static_cast<double>(model.weight[i * width + d]);
        const std::int64_t limit = model.memory_limit[d];
        limited = limited || (limit >= 0 && held > static_cast<double>(limit));
    }
    std::vector<std::vector<std::int32_t>> kinds = kinds_of(model, us, submodel_us);
    const bool any_order = wanted.sequence.empty();
    if (!any_order) {
        kinds.clear();
        for (const std::int32_t d : wanted.sequence) kinds.push_back({d});
    }
    const std::vector<std::int32_t> cuts =
        candidate_cuts(work, bytes, any_order ? cuts_for(kinds, limited, wanted.cuts, wanted.effort) : wanted.cuts);
    const std::vector<double> peak = limited ? live_peaks(problem, place, cuts) : std::vector<double>{};
    PartitionCosts costs;
    costs.throughput = throughput;
    costs.kinds = kinds;
    costs.cuts = static_cast<std::int32_t>(cuts.size());
    const std::size_t p = cuts.size();
    for (const auto& kind : kinds) {
        const auto d = static_cast<std::size_t>(kind[0]);
        std::vector<double> time(count + 1, 0.0), held(count + 1, 0.0);
        std::vector<std::int32_t> lacks(count + 1, 0);
        for (std::size_t k = 0; k < count; ++k) {
            lacks[k + 1] = lacks[k] + (wanted.whole && !model.supports(model.order[k], d) ? 1 : 0);
            time[k + 1] = time[k] + us[at(model.order[k], width, d)];
            held[k + 1] = held[k] + static_cast<double>(model.weight[at(model.order[k], width, d)]);
        }
        if (!limited) {
            for (const std::int32_t cut : cuts) costs.work.push_back(time[static_cast<std::size_t>(cut)]);
            costs.fixed.push_back(submodel_us[d]);
            for (std::size_t i = 0; i + 1 < p; ++i) {
                const bool blocked =
                    lacks[static_cast<std::size_t>(cuts[i + 1])] > lacks[static_cast<std::size_t>(cuts[i])];
                costs.blocked.push_back(blocked ? 1 : 0);
            }
            continue;
        }
        const double limit = model.memory_limit[d] < 0 ? std::numeric_limits<double>::infinity()
                                                       : static_cast<double>(model.memory_limit[d]);
        for (std::size_t i = 0; i < p; ++i) {
            const auto first = static_cast<std::size_t>(cuts[i]);
            for (std::size_t j = 0; j < p; ++j) {
                const auto last = static_cast<std::size_t>(cuts[j]);
                double span = PartitionCosts::infinite;
                if (first < last && lacks[first] == lacks[last]) {
                    span = time[last] - time[first] + submodel_us[d];
                    const double over = held[last] - held[first] + peak[i * p + j] - limit;
                    if (over > 0) span += all * (1.0 + kExcess * over / std::max(held[count] + live, 1.0));
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
                const double broken = penalty.empty() ? 0.0 : penalty[at(cut, width, to)];
                // Both ends are busy with a transfer, which takes its time once.
                costs.enter.push_back((throughput ? moved * model.transfer_share[to] : moved) + broken);
                costs.leave.push_back(throughput ? moved * model.transfer_share[from] : 0.0);
            }
        }
    }
    const PartitionOptions options{
        .any_order = any_order, .skip = false, .sequences = wanted.sequences, .per_sequence = wanted.per_sequence};
    std::vector<Stages> found;
    for (const Partition& partition : contiguous_partitions(costs, options)) {
        Placement placement(count, 0);
        for (std::size_t part = 0; part < partition.devices.size(); ++part) {
            const auto d = static_cast<std::size_t>(partition.devices[part]);
            const std::int32_t end = cuts[static_cast<std::size_t>(partition.bounds[part + 1])];
            for (std::int32_t k = cuts[static_cast<std::size_t>(partition.bounds[part])]; k < end; ++k) {
                const std::int32_t i = model.order[k];
                const std::size_t device = model.supports(i, d) ? d : fastest_device(model, i);
                placement[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(device);
            }
        }
        found.push_back({partition.devices, std::move(placement)});
    }
    return found;
}

}  // namespace ov_hsdag
