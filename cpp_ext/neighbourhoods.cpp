// Passes, flips, runs and slides on an AdditiveState. All of them make moves, compare the score, and undo what did not
// help; the trail lists the moves to undo. Costs are counted in moves of a Budget.
#include "neighbourhoods.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "groups.hpp"

namespace ov_hsdag {
Neighbourhoods::Neighbourhoods(const AdditiveModel& model, bool throughput, const SearchSettings::Moves& settings,
                               std::int32_t longest_run, int sharpness)
    : model_(model),
      settings_(settings),
      throughput_(throughput),
      longest_run_(longest_run),
      sharpness_(sharpness),
      state_(model, throughput) {}

void Neighbourhoods::reset(const std::vector<std::uint8_t>& placement, const std::vector<double>& surcharge_us,
                           const std::vector<double>& reserved) {
    state_.reset(placement.data(), surcharge_us, reserved);
}

void Neighbourhoods::passes(int most, Budget& budget) {
    state_.sharpen(sharpness_);
    for (int round = 0; round < most && budget.left() && pass(budget); ++round) state_.sharpen(sharpness_);
}

void Neighbourhoods::descend(Budget& budget) {
    int sharpness = sharpness_;
    for (int round = 0; round < settings_.rounds && budget.left(); ++round) {
        state_.sharpen(sharpness);
        const double before = state_.score();
        while (pass(budget)) {
        }
        flips(budget);
        best_run(budget);
        best_slide(budget);
        if (better(state_.score(), before)) continue;
        if (!throughput_ || sharpness == settings_.most_sharpness) break;
        ++sharpness;
    }
}

bool Neighbourhoods::pass(Budget& budget) {
    const double before = state_.score();
    double best = before;
    std::size_t kept = 0;
    const auto patience = static_cast<std::size_t>(settings_.patience);
    trail_.clear();
    queue_.clear();
    const auto items = static_cast<std::size_t>(model_.items);
    stamp_.assign(items, 0);
    locked_.assign(items, 0);
    state_.update_prices();
    for (std::int32_t item = 0; item < model_.items; ++item) enqueue(item, false);
    std::make_heap(queue_.begin(), queue_.end(), later);
    budget.spend(model_.items);
    while (!queue_.empty() && trail_.size() - kept <= patience && budget.left()) {
        const Entry next = queue_.front();
        std::pop_heap(queue_.begin(), queue_.end(), later);
        queue_.pop_back();
        if (locked_[next.item] != 0 || stamp_[next.item] != next.stamp) continue;
        // Moves since the entry was made have changed the work of devices, and with it the change of the score.
        const double change = state_.score_after(next.item, next.device) - state_.score();
        budget.spend(1);
        if (!queue_.empty() && change > std::max(queue_.front().change, next.change)) {
            queue_.push_back({change, next.item, next.stamp, next.device});
            std::push_heap(queue_.begin(), queue_.end(), later);
            continue;
        }
        trail_.push_back({next.item, state_.device(next.item)});
        state_.move(next.item, next.device);
        locked_[next.item] = 1;
        budget.spend(2 + enqueue_neighbours(next.item));
        if (better(state_.score(), best)) {
            best = state_.score();
            kept = trail_.size();
        }
    }
    undo(kept);
    return better(best, before);
}

bool Neighbourhoods::later(const Entry& a, const Entry& b) {
    return std::tie(a.change, a.item, a.device) > std::tie(b.change, b.item, b.device);
}

// Adds the best move of an item to the queue, if a move may lower the score.
void Neighbourhoods::enqueue(std::int32_t item, bool sorted) {
    if (model_.items > settings_.every_move && !state_.may_pay(item)) return;
    Entry entry{std::numeric_limits<double>::infinity(), item, ++stamp_[item], 0};
    for (std::uint8_t d = 0; d < model_.devices; ++d) {
        if (d == state_.device(item) || !model_.supports(item, d)) continue;
        const double change = state_.score_after(item, d) - state_.score();
        if (change >= entry.change) continue;
        entry.change = change;
        entry.device = d;
    }
    if (entry.change == std::numeric_limits<double>::infinity()) return;
    queue_.push_back(entry);
    if (sorted) std::push_heap(queue_.begin(), queue_.end(), later);
}

// Updates the neighbours' moves after a move of the item; returns the number of items looked at.
std::int32_t Neighbourhoods::enqueue_neighbours(std::int32_t item) {
    std::int32_t seen = 0;
    const auto touch = [&](std::int32_t other) {
        if (locked_[other] != 0 || touched_[other] == touches_) return;
        touched_[other] = touches_;
        enqueue(other, true);
        ++seen;
    };
    const auto touch_all = [&](std::int32_t t) {
        const std::int32_t begin = model_.consumer_ptr[t];
        const std::int32_t end = model_.consumer_ptr[t + 1];
        touch(model_.source[t]);
        // A move of one of many consumers has little influence on the others.
        if (end - begin > settings_.many_consumers) return;
        for (std::int32_t c = begin; c < end; ++c) touch(model_.consumer[c]);
    };
    touched_.resize(stamp_.size(), 0);
    ++touches_;
    if (model_.items <= settings_.fresh) {
        for (std::int32_t other = 0; other < model_.items; ++other) touch(other);
        return seen / 4;  // about the number of its neighbours
    }
    for (std::int32_t i = model_.produced_ptr[item]; i < model_.produced_ptr[item + 1]; ++i)
        touch_all(model_.produced[i]);
    for (std::int32_t i = model_.received_ptr[item]; i < model_.received_ptr[item + 1]; ++i)
        touch_all(model_.received[i]);
    return seen;
}

void Neighbourhoods::flips(Budget& budget) {
    Groups parts(model_.items);
    for (std::int32_t t = 0; t < model_.tensors(); ++t) {
        for (std::int32_t c = model_.consumer_ptr[t]; c < model_.consumer_ptr[t + 1]; ++c) {
            if (state_.device(model_.source[t]) == state_.device(model_.consumer[c])) {
                parts.merge(model_.source[t], model_.consumer[c]);
            }
        }
    }
    const std::vector<std::int32_t> part = parts.numbers();
    const std::int32_t count = model_.items == 0 ? 0 : *std::max_element(part.begin(), part.end()) + 1;
    std::vector<std::vector<std::int32_t>> members(static_cast<std::size_t>(count));
    for (std::int32_t item = 0; item < model_.items; ++item) members[part[item]].push_back(item);
    budget.spend(model_.items);
    for (const std::vector<std::int32_t>& items : members) {
        for (std::uint8_t d = 0; d < model_.devices; ++d) {
            try_flip(items, [d](std::uint8_t) { return d; }, budget);
        }
    }
    std::vector<std::int32_t> all(static_cast<std::size_t>(model_.items));
    std::iota(all.begin(), all.end(), 0);
    for (std::uint8_t a = 0; a < model_.devices; ++a) {
        try_flip(all, [a](std::uint8_t) { return a; }, budget);
        for (std::uint8_t b = a + 1; b < model_.devices; ++b) {
            try_flip(all, [a, b](std::uint8_t d) { return d == a ? b : d == b ? a : d; }, budget);
        }
    }
}

template <typename Target>
void Neighbourhoods::try_flip(const std::vector<std::int32_t>& items, Target target, Budget& budget) {
    if (!budget.left()) return;
    const double before = state_.score();
    trail_.clear();
    for (const std::int32_t item : items) {
        const std::uint8_t to = target(state_.device(item));
        if (to != state_.device(item) && model_.supports(item, to)) move(item, to);
    }
    budget.spend(static_cast<std::int64_t>(2 * trail_.size()));
    if (!trail_.empty() && !better(state_.score(), before)) undo(0);
}

void Neighbourhoods::best_run(Budget& budget) {
    double best = state_.score();
    Run chosen;
    for_each_run(budget, [&](const Run& run) {
        if (!better(state_.score(), best)) return;
        best = state_.score();
        chosen = run;
    });
    for (std::int32_t i = 0, k = chosen.first; i < chosen.count; ++i, k += chosen.step) {
        if (model_.supports(model_.order[k], chosen.device)) state_.move(model_.order[k], chosen.device);
    }
}

std::vector<Run> Neighbourhoods::promising_runs(double bound, std::size_t most, Budget& budget) {
    std::vector<Run> found;
    const auto note = [&](const Run& run) {
        if (!better(state_.us(), bound)) return;
        found.push_back(run);
        found.back().us = state_.us();
    };
    for_each_run(budget, note);
    for (std::int32_t k = 0; k < model_.items; ++k) {
        const std::int32_t item = model_.order[k];
        const std::uint8_t from = state_.device(item);
        for (std::uint8_t d = 0; d < model_.devices; ++d) {
            if (d == from || !model_.supports(item, d)) continue;
            state_.move(item, d);
            note({k, 1, 1, d, 0});
            state_.move(item, from);
        }
    }
    budget.spend(std::int64_t{2} * model_.items * (model_.devices - 1));
    const std::size_t chosen = std::min(found.size(), most);
    std::partial_sort(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(chosen), found.end(),
                      [](const Run& a, const Run& b) {
                          return std::tie(a.us, a.first, a.count, a.step, a.device) <
                                 std::tie(b.us, b.first, b.count, b.step, b.device);
                      });
    found.resize(chosen);
    return found;
}

void Neighbourhoods::apply(const Run& run, std::vector<std::uint8_t>& placement) const {
    for (std::int32_t i = 0, k = run.first; i < run.count; ++i, k += run.step) {
        if (model_.supports(model_.order[k], run.device)) placement[model_.order[k]] = run.device;
    }
}

// Calls visit(run), in the state after the run, for each run that begins at a partition boundary or an end of the
// order.
template <typename Visit>
void Neighbourhoods::for_each_run(Budget& budget, Visit visit) {
    const std::int32_t n = model_.items;
    const std::vector<std::int32_t> begins = boundaries();
    const std::size_t each = stride(begins.size(), 2 * std::int64_t{std::min(longest_run_, n)} * model_.devices);
    for (std::size_t b = 0; b < begins.size() && budget.left(); b += each) {
        for (const std::int32_t step : {1, -1}) {
            for (std::uint8_t d = 0; d < model_.devices; ++d) {
                Run run{step > 0 ? begins[b] : begins[b] - 1, 0, step, d, 0};
                trail_.clear();
                for (std::int32_t k = run.first; k >= 0 && k < n && run.count < longest_run_; k += step) {
                    const std::int32_t item = model_.order[k];
                    ++run.count;
                    if (state_.device(item) == d) {
                        if (trail_.empty()) break;
                        continue;
                    }
                    if (!model_.supports(item, d)) continue;
                    move(item, d);
                    visit(run);
                }
                budget.spend(static_cast<std::int64_t>(2 * trail_.size()));
                undo(0);
            }
        }
    }
}

// Calls visit(slide), in the state after the slide, for each slide of a part. The items that it leaves go to the part
// behind it; at an end of the order to each other device.
template <typename Visit>
void Neighbourhoods::for_each_slide(Budget& budget, Visit visit) {
    const std::int32_t n = model_.items;
    const std::vector<std::int32_t> begins = boundaries();
    const std::size_t each = stride(begins.size(), 8 * std::int64_t{std::min(settings_.slide, n)});
    for (std::size_t part = 0; part + 1 < begins.size() && budget.left(); part += each) {
        const std::int32_t first = begins[part], end = begins[part + 1];
        const std::uint8_t own = state_.device(model_.order[first]);
        for (const std::int32_t step : {1, -1}) {
            const std::int32_t left = step > 0 ? first : end - 1;
            const std::int32_t taken = step > 0 ? end : first - 1;
            const std::int32_t behind = left - step;
            const bool at_end = behind < 0 || behind >= n;
            const std::int32_t most = std::min({settings_.slide, end - first, step > 0 ? n - end : first});
            for (std::uint8_t d = 0; d < model_.devices; ++d) {
                if (d == own || (!at_end && d != state_.device(model_.order[behind]))) continue;
                Slide slide{left, taken, 0, step, own, d};
                trail_.clear();
                while (slide.count < most) {
                    slide_by_one(slide, slide.count);
                    ++slide.count;
                    visit(slide);
                }
                budget.spend(static_cast<std::int64_t>(2 * trail_.size()));
                undo(0);
            }
        }
    }
}

void Neighbourhoods::best_slide(Budget& budget) {
    double best = state_.score();
    Slide chosen;
    for_each_slide(budget, [&](const Slide& slide) {
        if (!better(state_.score(), best)) return;
        best = state_.score();
        chosen = slide;
    });
    for (std::int32_t k = 0; k < chosen.count; ++k) slide_by_one(chosen, k);
}

void Neighbourhoods::slide_by_one(const Slide& slide, std::int32_t k) {
    move_if_supported(model_.order[slide.left + k * slide.step], slide.to);
    move_if_supported(model_.order[slide.taken + k * slide.step], slide.from);
}

std::vector<std::int32_t> Neighbourhoods::boundaries() const {
    const std::int32_t n = model_.items;
    std::vector<std::int32_t> begins;
    for (std::int32_t k = 0; k <= n; ++k) {
        if (k == 0 || k == n || state_.device(model_.order[k - 1]) != state_.device(model_.order[k]))
            begins.push_back(k);
    }
    return begins;
}

std::size_t Neighbourhoods::stride(std::size_t boundaries, std::int64_t moves_each) const {
    const auto most = static_cast<std::size_t>(
        std::max<std::int64_t>(settings_.run_moves / std::max<std::int64_t>(moves_each, 1), 4));
    return (boundaries + most - 1) / most;
}

void Neighbourhoods::move_if_supported(std::int32_t item, std::uint8_t device) {
    if (state_.device(item) != device && model_.supports(item, device)) move(item, device);
}

void Neighbourhoods::move(std::int32_t item, std::uint8_t device) {
    trail_.push_back({item, state_.device(item)});
    state_.move(item, device);
}

// Undoes the moves of the trail after the first `kept`.
void Neighbourhoods::undo(std::size_t kept) {
    while (trail_.size() > kept) {
        state_.move(trail_.back().item, trail_.back().from);
        trail_.pop_back();
    }
}

}  // namespace ov_hsdag
