// Prepares the costs of parts for contiguous_partitions. Sums over prefixes of the order give the time, the weights
// and the number of unsupported items between any two cuts; live_peaks gives the memory of live tensors. The number
// of cuts is limited, so that the dynamic program stays within its steps.
#include "contiguous_search.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "contiguous.hpp"
#include "live.hpp"

namespace ov_hsdag {
namespace {

// Limit of partitions in any order of the devices, in steps of some nanoseconds: the number of states (devices that are
// left, and the last two) times that of cuts, or pairs of cuts.
constexpr double kSteps = 600'000;
constexpr double kPairSteps = 16'000'000;
constexpr std::int32_t kFewestCuts = 32;
// Number of states above which devices are used only in the order of the list; twelve different ones have 589,824.
constexpr double kMostStates = 600'000;
// Cost of exceeding a memory limit, in multiples of all work: 1, plus this times the share of the model's memory that
// exceeds the limit.
constexpr double kExcess = 10.0;

// The index of an entry in a matrix of `width` columns that is stored by rows.
std::size_t at(std::int32_t row, std::size_t width, std::size_t column) {
    return static_cast<std::size_t>(row) * width + column;
}

// The mean of the entries [width, width] off the diagonal; 0 if there are none.
double mean_off_diagonal(const std::vector<double>& matrix, std::size_t width) {
    double sum = 0;
    for (std::size_t a = 0; a < width; ++a) {
        for (std::size_t b = 0; b < width; ++b) sum += a == b ? 0.0 : matrix[a * width + b];
    }
    return sum / static_cast<double>(std::max<std::size_t>(width * (width - 1), 1));
}

// The number of states of the dynamic program in any order of devices (contiguous.hpp) for each cut.
double states_of(const std::vector<std::vector<std::int32_t>>& kinds) {
    auto states = static_cast<double>(kinds.size() * kinds.size());
    for (const auto& kind : kinds) states *= static_cast<double>(kind.size() + 1);
    return states;
}

// The largest number of cuts with which partitions in any order keep within the limit of steps, from kFewestCuts to
// `most`. pairs: whether costs are a table of pairs of cuts (`span`). effort: factor of the limit.
std::int32_t cuts_for(double states, bool pairs, std::int32_t most, double effort) {
    const double cuts = pairs ? std::sqrt(kPairSteps * effort / states) : kSteps * effort / states;
    return static_cast<std::int32_t>(std::clamp<double>(cuts, kFewestCuts, most));
}

// Positions of cuts in the order, [cuts], including both ends: the cheapest one in each of equal slices of the work.
// work: time of each place, [items]. crossing: bytes that cross each position, [items + 1]. most: number of slices + 1.
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
            const auto present = static_cast<std::int32_t>(before / std::max(all, 1e-30) * (most - 1));
            if (present != slice && best >= 0) {
                cuts.push_back(best);
                best = -1;
            }
            slice = present;
            if (best < 0 || crossing[place] < crossing[best]) best = place;
        }
        if (best >= 0) cuts.push_back(best);
    }
    cuts.push_back(last);
    return cuts;
}

}  // namespace

ContiguousSearch::ContiguousSearch(const Problem& problem, const AdditiveModel& model, std::vector<std::int32_t> order,
                                   bool throughput)
    : problem_(problem), model_(model), throughput_(throughput), order_(std::move(order)), place_(order_.size()) {
    for (std::size_t k = 0; k < place_.size(); ++k) {
        place_[static_cast<std::size_t>(order_[k])] = static_cast<std::int32_t>(k);
    }
    if (place_.size() < 2) return;
    measure_crossings();
    measure_items();
}

void ContiguousSearch::measure_crossings() {
    const auto width = static_cast<std::size_t>(model_.devices);
    const std::size_t places = place_.size() + 1;
    number_.assign(places, 0.0);
    bytes_.assign(places, 0.0);
    const std::vector<double>& fusions = model_.fusion_penalty_us;
    if (std::any_of(fusions.begin(), fusions.end(), [](double us) { return us != 0.0; })) {
        penalty_.assign(places * width, 0.0);
    }
    for (std::int32_t t = 0; t < model_.tensors(); ++t) {
        const std::int32_t from = place_[model_.source[t]];
        std::int32_t to = from;
        for (std::int32_t c = model_.consumer_ptr[t]; c < model_.consumer_ptr[t + 1]; ++c) {
            to = std::max(to, place_[model_.consumer[c]]);
        }
        number_[static_cast<std::size_t>(from) + 1] += 1;
        number_[static_cast<std::size_t>(to) + 1] -= 1;
        bytes_[static_cast<std::size_t>(from) + 1] += model_.bytes[t];
        bytes_[static_cast<std::size_t>(to) + 1] -= model_.bytes[t];
        for (std::size_t d = 0; d < width && !penalty_.empty(); ++d) {
            const double us = fusions[at(t, width, d)];
            penalty_[at(from + 1, width, d)] += us;
            penalty_[at(to + 1, width, d)] -= us;
        }
    }
    for (std::size_t k = 1; k < places; ++k) {
        number_[k] += number_[k - 1];
        bytes_[k] += bytes_[k - 1];
    }
    for (std::size_t k = width; k < penalty_.size(); ++k) penalty_[k] += penalty_[k - width];
}

// Computes the times of items. Items that a device does not support run on the fastest one, with a transfer each way.
void ContiguousSearch::measure_items() {
    const auto width = static_cast<std::size_t>(model_.devices);
    const std::size_t count = place_.size();
    const double transfer = mean_off_diagonal(model_.transfer_us, width);
    std::vector<double> by_place(count * width);  // times, with estimates for unsupported items
    work_.assign(count, 0.0);
    for (std::size_t k = 0; k < count; ++k) {
        const std::int32_t i = order_[k];
        const std::size_t fastest = model_.fastest(i);
        for (std::size_t d = 0; d < width; ++d) {
            double& us = by_place[k * width + d];
            if (model_.supports(i, d)) {
                us = model_.item_us[at(i, width, d)];
            } else {
                us = model_.item_us[at(i, width, fastest)] + 2 * transfer;
                lacking_ = true;
            }
            // The model includes one submodel in its first item; here each part has one.
            if (i == model_.order[0]) us -= problem_.submodel_us[model_.supports(i, d) ? d : fastest];
            work_[k] += us / static_cast<double>(width);
        }
        all_us_ += work_[k];
    }
    kinds_ = members_of(problem_.kinds());

    const auto has_limit = [](std::int64_t limit) { return limit >= 0; };
    if (std::any_of(model_.memory_limit.begin(), model_.memory_limit.end(), has_limit)) {
        const std::vector<std::int32_t> ends{0, model_.items};
        live_ = live_peaks(problem_, place_, ends)[1];
    }
    for (std::size_t d = 0; d < width; ++d) {
        double held = live_;
        for (std::size_t i = 0; i < count; ++i) held += static_cast<double>(model_.weight[i * width + d]);
        const std::int64_t limit = model_.memory_limit[d];
        limited_ = limited_ || (limit >= 0 && held > static_cast<double>(limit));
    }

    const std::size_t places = count + 1;
    time_before_.assign(width * places, 0.0);
    if (limited_) held_before_.assign(width * places, 0.0);
    if (lacking_) lacked_before_.assign(width * places, 0);
    for (std::size_t d = 0; d < width; ++d) {
        for (std::size_t k = 0; k < count; ++k) {
            const std::size_t here = d * places + k;
            const std::int32_t i = order_[k];
            time_before_[here + 1] = time_before_[here] + by_place[k * width + d];
            if (limited_) {
                held_before_[here + 1] = held_before_[here] + static_cast<double>(model_.weight[at(i, width, d)]);
            }
            if (lacking_) lacked_before_[here + 1] = lacked_before_[here] + (model_.supports(i, d) ? 0 : 1);
        }
    }
}

std::vector<ContiguousPlacement> ContiguousSearch::best(const ContiguousOptions& wanted) const {
    const auto width = static_cast<std::size_t>(model_.devices);
    const std::size_t count = place_.size();
    if (count < 2 || (wanted.whole && !lacking_)) return {};
    const double states = states_of(kinds_);
    const bool any_order = wanted.sequence.empty() && states <= kMostStates;
    PartitionCosts costs;
    costs.throughput = throughput_;
    costs.kinds = kinds_;
    if (!any_order) {
        costs.kinds.clear();
        for (const std::int32_t d : wanted.sequence) costs.kinds.push_back({d});
        for (std::int32_t d = 0; wanted.sequence.empty() && d < model_.devices; ++d) costs.kinds.push_back({d});
    }
    const std::int32_t most = any_order ? cuts_for(states, limited_, wanted.cuts, wanted.effort) : wanted.cuts;
    const std::vector<std::int32_t> cuts = candidate_cuts(work_, bytes_, most);
    const std::vector<double> peak = limited_ ? live_peaks(problem_, place_, cuts) : std::vector<double>{};
    const std::size_t p = cuts.size();
    costs.cuts = static_cast<std::int32_t>(p);
    for (const auto& kind : costs.kinds) {
        const auto d = static_cast<std::size_t>(kind[0]);
        const double* time = time_before_.data() + d * (count + 1);
        const double* held = limited_ ? held_before_.data() + d * (count + 1) : nullptr;
        const std::int32_t* lacked = wanted.whole ? lacked_before_.data() + d * (count + 1) : nullptr;
        if (!limited_) {
            for (const std::int32_t cut : cuts) costs.work.push_back(time[cut]);
            costs.fixed.push_back(problem_.submodel_us[d]);
            for (std::size_t i = 0; i + 1 < p; ++i) {
                const bool blocked = lacked != nullptr && lacked[cuts[i + 1]] > lacked[cuts[i]];
                costs.blocked.push_back(blocked ? 1 : 0);
            }
            continue;
        }
        const double limit = model_.memory_limit[d] < 0 ? std::numeric_limits<double>::infinity()
                                                        : wanted.filled * static_cast<double>(model_.memory_limit[d]);
        for (std::size_t i = 0; i < p; ++i) {
            const std::int32_t first = cuts[i];
            for (std::size_t j = 0; j < p; ++j) {
                const std::int32_t last = cuts[j];
                double span = PartitionCosts::infinite;
                if (first < last && (lacked == nullptr || lacked[first] == lacked[last])) {
                    span = time[last] - time[first] + problem_.submodel_us[d];
                    const double over = held[last] - held[first] + peak[i * p + j] - limit;
                    if (over > 0) span += all_us_ * (1.0 + kExcess * over / std::max(held[count] + live_, 1.0));
                }
                costs.span.push_back(span);
            }
        }
    }
    // Costs of transfers between kinds; those between devices of one kind are taken from its first two devices.
    for (const auto& kind : costs.kinds) {
        for (const auto& other : costs.kinds) {
            const auto from = static_cast<std::size_t>(kind[0]);
            const auto to = static_cast<std::size_t>(other.back());
            const std::size_t link = from * width + (from == to ? (to + 1) % width : to);
            for (const std::int32_t cut : cuts) {
                const double moved = model_.transfer_us[link] * number_[static_cast<std::size_t>(cut)] +
                                     model_.transfer_us_per_byte[link] * bytes_[static_cast<std::size_t>(cut)];
                const double broken = penalty_.empty() ? 0.0 : penalty_[at(cut, width, to)];
                // For throughput a transfer keeps both ends busy; for latency its time counts once.
                costs.enter.push_back((throughput_ ? moved * model_.transfer_share[to] : moved) + broken);
                costs.leave.push_back(throughput_ ? moved * model_.transfer_share[from] : 0.0);
            }
        }
    }
    const PartitionOptions options{
        .any_order = any_order, .skip = false, .sequences = wanted.sequences, .per_sequence = wanted.per_sequence};
    std::vector<ContiguousPlacement> found;
    for (const Partition& partition : contiguous_partitions(costs, options)) {
        Placement placement(count, 0);
        for (std::size_t part = 0; part < partition.devices.size(); ++part) {
            const auto d = static_cast<std::size_t>(partition.devices[part]);
            const std::int32_t end = cuts[static_cast<std::size_t>(partition.bounds[part + 1])];
            for (std::int32_t k = cuts[static_cast<std::size_t>(partition.bounds[part])]; k < end; ++k) {
                const std::int32_t i = order_[k];
                const std::size_t device = model_.supports(i, d) ? d : model_.fastest(i);
                placement[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(device);
            }
        }
        found.push_back({partition.devices, std::move(placement)});
    }
    return found;
}

}  // namespace ov_hsdag
