// The tables of the additive cost model and the state that a search updates move by move. AdditiveModel lists, for
// each item, the tensors that it produces and receives. AdditiveState keeps the work of each device, the number of
// consumers of each tensor on each device, and the weights of each device.
#include "additive.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "orders.hpp"

namespace ov_hsdag {
namespace {

// Offsets of compressed rows: where the entries of each owner begin if they are sorted by owner, [owners + 1].
std::vector<std::int32_t> offsets(const std::vector<std::int32_t>& owner, std::int32_t owners) {
    std::vector<std::int32_t> ptr(static_cast<std::size_t>(owners) + 1, 0);
    for (const std::int32_t o : owner) ++ptr[static_cast<std::size_t>(o) + 1];
    std::partial_sum(ptr.begin(), ptr.end(), ptr.begin());
    return ptr;
}

// The penalty of the fusion that a device breaks if it receives an output from another device, µs, [outputs, devices].
// If several tensors connect the fused nodes, it is counted for the one without other readers, which crosses exactly
// if the fusion is broken.
std::vector<double> fusion_penalty_by_port(const Problem& problem) {
    const Graph& graph = *problem.graph;
    const auto width = static_cast<std::size_t>(problem.devices);
    std::vector<double> result(static_cast<std::size_t>(graph.outputs()) * width, 0.0);
    if (problem.fused_with.empty()) return result;
    // Whether the node is the only reader of an output.
    const auto alone = [&](std::int32_t port, std::int32_t node) {
        return std::all_of(graph.consumer_node.begin() + graph.consumer_ptr[port],
                           graph.consumer_node.begin() + graph.consumer_ptr[static_cast<std::size_t>(port) + 1],
                           [node](std::int32_t consumer) { return consumer == node; });
    };
    for (std::int32_t node = 0; node < graph.nodes(); ++node) {
        for (std::size_t d = 0; d < width; ++d) {
            const std::size_t at = static_cast<std::size_t>(node) * width + d;
            for (std::int32_t e = graph.input_ptr[node]; e < graph.input_ptr[node + 1]; ++e) {
                if (problem.fused_with[at] < 0 || graph.source[e] != problem.fused_with[at]) continue;
                if (!alone(graph.input_output[e], node)) continue;
                result[static_cast<std::size_t>(graph.input_output[e]) * width + d] += problem.fusion_penalty_us[at];
                break;  // counted once, even if the node reads the tensor twice
            }
        }
    }
    return result;
}

}  // namespace

AdditiveModel::AdditiveModel(const Problem& problem, std::span<const std::int32_t> item,
                             std::span<const std::int32_t> node_order)
    : devices(problem.devices),
      order(item_order(problem, item, node_order)),
      transfer_us(problem.transfer_us),
      transfer_us_per_byte(problem.transfer_us_per_byte),
      transfer_share(problem.transfer_share),
      memory_limit(problem.memory_limit) {
    transfer_share.resize(static_cast<std::size_t>(devices), 1.0);
    const Graph& graph = *problem.graph;
    items = static_cast<std::int32_t>(order.size());
    const std::size_t count = order.size();
    const auto width = static_cast<std::size_t>(devices);
    item_us.assign(count * width, 0.0);
    supported.assign(count * width, 1);
    weight.assign(count * width, 0);
    for (const std::int32_t node : node_order) {
        const auto i = static_cast<std::size_t>(item[node]);
        for (std::size_t d = 0; d < width; ++d) {
            weight[i * width + d] += problem.held(node, d);
            item_us[i * width + d] += problem.node_us[static_cast<std::size_t>(node) * width + d];
            supported[i * width + d] &= problem.supported[static_cast<std::size_t>(node) * width + d] != 0 ? 1 : 0;
        }
    }

    // Submodels begin at received tensors, which pay for them, and at the begin of the model, which is added here.
    for (std::size_t d = 0; count > 0 && d < width; ++d) {
        item_us[static_cast<std::size_t>(order[0]) * width + d] += problem.submodel_us[d];
    }

    const std::vector<double> port_penalty_us = fusion_penalty_by_port(problem);

    // Consuming items by output port.
    std::vector<std::int32_t> ports;
    std::vector<std::int32_t> users;
    for (std::int32_t e = 0; e < graph.edges(); ++e) {
        const std::int32_t from = graph.source[e];
        // Results follow their producer, constants are compiled into their consumer's submodel.
        if (graph.kind[from] == NodeKind::kConstant || graph.kind[graph.target[e]] == NodeKind::kResult ||
            item[from] == item[graph.target[e]]) {
            continue;
        }
        ports.push_back(graph.input_output[e]);
        users.push_back(item[graph.target[e]]);
    }
    const std::vector<std::int32_t> port_ptr = offsets(ports, graph.outputs());
    std::vector<std::int32_t> next(port_ptr.begin(), port_ptr.end() - 1);
    std::vector<std::int32_t> by_port(users.size());
    for (std::size_t i = 0; i < ports.size(); ++i) by_port[static_cast<std::size_t>(next[ports[i]]++)] = users[i];
    consumer_ptr.push_back(0);
    for (const std::int32_t node : node_order) {
        for (std::int32_t output = graph.output_ptr[node]; output < graph.output_ptr[node + 1]; ++output) {
            const auto begin = by_port.begin() + port_ptr[output];
            const auto end = by_port.begin() + port_ptr[static_cast<std::size_t>(output) + 1];
            if (begin == end) continue;
            std::sort(begin, end);
            consumer.insert(consumer.end(), begin, std::unique(begin, end));
            consumer_ptr.push_back(static_cast<std::int32_t>(consumer.size()));
            source.push_back(item[node]);
            port.push_back(output);
            bytes.push_back(static_cast<double>(problem.moved(output)));
            const auto penalty = port_penalty_us.begin() + static_cast<std::ptrdiff_t>(output) * devices;
            fusion_penalty_us.insert(fusion_penalty_us.end(), penalty, penalty + devices);
        }
    }
    index_tensors();
}

AdditiveModel::AdditiveModel(const AdditiveModel& finer, std::span<const std::int32_t> item,
                             std::vector<std::int32_t> at, std::vector<std::int32_t>& kept)
    : items(static_cast<std::int32_t>(at.size())),
      devices(finer.devices),
      order(std::move(at)),
      transfer_us(finer.transfer_us),
      transfer_us_per_byte(finer.transfer_us_per_byte),
      transfer_share(finer.transfer_share),
      memory_limit(finer.memory_limit) {
    const auto width = static_cast<std::size_t>(devices);
    const std::size_t size = order.size() * width;
    item_us.assign(size, 0.0);
    supported.assign(size, 1);
    weight.assign(size, 0);
    for (std::int32_t i = 0; i < finer.items; ++i) {
        for (std::size_t d = 0; d < width; ++d) {
            const std::size_t from = static_cast<std::size_t>(i) * width + d;
            const std::size_t to = static_cast<std::size_t>(item[i]) * width + d;
            item_us[to] += finer.item_us[from];
            supported[to] &= finer.supported[from];
            weight[to] += finer.weight[from];
        }
    }
    kept.clear();
    consumer_ptr.push_back(0);
    std::vector<std::int32_t> seen(order.size(), -1);
    for (std::int32_t t = 0; t < finer.tensors(); ++t) {
        const std::int32_t from = item[finer.source[t]];
        const std::size_t before = consumer.size();
        for (std::int32_t c = finer.consumer_ptr[t]; c < finer.consumer_ptr[t + 1]; ++c) {
            const std::int32_t to = item[finer.consumer[c]];
            if (to == from || seen[to] == t) continue;
            seen[to] = t;
            consumer.push_back(to);
        }
        if (consumer.size() == before) continue;
        source.push_back(from);
        bytes.push_back(finer.bytes[t]);
        const auto penalty = finer.fusion_penalty_us.begin() + static_cast<std::ptrdiff_t>(t) * devices;
        fusion_penalty_us.insert(fusion_penalty_us.end(), penalty, penalty + devices);
        consumer_ptr.push_back(static_cast<std::int32_t>(consumer.size()));
        kept.push_back(t);
    }
    index_tensors();
}

// Lists the tensors that each item produces and receives.
void AdditiveModel::index_tensors() {
    produced_ptr = offsets(source, items);
    produced.resize(source.size());
    std::vector<std::int32_t> next(produced_ptr.begin(), produced_ptr.end() - 1);
    for (std::int32_t t = 0; t < tensors(); ++t) produced[static_cast<std::size_t>(next[source[t]]++)] = t;
    received_ptr = offsets(consumer, items);
    received.resize(consumer.size());
    next.assign(received_ptr.begin(), received_ptr.end() - 1);
    for (std::int32_t t = 0; t < tensors(); ++t) {
        for (std::int32_t c = consumer_ptr[t]; c < consumer_ptr[t + 1]; ++c) {
            received[static_cast<std::size_t>(next[consumer[c]]++)] = t;
        }
    }
}

std::uint8_t AdditiveModel::fastest(std::int32_t item) const {
    const auto width = static_cast<std::size_t>(devices);
    std::uint8_t result = 0;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t d = 0; d < width; ++d) {
        const std::size_t at = static_cast<std::size_t>(item) * width + d;
        if (supported[at] == 0 || item_us[at] >= least) continue;
        least = item_us[at];
        result = static_cast<std::uint8_t>(d);
    }
    return result;
}

void AdditiveModel::make_supported(std::vector<std::uint8_t>& placement) const {
    for (std::int32_t i = 0; i < items; ++i) {
        if (!supports(i, placement[i])) placement[i] = fastest(i);
    }
}

std::vector<double> AdditiveModel::votes(const std::vector<std::uint8_t>& placement) const {
    const auto width = static_cast<std::size_t>(devices);
    std::vector<double> result(placement.size() * width, 0.0);
    for (std::size_t i = 0; i < placement.size(); ++i) {
        // The addend lets items without work vote.
        result[i * width + placement[i]] = item_us[i * width + placement[i]] + 1e-3;
    }
    return result;
}

std::vector<double> AdditiveModel::summed(const std::vector<double>& votes,
                                          const std::vector<std::int32_t>& item_of) const {
    const auto width = static_cast<std::size_t>(devices);
    std::vector<double> sums(static_cast<std::size_t>(items) * width, 0.0);
    for (std::size_t i = 0; i < item_of.size(); ++i) {
        for (std::size_t d = 0; d < width; ++d) {
            sums[static_cast<std::size_t>(item_of[i]) * width + d] += votes[i * width + d];
        }
    }
    return sums;
}

std::vector<std::uint8_t> AdditiveModel::elected(const std::vector<double>& votes) const {
    const auto width = static_cast<std::size_t>(devices);
    std::vector<std::uint8_t> result(static_cast<std::size_t>(items), 0);
    for (std::size_t i = 0; i < result.size(); ++i) {
        double most = -1;
        for (std::size_t d = 0; d < width; ++d) {
            if (supported[i * width + d] == 0 || votes[i * width + d] <= most) continue;
            most = votes[i * width + d];
            result[i] = static_cast<std::uint8_t>(d);
        }
    }
    return result;
}

AdditiveState::AdditiveState(const AdditiveModel& model, bool throughput)
    : model_(model),
      throughput_(throughput),
      devices_(static_cast<std::size_t>(model.devices)),
      width_(throughput ? devices_ : 1),
      after_(width_) {
    const auto items = static_cast<std::size_t>(model.items);
    double most = 0;
    for (std::size_t i = 0; i < items; ++i) {
        most += *std::max_element(&model.item_us[i * devices_], &model.item_us[i * devices_] + devices_);
    }
    std::int64_t smallest = 0;
    for (const std::int64_t limit : model.memory_limit) {
        if (limit < 0) continue;
        smallest = limited_ ? std::min(smallest, limit) : limit;
        limited_ = true;
    }
    // Exceeding a limit by a hundredth costs as much as all of the work.
    penalty_per_byte_ = 100.0 * (most + 1.0) / static_cast<double>(std::max<std::int64_t>(smallest, 1));
}

void AdditiveState::reset(const std::uint8_t* placement, std::span<const double> surcharge_us,
                          std::span<const double> reserved) {
    const auto items = static_cast<std::size_t>(model_.items);
    placement_.assign(placement, placement + items);
    surcharge_.assign(surcharge_us.begin(), surcharge_us.end());
    reserved_.assign(reserved.begin(), reserved.end());
    busy_.assign(width_, 0.0);
    weight_.assign(devices_, 0.0);
    for (std::size_t i = 0; i < items; ++i) {
        busy_[throughput_ ? placement_[i] : 0] += model_.item_us[i * devices_ + placement_[i]];
        weight_[placement_[i]] += static_cast<double>(model_.weight[i * devices_ + placement_[i]]);
    }
    count_.assign(model_.source.size() * devices_, 0);
    for (std::int32_t t = 0; t < model_.tensors(); ++t) {
        std::int32_t* count = &count_[static_cast<std::size_t>(t) * devices_];
        for (std::int32_t c = model_.consumer_ptr[t]; c < model_.consumer_ptr[t + 1]; ++c) {
            if (count[placement_[model_.consumer[c]]]++ == 0) {
                add_transfer(t, placement_[model_.source[t]], placement_[model_.consumer[c]], 1.0, busy_.data());
            }
        }
    }
    penalty_ = 0;
    for (std::size_t d = 0; d < devices_; ++d) penalty_ += penalty_of(static_cast<std::uint8_t>(d), weight_[d]);
    update_prices();
}

double AdditiveState::power(double busy) const {
    double result = busy * scale_;
    for (int i = 0; i < doublings_; ++i) result *= result;
    return result;
}

double AdditiveState::score() const {
    double sum = penalty_ * scale_;
    for (std::size_t d = 0; d < width_; ++d) sum += power(busy_[d]);
    return sum;
}

void AdditiveState::sharpen(int doublings) {
    if (!throughput_) return;
    doublings_ = doublings;
    scale_ = 1.0 / std::max(*std::max_element(busy_.begin(), busy_.end()), 1e-9);
    update_prices();
}

// Sets the price of work on each device: the derivative of the score, up to a common factor.
void AdditiveState::update_prices() {
    price_.assign(width_, 1.0);
    if (!throughput_) return;
    for (std::size_t d = 0; d < width_; ++d) price_[d] = power(busy_[d]) / std::max(busy_[d] * scale_, 1e-3);
}

double AdditiveState::us() const { return *std::max_element(busy_.begin(), busy_.end()) + penalty_; }

double AdditiveState::penalty_of(std::uint8_t device, double weight) const {
    const std::int64_t limit = model_.memory_limit[device];
    if (limit < 0) return 0.0;
    return penalty_per_byte_ * std::max(0.0, weight + reserved_[device] - static_cast<double>(limit));
}

std::pair<double, double> AdditiveState::weights_of(std::int32_t item, std::uint8_t from, std::uint8_t to) const {
    const std::int64_t* weight = &model_.weight[static_cast<std::size_t>(item) * devices_];
    return {static_cast<double>(weight[from]), static_cast<double>(weight[to])};
}

double AdditiveState::penalty_after(std::int32_t item, std::uint8_t to) const {
    const std::uint8_t from = placement_[item];
    const auto [leaves, enters] = weights_of(item, from, to);
    if (!limited_ || (leaves == 0 && enters == 0)) return penalty_;
    return penalty_ - penalty_of(from, weight_[from]) - penalty_of(to, weight_[to]) +
           penalty_of(from, weight_[from] - leaves) + penalty_of(to, weight_[to] + enters);
}

void AdditiveState::add_transfer(std::int32_t tensor, std::uint8_t from, std::uint8_t to, double sign,
                                 double* busy) const {
    if (from == to) return;
    const std::size_t link = from * devices_ + to;
    const double us = model_.transfer_us[link] + model_.transfer_us_per_byte[link] * model_.bytes[tensor];
    const double received = surcharge_[to] + model_.fusion_penalty_us[static_cast<std::size_t>(tensor) * devices_ + to];
    if (throughput_) {
        // A transfer keeps both of its ends busy.
        busy[from] += sign * us * model_.transfer_share[from];
        busy[to] += sign * (us * model_.transfer_share[to] + received);
    } else {
        busy[0] += sign * (us + received);
    }
}

void AdditiveState::add_change(std::int32_t item, std::uint8_t to, double* busy) const {
    const std::uint8_t from = placement_[item];
    const double* item_us = &model_.item_us[static_cast<std::size_t>(item) * devices_];
    busy[throughput_ ? from : 0] -= item_us[from];
    busy[throughput_ ? to : 0] += item_us[to];
    for (std::int32_t i = model_.produced_ptr[item]; i < model_.produced_ptr[item + 1]; ++i) {
        const std::int32_t t = model_.produced[i];
        const std::int32_t* count = &count_[static_cast<std::size_t>(t) * devices_];
        for (std::size_t d = 0; d < devices_; ++d) {
            if (count[d] == 0) continue;
            add_transfer(t, from, static_cast<std::uint8_t>(d), -1.0, busy);
            add_transfer(t, to, static_cast<std::uint8_t>(d), 1.0, busy);
        }
    }
    for (std::int32_t i = model_.received_ptr[item]; i < model_.received_ptr[item + 1]; ++i) {
        const std::int32_t t = model_.received[i];
        const std::int32_t* count = &count_[static_cast<std::size_t>(t) * devices_];
        const std::uint8_t sender = placement_[model_.source[t]];
        if (count[from] == 1) add_transfer(t, sender, from, -1.0, busy);
        if (count[to] == 0) add_transfer(t, sender, to, 1.0, busy);
    }
}

void AdditiveState::move(std::int32_t item, std::uint8_t device) {
    const std::uint8_t from = placement_[item];
    if (from == device) return;
    add_change(item, device, busy_.data());
    if (limited_) {
        const auto [leaves, enters] = weights_of(item, from, device);
        weight_[from] -= leaves;
        weight_[device] += enters;
        penalty_ = 0;
        for (std::size_t d = 0; d < devices_; ++d) penalty_ += penalty_of(static_cast<std::uint8_t>(d), weight_[d]);
    }
    for (std::int32_t i = model_.received_ptr[item]; i < model_.received_ptr[item + 1]; ++i) {
        std::int32_t* count = &count_[static_cast<std::size_t>(model_.received[i]) * devices_];
        --count[from];
        ++count[device];
    }
    placement_[item] = device;
}

double AdditiveState::score_after(std::int32_t item, std::uint8_t device) const {
    after_ = busy_;
    add_change(item, device, after_.data());
    double sum = scale_ * penalty_after(item, device);
    for (const double busy : after_) sum += power(busy);
    return sum;
}

bool AdditiveState::may_pay(std::int32_t item) const {
    const std::uint8_t here = placement_[item];
    for (std::int32_t i = model_.received_ptr[item]; i < model_.received_ptr[item + 1]; ++i) {
        if (placement_[model_.source[model_.received[i]]] != here) return true;
    }
    double cheapest = std::numeric_limits<double>::infinity();
    for (std::int32_t i = model_.produced_ptr[item]; i < model_.produced_ptr[item + 1]; ++i) {
        const std::int32_t* count = &count_[static_cast<std::size_t>(model_.produced[i]) * devices_];
        for (std::size_t d = 0; d < devices_; ++d) {
            if (d != here && count[d] != 0) return true;
        }
    }
    if (limited_ && penalty_ > 0) return true;
    const double* item_us = &model_.item_us[static_cast<std::size_t>(item) * devices_];
    const double gained = item_us[here] * price_[throughput_ ? here : 0];
    for (std::size_t d = 0; d < devices_; ++d) {
        if (d == here || !model_.supports(item, d)) continue;
        const double paid = (item_us[d] + model_.transfer_us[here * devices_ + d]) * price_[throughput_ ? d : 0];
        cheapest = std::min(cheapest, paid);
    }
    return cheapest < gained;
}

}  // namespace ov_hsdag
