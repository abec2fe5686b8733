// Turns an evaluation of the simulator into one number, and compares it with the additive cost model to update the
// estimates.
#include "judge.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace ov_hsdag {
namespace {

// Default limit of the work of breaking cycles (Splitter::split), which takes tens of milliseconds. Placements that
// take more have hundreds of submodels.
constexpr std::int64_t kMostWork = 16'000'000;

// Number of rounds of breaking cycles that cost as many moves as one simulation without cycles. They took as long when
// it was chosen. Simulations have become faster, and a round takes about twice as long as one in the median, on graphs
// of 300 to 20,000 groups.
constexpr std::int64_t kRoundsPaidAsOne = 2;

// Number of words that breaking cycles processes in the time of a move: one to two nanoseconds for a word on large
// graphs.
constexpr std::int64_t kWordsPaidAsMove = 100;

// Rounds a score to ten digits. The simulator adds times in the order of the file, and different rounding errors for
// another order would lead searches to other results.
double rounded(double value) {
    int exponent = 0;
    const double fraction = std::frexp(value, &exponent);
    constexpr int kBits = 34;
    return std::isfinite(value) ? std::ldexp(std::round(std::ldexp(fraction, kBits)), exponent - kBits) : value;
}

}  // namespace

Judge::Judge(const Problem& problem, const AdditiveModel& groups, bool throughput)
    : problem_(problem),
      model_(groups),
      throughput_(throughput),
      most_work_(kMostWork),
      simulator_(problem),
      estimates_{problem.submodel_us, problem.submodel_us, std::vector<double>(problem.submodel_us.size(), 0.0)} {}

void Judge::limit_work(double share) { most_work_ = static_cast<std::int64_t>(share * static_cast<double>(kMostWork)); }

double Judge::score(const Placement& placement, Budget& budget) {
    const Evaluation& evaluation = evaluate(placement, budget);
    update_estimates(placement, evaluation);
    return rounded(score_of(evaluation));
}

const Evaluation& Judge::evaluate(const Placement& placement, Budget& budget) {
    const Evaluation& evaluation = simulator_.evaluate(placement.data(), most_work_);
    // Scattered placements have cycles, and HETERO's rule walks the graph once more for each cut that it adds, which
    // takes up to thirty times as long.
    const auto groups = static_cast<std::int64_t>(placement.size());
    std::int64_t breaking = groups * (evaluation.rounds - 1) / kRoundsPaidAsOne;
    // Where the limit of work ended it, few rounds have taken long.
    if ((evaluation.infeasible & kUnsortable) != 0) breaking = std::max(breaking, evaluation.work / kWordsPaidAsMove);
    budget.spend(groups + breaking);
    return evaluation;
}

Judge::Softened Judge::softened(const Placement& placement, Budget& budget) {
    const Evaluation& evaluation = evaluate(placement, budget);
    if ((evaluation.infeasible & ~kMemory) != 0) return {std::numeric_limits<double>::infinity(), 0.0};
    return {throughput_ ? evaluation.period_us : evaluation.latency_us, excess_of_memory(evaluation)};
}

double Judge::exact_score(const Placement& placement) {
    return score_of(simulator_.evaluate(placement.data(), most_work_));
}

double Judge::score_of(const Evaluation& evaluation) const {
    if ((evaluation.infeasible & ~kMemory) != 0) return std::numeric_limits<double>::infinity();
    if (evaluation.infeasible != 0) return kOverMemory * (1.0 + excess_of_memory(evaluation));
    return throughput_ ? evaluation.period_us : evaluation.latency_us;
}

double Judge::excess_of_memory(const Evaluation& evaluation) const {
    double excess = 0;
    for (std::size_t d = 0; d < estimates_.reserved.size(); ++d) {
        const auto limit = static_cast<double>(problem_.memory_limit[d]);
        if (limit < 0) continue;
        excess += std::max(0.0, static_cast<double>(evaluation.memory_bytes[d]) - limit) / (limit + 1.0);
    }
    return excess;
}

// Distributes the simulator's cost of submodels over the tensors that cross, to guide the next moves. The share is what
// the simulator has more than the additive cost model without surcharges, divided by the cost of a submodel for each
// received tensor.
void Judge::update_estimates(const Placement& placement, const Evaluation& evaluation) {
    const AdditiveModel& model = model_;
    const std::vector<double>& submodel_us = problem_.submodel_us;
    const auto devices = static_cast<std::size_t>(model.devices);
    double additive_us = 0;                         // latency
    std::vector<double> busy_us(devices, 0.0);      // work and transfers of each device
    std::vector<double> received_us(devices, 0.0);  // one submodel for each received tensor
    std::vector<double> weight(devices, 0.0);
    for (std::size_t g = 0; g < placement.size(); ++g) {
        const double us = model.item_us[g * devices + placement[g]];
        additive_us += us;
        busy_us[placement[g]] += us;
        weight[placement[g]] += static_cast<double>(model.weight[g * devices + placement[g]]);
    }
    for (std::int32_t t = 0; t < model.tensors(); ++t) {
        const std::uint8_t from = placement[model.source[t]];
        std::uint64_t sent = std::uint64_t{1} << from;
        for (std::int32_t c = model.consumer_ptr[t]; c < model.consumer_ptr[t + 1]; ++c) {
            const std::uint8_t to = placement[model.consumer[c]];
            if (((sent >> to) & 1) != 0) continue;
            sent |= std::uint64_t{1} << to;
            const std::size_t link = from * devices + to;
            const double us = model.transfer_us[link] + model.transfer_us_per_byte[link] * model.bytes[t];
            const double fusion_us = model.fusion_penalty_us[static_cast<std::size_t>(t) * devices + to];
            additive_us += us + fusion_us;
            busy_us[from] += us * model.transfer_share[from];
            busy_us[to] += us * model.transfer_share[to] + fusion_us;
            received_us[to] += submodel_us[to];
        }
    }
    const double all_us = std::accumulate(received_us.begin(), received_us.end(), 0.0);
    const double share = all_us > 0 ? rounded((evaluation.latency_us - additive_us) / all_us) : 1.0;
    const double limited_share = std::clamp(share, 0.25, 1.25);
    for (std::size_t d = 0; d < devices; ++d) {
        double own_share = limited_share;
        if (throughput_ && received_us[d] > 0) {
            own_share = std::clamp(rounded((evaluation.busy_us[d] - busy_us[d]) / received_us[d]), 0.1, 2.0);
        }
        estimates_.surcharge[d] = limited_share * submodel_us[d];
        estimates_.own_surcharge[d] = own_share * submodel_us[d];
        estimates_.reserved[d] = std::max(0.0, static_cast<double>(evaluation.memory_bytes[d]) - weight[d]);
        // If a memory limit was exceeded, the estimate was too low.
        if ((evaluation.infeasible & kMemory) != 0) estimates_.reserved[d] *= 1.05;
    }
}

std::vector<double> Judge::surcharge(double share, double own) const {
    std::vector<double> result(estimates_.surcharge.size());
    for (std::size_t d = 0; d < result.size(); ++d) {
        result[d] = share * std::lerp(estimates_.surcharge[d], estimates_.own_surcharge[d], own);
    }
    return result;
}

}  // namespace ov_hsdag
