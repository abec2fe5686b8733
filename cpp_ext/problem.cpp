// Checks the arrays of a problem, and finds which devices are of one kind.
#include "problem.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace ov_hsdag {
namespace {

void expect_size(std::size_t size, std::size_t expected, const char* name) {
    if (size == expected) return;
    throw std::invalid_argument("expected " + std::to_string(expected) + " values in '" + name + "', got " +
                                std::to_string(size));
}

// Throws std::invalid_argument unless all values are from `least` to `most`.
void expect_range(const std::vector<std::int32_t>& values, std::int32_t least, std::int32_t most, const char* name) {
    const auto is_outside = [&](std::int32_t value) { return value < least || value > most; };
    const auto outside = std::find_if(values.begin(), values.end(), is_outside);
    if (outside == values.end()) return;
    throw std::invalid_argument("expected numbers from " + std::to_string(least) + " to " + std::to_string(most) +
                                " in '" + name + "', got " + std::to_string(*outside));
}

// Throws std::invalid_argument for NaN, which cannot be ordered and would break sorting and queues.
void expect_numbers(const std::vector<double>& values, const char* name) {
    if (std::any_of(values.begin(), values.end(), [](double value) { return std::isnan(value); })) {
        throw std::invalid_argument(std::string("expected no NaN in '") + name + "'");
    }
}

}  // namespace

std::int32_t Problem::groups() const { return group.empty() ? 0 : *std::max_element(group.begin(), group.end()) + 1; }

std::size_t Problem::size(Axis axis) const {
    if (axis == Axis::kDevices) return static_cast<std::size_t>(devices);
    return static_cast<std::size_t>(axis == Axis::kNodes ? graph->nodes() : graph->outputs());
}

std::vector<std::int32_t> Problem::kinds() const {
    const auto width = static_cast<std::size_t>(devices);
    // Whether swapping devices a and b leaves every array the same; the diagonal of [devices, devices] has no meaning.
    const auto alike = [&](std::size_t a, std::size_t b) {
        bool result = true;
        const auto swapped = [&](std::size_t device) { return device == a ? b : device == b ? a : device; };
        for_each_array(*this, [&](const char*, const auto& values, const std::vector<Axis>& axes, bool) {
            if (!result || values.empty() || axes.back() != Axis::kDevices) return;
            const bool links = axes.front() == Axis::kDevices && axes.size() == 2;  // costs of pairs of devices
            for (std::size_t row = 0; result && row < values.size() / width; ++row) {
                const auto from = values.begin() + static_cast<std::ptrdiff_t>(row * width);
                for (std::size_t d = 0; links && d < width; ++d) {
                    result = result && (d == row || from[d] == values[swapped(row) * width + swapped(d)]);
                }
                result = result && (links || from[a] == from[b]);
            }
        });
        return result;
    };
    std::vector<std::int32_t> kind(width, 0);
    std::vector<std::size_t> first;
    for (std::size_t d = 0; d < width; ++d) {
        const auto like = std::find_if(first.begin(), first.end(), [&](std::size_t other) { return alike(other, d); });
        kind[d] = static_cast<std::int32_t>(like - first.begin());
        if (like == first.end()) first.push_back(d);
    }
    return kind;
}

void Problem::check() const {
    if (!graph || graph->nodes() == 0) throw std::invalid_argument("expected a graph with nodes");
    if (devices < 1 || devices > kMaxDevices) {
        throw std::invalid_argument("expected 1 to " + std::to_string(kMaxDevices) + " devices, got " +
                                    std::to_string(devices));
    }
    for_each_array(*this, [&](const char* name, const auto& values, const std::vector<Axis>& axes, bool optional) {
        using Value = typename std::decay_t<decltype(values)>::value_type;
        std::size_t expected = 1;
        for (const Axis axis : axes) expected *= size(axis);
        if (!optional || !values.empty()) expect_size(values.size(), expected, name);
        if constexpr (std::is_same_v<Value, double>) expect_numbers(values, name);
        if constexpr (std::is_same_v<Value, std::int64_t>) {
            if (&values != &memory_limit) expect_bytes(values, name);
        }
    });
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
