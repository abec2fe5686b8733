// The simulator. One split gives the submodels; loops over nodes, submodels, broken fusions and transfers add up
// times; a walk over the nodes follows the live bytes of each submodel. The constructor lists the nodes that matter to
// each of them, and when tensors die that stay in one submodel, so that one evaluation takes little time.
#include "simulate.hpp"

#include <algorithm>
#include <tuple>

namespace ov_hsdag {

Simulator::Simulator(const Problem& problem)
    : problem_(problem), graph_(*problem.graph), splitter_(graph_, problem.rule, problem.group) {
    const auto devices = static_cast<std::size_t>(problem.devices);
    device_.resize(static_cast<std::size_t>(graph_.nodes()));
    sent_.resize(static_cast<std::size_t>(graph_.outputs()));
    crosses_.resize(sent_.size());
    for (std::int32_t node = 0; node < graph_.nodes(); ++node) {
        bool timed = false;
        bool fused = false;
        bool holds = false;
        for (std::size_t d = 0; d < devices; ++d) {
            const std::size_t at = static_cast<std::size_t>(node) * devices + d;
            timed = timed || problem.node_us[at] != 0 || problem.supported[at] == 0;
            fused = fused || (!problem.fused_with.empty() && problem.fused_with[at] >= 0);
            holds = holds || problem.held(node, d) != 0;
        }
        if (timed) timed_.push_back(node);
        if (fused) fused_.push_back(node);
        if (holds) holders_.push_back(node);
    }
    find_lifetimes();
    result_.busy_us.resize(static_cast<std::size_t>(problem.devices));
    result_.memory_bytes.resize(static_cast<std::size_t>(problem.devices));
}

const Evaluation& Simulator::evaluate(const std::uint8_t* placement, std::int64_t most_work, Breakdown* breakdown) {
    const auto devices = static_cast<std::size_t>(problem_.devices);
    for (std::size_t node = 0; node < device_.size(); ++node) device_[node] = placement[problem_.group[node]];
    const Split& split = splitter_.split(device_.data(), most_work);

    result_.infeasible = split.sortable ? 0 : kUnsortable;
    result_.submodels = split.submodels();
    result_.rounds = split.rounds;
    result_.work = split.work;
    std::fill(result_.busy_us.begin(), result_.busy_us.end(), 0.0);
    result_.latency_us = 0;
    for (const std::int32_t node : timed_) {
        const std::size_t at = static_cast<std::size_t>(node) * devices + device_[node];
        if (problem_.supported[at] == 0) result_.infeasible |= kUnsupported;
        result_.busy_us[device_[node]] += problem_.node_us[at];
    }
    for (std::int32_t submodel = 0; submodel < split.submodels(); ++submodel) {
        const std::uint8_t device = split.submodel_device[submodel];
        result_.busy_us[device] += problem_.submodel_us[device];
        // A single submodel is the whole model, which all plugins accept, and for which there is no alternative.
        if (split.trivial[submodel] != 0 && split.submodels() > 1) result_.infeasible |= kTrivial;
    }
    for (std::size_t i = 0; i < problem_.same_submodel.size(); i += 2) {
        if (split.submodel[problem_.same_submodel[i]] != split.submodel[problem_.same_submodel[i + 1]])
            result_.infeasible |= kSeparated;
    }
    visit_broken_fusions(split, [&](std::size_t node, double us) { result_.busy_us[device_[node]] += us; });
    for (const double busy : result_.busy_us) result_.latency_us += busy;
    result_.transfer_bytes = 0;
    result_.cut_tensors = 0;
    visit_transfers(split, [&](const Transfer& transfer) {
        result_.latency_us += transfer.us;
        result_.busy_us[transfer.source] += transfer.source_us;
        result_.busy_us[transfer.target] += transfer.target_us;
        result_.transfer_bytes += transfer.bytes;
        ++result_.cut_tensors;
    });
    if (breakdown != nullptr) break_down(split, *breakdown);
    result_.period_us = *std::max_element(result_.busy_us.begin(), result_.busy_us.end());
    measure_memory(split);
    return result_;
}

template <typename Visit>
void Simulator::visit_broken_fusions(const Split& split, const Visit& visit) const {
    const auto devices = static_cast<std::size_t>(problem_.devices);
    for (const std::int32_t fused : fused_) {
        const auto node = static_cast<std::size_t>(fused);
        const std::size_t at = node * devices + device_[node];
        const std::int32_t with = problem_.fused_with[at];
        if (with >= 0 && split.submodel[with] != split.submodel[node]) visit(node, problem_.fusion_penalty_us[at]);
    }
}

template <typename Visit>
void Simulator::visit_transfers(const Split& split, const Visit& visit) {
    const auto devices = static_cast<std::size_t>(problem_.devices);
    for (const std::int32_t e : splitter_.boundaries()) {
        const std::int32_t from = graph_.source[e];
        const std::uint8_t sender = device_[from];
        const std::uint8_t receiver = device_[graph_.target[e]];
        // A Result is in the submodel of its producer, and constants are compiled into their consumer's submodel.
        if (sender == receiver || graph_.kind[graph_.target[e]] == NodeKind::kResult ||
            graph_.kind[from] == NodeKind::kConstant || split.submodel[from] == split.submodel[graph_.target[e]]) {
            continue;
        }
        const std::int32_t output = graph_.input_output[e];
        const std::uint64_t bit = std::uint64_t{1} << receiver;
        if ((sent_[output] & bit) != 0) continue;
        sent_[output] |= bit;
        const std::size_t link = sender * devices + receiver;
        const auto bytes = problem_.moved(output);
        const double us = problem_.transfer_us[link] + problem_.transfer_us_per_byte[link] * static_cast<double>(bytes);
        visit(Transfer{.output = output,
                       .source = sender,
                       .target = receiver,
                       .bytes = bytes,
                       .us = us,
                       .source_us = us * problem_.share(sender),
                       .target_us = us * problem_.share(receiver)});
    }
    for (const std::int32_t e : splitter_.boundaries()) sent_[graph_.input_output[e]] = 0;
}

void Simulator::break_down(const Split& split, Breakdown& breakdown) {
    const auto devices = static_cast<std::size_t>(problem_.devices);
    breakdown.node_us.resize(device_.size());
    breakdown.fusion_us.assign(device_.size(), 0.0);
    breakdown.transfers.clear();
    breakdown.latency_us.assign(kTerms, 0.0);
    breakdown.busy_us.assign(devices * kTerms, 0.0);
    const auto charge = [&](std::size_t device, Term term, double us) {
        breakdown.busy_us[device * kTerms + term] += us;
    };
    for (std::size_t node = 0; node < device_.size(); ++node) {
        breakdown.node_us[node] = problem_.node_us[node * devices + device_[node]];
        charge(device_[node], kNodes, breakdown.node_us[node]);
    }
    for (const std::uint8_t device : split.submodel_device) charge(device, kSubmodels, problem_.submodel_us[device]);
    visit_broken_fusions(split, [&](std::size_t node, double us) {
        breakdown.fusion_us[node] = us;
        charge(device_[node], kFusions, us);
    });
    visit_transfers(split, [&](const Transfer& transfer) {
        breakdown.transfers.push_back(transfer);
        breakdown.latency_us[kTransfers] += transfer.us;
        charge(transfer.source, kTransfers, transfer.source_us);
        charge(transfer.target, kTransfers, transfer.target_us);
    });
    for (std::size_t device = 0; device < devices; ++device) {
        for (const Term term : {kNodes, kFusions, kSubmodels}) {
            breakdown.latency_us[term] += breakdown.busy_us[device * kTerms + term];
        }
    }
    std::sort(breakdown.transfers.begin(), breakdown.transfers.end(), [](const Transfer& a, const Transfer& b) {
        return std::tie(a.output, a.target) < std::tie(b.output, b.target);
    });
}

void Simulator::find_lifetimes() {
    const std::vector<std::int64_t>& bytes = problem_.live();
    born_.assign(device_.size(), 0);
    dead_.assign(device_.size(), 0);
    last_use_.assign(sent_.size(), graph_.nodes());
    for (std::int32_t node = 0; node < graph_.nodes(); ++node) {
        if (graph_.kind[node] == NodeKind::kConstant) continue;
        for (std::int32_t o = graph_.output_ptr[node]; o < graph_.output_ptr[node + 1]; ++o) {
            born_[node] += bytes[o];
            std::int32_t last = node;
            for (std::int32_t c = graph_.consumer_ptr[o]; c < graph_.consumer_ptr[o + 1]; ++c) {
                const std::int32_t to = graph_.consumer_node[c];
                last = std::max(last, graph_.kind[to] == NodeKind::kResult ? graph_.nodes() : to);
            }
            last_use_[o] = last;
            if (last < graph_.nodes()) dead_[last] += bytes[o];
        }
        if (graph_.output_ptr[node] < graph_.output_ptr[node + 1] || dead_[node] != 0) computing_.push_back(node);
    }
}

void Simulator::measure_memory(const Split& split) {
    const std::vector<std::int64_t>& bytes = problem_.live();
    std::fill(result_.memory_bytes.begin(), result_.memory_bytes.end(), 0);
    live_.assign(static_cast<std::size_t>(split.submodels()), 0);
    counted_.assign(live_.size(), -1);
    crossing_.clear();
    for (const std::int32_t e : splitter_.boundaries()) {
        const std::int32_t output = graph_.input_output[e];
        const std::int32_t from = graph_.source[e];
        if (graph_.kind[from] == NodeKind::kConstant || crosses_[output] != 0 ||
            split.submodel[graph_.target[e]] == split.submodel[from]) {
            continue;
        }
        crosses_[output] = 1;
        crossing_.push_back(output);
        // An output of the submodel is alive until its end, and in the receiving submodel from the beginning.
        if (last_use_[output] < graph_.nodes()) dead_[last_use_[output]] -= bytes[output];
        for (std::int32_t c = graph_.consumer_ptr[output]; c < graph_.consumer_ptr[output + 1]; ++c) {
            const std::int32_t submodel = split.submodel[graph_.consumer_node[c]];
            if (submodel < 0 || submodel == split.submodel[from] || counted_[submodel] == output) continue;
            counted_[submodel] = output;
            live_[submodel] += bytes[output];
        }
    }
    peak_ = live_;
    for (const std::int32_t node : computing_) {
        const std::int32_t submodel = split.submodel[node];
        if (submodel < 0) continue;
        live_[submodel] += born_[node];
        peak_[submodel] = std::max(peak_[submodel], live_[submodel]);
        live_[submodel] -= dead_[node];
    }
    for (const std::int32_t output : crossing_) {
        crosses_[output] = 0;
        if (last_use_[output] < graph_.nodes()) dead_[last_use_[output]] += bytes[output];
    }
    for (const std::int32_t node : holders_) result_.memory_bytes[device_[node]] += problem_.held(node, device_[node]);
    for (std::int32_t submodel = 0; submodel < split.submodels(); ++submodel) {
        result_.memory_bytes[split.submodel_device[submodel]] += peak_[submodel];
    }
    for (std::size_t device = 0; device < result_.memory_bytes.size(); ++device) {
        const std::int64_t limit = problem_.memory_limit[device];
        if (limit >= 0 && result_.memory_bytes[device] > limit) result_.infeasible |= kMemory;
    }
}

}  // namespace ov_hsdag
