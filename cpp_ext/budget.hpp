// The budget of a search, and the comparison of scores. A budget limits the number of moves and, where results may
// depend on the machine, the time.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <limits>

namespace ov_hsdag {

// Milliseconds since a fixed moment, in wall time or in processor time of the whole process. With the latter, searches
// can be compared on a machine that others use as well.
inline double now_ms(bool processor_time) {
    if (processor_time) return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Counts moves down, and ends at a time.
class Budget {
public:
    static constexpr double kNoEnd = std::numeric_limits<double>::infinity();

    // moves: number of moves that may be tried. end_ms: end of the search by `now_ms(processor_time)`.
    explicit Budget(std::int64_t moves, double end_ms = kNoEnd, bool processor_time = false)
        : moves_(moves), end_ms_(end_ms), processor_time_(processor_time), asked_at_(moves) {}

    // Subtracts a number of moves; a negative number adds moves.
    void spend(std::int64_t count) { moves_ -= count; }
    // The number of moves that are left; negative if more were spent than there were.
    [[nodiscard]] std::int64_t moves() const { return moves_; }
    // Whether moves and time are left.
    [[nodiscard]] bool left() {
        if (moves_ <= 0 || over_) return false;
        if (end_ms_ == kNoEnd) return true;
        // Asking the system for processor time takes as long as a move, so it is done every kMovesPerQuestion moves.
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
    std::int64_t asked_at_;  // moves that were left when the time was asked last
    bool over_ = false;      // whether the time is over
};

// Whether score a is lower than score b by more than rounding errors.
inline bool better(double a, double b) {
    constexpr double kRelative = 1e-9;
    return a < b - kRelative * std::abs(b) || (std::isfinite(a) && !std::isfinite(b));
}

}  // namespace ov_hsdag
