#include "problem.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace ov_hsdag {
namespace {

void expect_size(std::size_t size, std::size_t expected, const char* name) {
    if (size == expected) return;
    throw std::invalid_argument("expected " + std::to_string(expected) + " values in '" + name + "', got " +
                                std::to_string(size));
}

void expect_range(const std::vector<std::int32_t>& values, std::int32_t least, std::int32_t most, const char* name) {
    const auto outside = [&](std::int32_t value) { return value < least || value > most; };
    const auto found = std::find_if(values.begin(), values.end(), outside);
    if (found == values.end()) return;
    throw std::invalid_argument("expected numbers from " + std::to_string(least) + " to " + std::to_string(most) +
                                " in '" + name + "', got " + std::to_string(*found));
}

// Costs without an order would put sorting and queues out of theirs.
void expect_numbers(const std::vector<double>& values, const char* name) {
    if (std::any_of(values.begin(), values.end(), [](double value) { return std::isnan(value); })) {
        throw std::invalid_argument(std::string("expected no NaN in '") + name + "'");
    }
}

}  // namespace

std::int32_t Problem::groups() const { return group.empty() ? 0 : *std::max_element(group.begin(), group.end()) + 1; }

void Problem::check() const {
    if (!graph || graph->nodes() == 0) throw std::invalid_argument("expected a graph with nodes");
    if (devices < 1 || devices > kMaxDevices) {
        throw std::invalid_argument("expected 1 to " + std::to_string(kMaxDevices) + " devices, got " +
                                    std::to_string(devices));
    }
    const auto nodes = static_cast<std::size_t>(graph->nodes());
    const auto width = static_cast<std::size_t>(devices);
    expect_size(node_us.size(), nodes * width, "node_us");
    expect_size(supported.size(), nodes * width, "supported");
    expect_size(group.size(), nodes, "groups");
    expect_size(transfer_us.size(), width * width, "transfer_us");
    expect_size(transfer_us_per_byte.size(), width * width, "transfer_us_per_byte");
    expect_size(submodel_us.size(), width, "submodel_us");
    expect_size(memory_limit.size(), width, "memory_bytes");
    if (!fused_with.empty() || !fusion_penalty_us.empty()) {
        expect_size(fused_with.size(), nodes * width, "fused_with");
        expect_size(fusion_penalty_us.size(), nodes * width, "fusion_penalty_us");
    }
    if (!moved_bytes.empty()) expect_size(moved_bytes.size(), graph->output_bytes.size(), "moved_bytes");
    if (!held_bytes.empty()) expect_size(held_bytes.size(), nodes * width, "held_bytes");
    if (!live_bytes.empty()) expect_size(live_bytes.size(), static_cast<std::size_t>(graph->outputs()), "live_bytes");
    if (!transfer_share.empty()) expect_size(transfer_share.size(), width, "transfer_share");
    expect_numbers(node_us, "node_us");
    expect_numbers(transfer_us, "transfer_us");
    expect_numbers(transfer_us_per_byte, "transfer_us_per_byte");
    expect_numbers(submodel_us, "submodel_us");
    expect_numbers(fusion_penalty_us, "fusion_penalty_us");
    expect_numbers(transfer_share, "transfer_share");
    expect_bytes(moved_bytes, "moved_bytes");
    expect_bytes(held_bytes, "held_bytes");
    expect_bytes(live_bytes, "live_bytes");
    if (same_submodel.size() % 2 != 0) throw std::invalid_argument("expected pairs of nodes in 'same_submodel'");
    const std::int32_t last = graph->nodes() - 1;
    expect_range(group, 0, last, "groups");
    std::vector<std::uint8_t> present(static_cast<std::size_t>(groups()), 0);
    for (const std::int32_t number : group) present[static_cast<std::size_t>(number)] = 1;
    if (std::find(present.begin(), present.end(), 0) != present.end()) {
        throw std::invalid_argument("expected dense numbers in 'groups'");
    }
    expect_range(same_submodel, 0, last, "same_submodel");
    expect_range(fused_with, -1, last, "fused_with");
}

}  // namespace ov_hsdag
