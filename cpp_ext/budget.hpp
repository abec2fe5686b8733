// What a search may spend, and what counts as progress.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>

namespace ov_hsdag {

using Clock = std::chrono::steady_clock;

struct Budget {
    std::int64_t moves;
    Clock::time_point end;

    void spend(std::int64_t count) { moves -= count; }
    [[nodiscard]] bool left() const { return moves > 0 && (end == Clock::time_point::max() || Clock::now() < end); }
};

// Whether score a is better than score b by more than rounding.
inline bool better(double a, double b) {
    constexpr double kRelative = 1e-9;
    return a < b - kRelative * std::abs(b) || (std::isfinite(a) && !std::isfinite(b));
}

}  // namespace ov_hsdag
