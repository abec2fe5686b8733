// What a search may spend, and what counts as progress.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <limits>

namespace ov_hsdag {

// Milliseconds since some moment: of wall time, or of processor time of the whole process, by which searches can be
// compared on a machine that others use as well.
inline double now_ms(bool processor_time) {
    if (processor_time) return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Budget {
public:
    static constexpr double kNoEnd = std::numeric_limits<double>::infinity();

    // moves: that may be tried. end_ms: as `now_ms` counts.
    explicit Budget(std::int64_t moves, double end_ms = kNoEnd, bool processor_time = false)
        : moves_(moves), end_ms_(end_ms), processor_time_(processor_time), asked_at_(moves) {}

    void spend(std::int64_t count) { moves_ -= count; }
    [[nodiscard]] std::int64_t moves() const { return moves_; }
    [[nodiscard]] bool left() {
        if (moves_ <= 0 || over_) return false;
        if (end_ms_ == kNoEnd) return true;
        // Processor time is asked of the system, which takes as long as a move.
        if (processor_time_ && asked_at_ - moves_ < kMovesPerQuestion) return true;
        asked_at_ = moves_;
        over_ = now_ms(processor_time_) >= end_ms_;
        return !over_;
    }

private:
    static constexpr std::int64_t kMovesPerQuestion = 32;

    std::int64_t moves_;
    double end_ms_;
    bool processor_time_;
    std::int64_t asked_at_;
    bool over_ = false;
};

// Whether score a is better than score b by more than rounding.
inline bool better(double a, double b) {
    constexpr double kRelative = 1e-9;
    return a < b - kRelative * std::abs(b) || (std::isfinite(a) && !std::isfinite(b));
}

}  // namespace ov_hsdag
