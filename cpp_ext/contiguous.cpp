// The dynamic program and the search over sequences of devices, with the names F, R, S and T of the header.
// Extension adds one part to partitions, forwards for F or backwards for R. Pools numbers the multisets S. Search
// fills R for all states, and then enumerates sequences of devices best first.
#include "contiguous.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <queue>
#include <stdexcept>
#include <utility>

namespace ov_hsdag {

namespace {

constexpr double kInfinite = PartitionCosts::infinite;
// Bounds are rounded to the best value divided by this, as the order of additions changes the last digits.
constexpr double kEqual = 1e12;
// Largest time that is accepted: sums stay finite, and no difference is NaN, which cannot be ordered.
constexpr double kMost = 1e300;

// The near end of a part, at which the rest of the items on its other side ends.
struct End {
    double beyond = 0.0;   // value of the items beyond it: F before a part, or R behind it
    double side = 0.0;     // `enter` or `leave` of the part at this end
    std::int32_t cut = 0;  // position
};

// Extends partitions by one part of one kind: for each far end of the part, the minimum over its near ends. Forwards
// the near end is the begin of the part, which computes F; backwards it is the end, which computes R.
class Extension {
public:
    Extension(const PartitionCosts& costs, bool backward) : costs_(costs), backward_(backward) {}

    // ends: near ends in the direction of the sweep. sides: costs at the far ends, [P] each; null for none. values: set
    // for each of the sides, [P]. from: if not null, set to the best near end of each far end, -1 for none, [P].
    void run(std::int32_t kind, const std::vector<End>& ends, const std::vector<const double*>& sides,
             const std::vector<double*>& values, std::int32_t* from = nullptr) {
        for (double* value : values) std::fill_n(value, costs_.cuts, kInfinite);
        if (from != nullptr) std::fill_n(from, costs_.cuts, -1);
        if (!costs_.span.empty()) {
            by_span(kind, ends, sides, values, from);
        } else if (costs_.throughput) {
            by_slowest(kind, ends, sides, values, from);
        } else {
            by_sum(kind, ends, sides, values, from);
        }
    }

private:
    // A near end as by_slowest keeps it.
    struct Candidate {
        double beyond, rest;  // End::beyond; time of the part but for its far end
        std::int32_t cut;
    };

    // The cost at a far end.
    static double at(const double* side, std::int32_t cut) { return side == nullptr ? 0.0 : side[cut]; }

    // Tries all pairs of near and far ends. Arguments of the by_… functions are those of `run`.
    void by_span(std::int32_t kind, const std::vector<End>& ends, const std::vector<const double*>& sides,
                 const std::vector<double*>& values, std::int32_t* from) const {
        const std::size_t n = static_cast<std::size_t>(costs_.cuts);
        const double* span = costs_.span.data() + static_cast<std::size_t>(kind) * n * n;
        for (const End& end : ends) {
            const std::int32_t first = backward_ ? 0 : end.cut + 1;
            const std::int32_t last = backward_ ? end.cut : costs_.cuts;
            const double* row = span + static_cast<std::size_t>(end.cut) * (backward_ ? 1 : n);
            const std::size_t step = backward_ ? n : 1;
            for (std::size_t s = 0; s < sides.size(); ++s) {
                double* value = values[s];
                for (std::int32_t cut = first; cut < last; ++cut) {
                    const double part = row[static_cast<std::size_t>(cut) * step] + end.side + at(sides[s], cut);
                    const double total = costs_.throughput ? std::max(end.beyond, part) : end.beyond + part;
                    if (total < value[cut]) {
                        value[cut] = total;
                        if (from != nullptr) from[cut] = end.cut;
                    }
                }
            }
        }
    }

    // Sweeps over the cuts. Calls enter(end, near) at each near end, reach(cut, far) at each far end, after the near
    // ends before it, and reset() between cuts that no part may cross. near + far is the span of the part.
    template <typename Enter, typename Reset, typename Reach>
    void sweep(std::int32_t kind, const std::vector<End>& ends, Enter enter, Reset reset, Reach reach) const {
        const std::size_t n = static_cast<std::size_t>(costs_.cuts);
        const double* work = costs_.work.data() + static_cast<std::size_t>(kind) * n;
        const std::uint8_t* blocked = costs_.blocked.data() + static_cast<std::size_t>(kind) * (n - 1);
        const double fixed = costs_.fixed[static_cast<std::size_t>(kind)];
        const double sign = backward_ ? 1.0 : -1.0;
        std::size_t next = 0;
        for (std::int32_t step = 0; step < costs_.cuts; ++step) {
            const std::int32_t cut = backward_ ? costs_.cuts - 1 - step : step;
            if (step > 0 && blocked[backward_ ? cut : cut - 1] != 0) reset();
            reach(cut, fixed - sign * work[cut]);
            for (; next < ends.size() && ends[next].cut == cut; ++next) {
                if (ends[next].beyond < kInfinite) enter(ends[next], sign * work[cut]);
            }
        }
    }

    // For latency: the minimum of beyond + side + near, updated as the sweep passes near ends, serves all far ends.
    void by_sum(std::int32_t kind, const std::vector<End>& ends, const std::vector<const double*>& sides,
                const std::vector<double*>& values, std::int32_t* from) const {
        double best = kInfinite;
        std::int32_t cut_of_best = -1;
        sweep(
            kind, ends,
            [&](const End& end, double near) {
                const double total = end.beyond + end.side + near;
                if (total < best) {
                    best = total;
                    cut_of_best = end.cut;
                }
            },
            [&] { best = kInfinite; },
            [&](std::int32_t cut, double far) {
                if (best == kInfinite) return;
                for (std::size_t s = 0; s < sides.size(); ++s) values[s][cut] = best + far + at(sides[s], cut);
                if (from != nullptr) from[cut] = cut_of_best;
            });
    }

    // The minimum of max(beyond, rest + far) over near ends. Only candidates that no other one beats in both `beyond`
    // and `rest` are kept, sorted by rising `beyond` and so by falling `rest`. The best one is next to the place where
    // rest + far falls below `beyond`.
    void by_slowest(std::int32_t kind, const std::vector<End>& ends, const std::vector<const double*>& sides,
                    const std::vector<double*>& values, std::int32_t* from) {
        front_.clear();
        hint_.assign(sides.size(), 0);
        sweep(
            kind, ends, [&](const End& end, double near) { insert({end.beyond, end.side + near, end.cut}); },
            [&] { front_.clear(); },
            [&](std::int32_t cut, double far) {
                if (front_.empty()) return;
                for (std::size_t s = 0; s < sides.size(); ++s) {
                    const double whole = far + at(sides[s], cut);
                    std::size_t& place = hint_[s];
                    // The place hardly moves from one cut to the next, so the search starts at the previous one.
                    place = std::min(place, front_.size());
                    while (place > 0 && front_[place - 1].beyond >= front_[place - 1].rest + whole) --place;
                    while (place < front_.size() && front_[place].beyond < front_[place].rest + whole) ++place;
                    double best = kInfinite;
                    std::size_t chosen = place;
                    if (place < front_.size()) best = front_[place].beyond;
                    if (place > 0 && front_[place - 1].rest + whole <= best) {
                        best = front_[place - 1].rest + whole;
                        chosen = place - 1;
                    }
                    values[s][cut] = best;
                    if (from != nullptr) from[cut] = front_[chosen].cut;
                }
            });
    }

    // Adds a candidate to front_ unless another one is at least as good in both values, and removes those that it
    // beats.
    void insert(const Candidate& candidate) {
        std::size_t place = front_.size();
        while (place > 0 && front_[place - 1].beyond >= candidate.beyond) --place;
        if (place > 0 && front_[place - 1].rest <= candidate.rest) return;
        std::size_t last = place;
        if (last < front_.size() && front_[last].beyond == candidate.beyond && front_[last].rest <= candidate.rest) {
            return;
        }
        while (last < front_.size() && front_[last].rest >= candidate.rest) ++last;
        const auto begin = front_.begin();
        if (last > place) {
            front_[place] = candidate;
            front_.erase(begin + static_cast<std::ptrdiff_t>(place) + 1, begin + static_cast<std::ptrdiff_t>(last));
        } else {
            front_.insert(begin + static_cast<std::ptrdiff_t>(place), candidate);
        }
    }

    const PartitionCosts& costs_;
    bool backward_;
    std::vector<Candidate> front_;
    std::vector<std::size_t> hint_;
};

// Numbers the multisets S of devices that are left (in the given order of devices: all from some device on), and lists
// the steps that take one more device. Subsets have smaller numbers; 0 is the empty set.
class Pools {
public:
    struct Step {
        std::int32_t kind, pool;  // the kind that is taken, and the set that is left
    };

    Pools(const PartitionCosts& costs, bool any_order) {
        const std::size_t kinds = costs.kinds.size();
        if (!any_order) {
            const auto last = static_cast<std::int32_t>(kinds) - 1;
            steps_.resize(kinds + 1);
            for (std::int32_t pool = 1; pool <= last + 1; ++pool) {
                for (std::int32_t kind = last + 1 - pool; kind <= last; ++kind) {
                    steps_[static_cast<std::size_t>(pool)].push_back({kind, last - kind});
                }
            }
            return;
        }
        std::vector<std::int32_t> radix;
        std::int32_t size = 1;
        for (const auto& members : costs.kinds) {
            radix.push_back(size);
            size *= static_cast<std::int32_t>(members.size()) + 1;
        }
        steps_.resize(static_cast<std::size_t>(size));
        for (std::int32_t pool = 0; pool < size; ++pool) {
            for (std::size_t kind = 0; kind < kinds; ++kind) {
                const auto members = static_cast<std::int32_t>(costs.kinds[kind].size());
                if (pool / radix[kind] % (members + 1) == 0) continue;
                steps_[static_cast<std::size_t>(pool)].push_back({static_cast<std::int32_t>(kind), pool - radix[kind]});
            }
        }
    }

    // The number of the set of all devices.
    [[nodiscard]] std::int32_t full() const { return static_cast<std::int32_t>(steps_.size()) - 1; }
    // The steps from a set, in the order of kinds.
    [[nodiscard]] const std::vector<Step>& steps(std::int32_t pool) const {
        return steps_[static_cast<std::size_t>(pool)];
    }

private:
    std::vector<std::vector<Step>> steps_;
};

// Enumerates sequences of devices, the best first. With `skip`, sequences have all devices, and functions named
// …_skipping are used; otherwise each device has items, and sequences are chains.
class Search {
public:
    Search(const PartitionCosts& costs, const PartitionOptions& options)
        : costs_(costs),
          options_(options),
          kinds_(costs.kinds.size()),
          cuts_(static_cast<std::size_t>(costs.cuts)),
          pools_(costs, options.any_order),
          forward_(costs, false) {}

    std::vector<Partition> run() {
        if (options_.skip && !options_.any_order) {
            Node listed;
            for (std::size_t kind = 0; kind < kinds_; ++kind) listed.take(costs_, static_cast<std::int32_t>(kind));
            std::vector<Partition> found;
            trace_skipping(listed, found);
            return found;
        }
        fill_remaining();
        return options_.skip ? best_skipping() : best_chains();
    }

private:
    // A sequence of devices, complete or the begin of one.
    struct Node {
        double bound = 0.0;  // lower bound of all sequences that begin with it
        double key = 0.0;    // the bound as a multiple of the best one, rounded, by which the queue is sorted
        std::vector<std::int32_t> devices, kinds;
        std::int32_t pool = 0;  // devices that are left
        bool complete = false;
        // F: without `skip`, the value of the items before each cut on all devices but the last; with it, on all.
        std::vector<double> reached;

        // Appends the first unused device of a kind.
        void take(const PartitionCosts& costs, std::int32_t kind) {
            const auto used = static_cast<std::size_t>(std::count(kinds.begin(), kinds.end(), kind));
            kinds.push_back(kind);
            devices.push_back(costs.kinds[static_cast<std::size_t>(kind)][used]);
        }
    };

    // The order of the queue: the least key first, then the lexicographically first devices.
    struct Later {
        bool operator()(const Node& a, const Node& b) const {
            return a.key != b.key ? a.key > b.key : a.devices > b.devices;
        }
    };

    using Queue = std::priority_queue<Node, std::vector<Node>, Later>;

    // The operator (+) of the recurrence.
    [[nodiscard]] double combine(double a, double b) const { return costs_.throughput ? std::max(a, b) : a + b; }

    // The costs of a link between parts of two kinds at each cut, [P]: a row of `enter` or `leave`. Null if the table
    // is empty or a kind is -1, that is, if there is no such part.
    [[nodiscard]] const double* link(const std::vector<double>& table, std::int32_t before, std::int32_t after) const {
        if (table.empty() || before < 0 || after < 0) return nullptr;
        return table.data() + (static_cast<std::size_t>(before) * kinds_ + static_cast<std::size_t>(after)) * cuts_;
    }

    // Number of the state (S = pool, c = kind, b = before; -1: no device before it, or costs do not depend on it).
    [[nodiscard]] std::size_t row(std::int32_t pool, std::int32_t kind, std::int32_t before) const {
        const std::size_t links = costs_.linked() ? kinds_ + 1 : 1;
        const std::size_t from = costs_.linked() ? static_cast<std::size_t>(before + 1) : 0;
        return (static_cast<std::size_t>(pool) * kinds_ + static_cast<std::size_t>(kind)) * links + from;
    }

    // R of a state, [P].
    const double* remaining(std::int32_t pool, std::int32_t kind, std::int32_t before) const {
        return remaining_.data() + static_cast<std::size_t>(place_[row(pool, kind, before)]) * cuts_;
    }

    // Computes R for all states that can be reached; remaining(pool, kind, before)[i] is R(pool, kind, before)[i].
    void fill_remaining() {
        place_.assign(static_cast<std::size_t>(pools_.full() + 1) * kinds_ * (costs_.linked() ? kinds_ + 1 : 1), -1);
        // Finds the states that can be reached. They are computed in the order of pools, smaller ones first.
        std::int32_t rows = 0;
        const auto add_state = [&](std::int32_t pool, std::int32_t kind, std::int32_t before) {
            std::int32_t& place = place_[row(pool, kind, before)];
            if (place < 0) place = rows++;
        };
        for (std::int32_t pool = 0; pool <= pools_.full(); ++pool) {
            for (const auto& step : pools_.steps(pool)) {
                if (!costs_.linked() || pool == pools_.full()) add_state(step.pool, step.kind, -1);
                if (!costs_.linked()) continue;
                for (const auto& then : pools_.steps(step.pool)) add_state(then.pool, then.kind, step.kind);
            }
        }
        remaining_.resize(static_cast<std::size_t>(rows) * cuts_);

        Extension backward(costs_, true);
        std::vector<End> ends;
        std::vector<const double*> sides;
        std::vector<double*> values;
        for (std::int32_t pool = 0; pool < pools_.full(); ++pool) {
            for (std::int32_t kind = 0; kind < static_cast<std::int32_t>(kinds_); ++kind) {
                sides.clear();
                values.clear();
                for (std::int32_t before = -1; before < static_cast<std::int32_t>(costs_.linked() ? kinds_ : 0);
                     ++before) {
                    const std::int32_t place = place_[row(pool, kind, before)];
                    if (place < 0) continue;
                    sides.push_back(link(costs_.enter, before, kind));
                    values.push_back(remaining_.data() + static_cast<std::size_t>(place) * cuts_);
                }
                if (values.empty()) continue;
                ends.assign(1, {0.0, 0.0, costs_.cuts - 1});
                for (std::int32_t cut = costs_.cuts - 2; cut > 0; --cut) {
                    for (const auto& then : pools_.steps(pool)) {
                        const double* leave = link(costs_.leave, kind, then.kind);
                        const double beyond = remaining(then.pool, then.kind, kind)[cut];
                        if (beyond < kInfinite) ends.push_back({beyond, leave == nullptr ? 0.0 : leave[cut], cut});
                    }
                }
                backward.run(kind, ends, sides, values);
            }
        }
    }

    // Enumerates sequences best first: `first` are the shortest begins, `expand` makes the longer begins of one, and
    // `trace` the partitions of a complete one. Bounds are compared as multiples of the least one, so that rounding
    // errors do not decide between equal ones.
    std::vector<Partition> best_first(std::vector<Node> first, void (Search::*expand)(const Node&, std::vector<Node>&),
                                      void (Search::*trace)(const Node&, std::vector<Partition>&)) {
        best_ = kInfinite;
        for (const Node& node : first) best_ = std::min(best_, node.bound);
        Queue queue;
        std::vector<Partition> found;
        std::int32_t sequences = 0;
        const auto push_all = [&](std::vector<Node>& nodes) {
            for (Node& node : nodes) {
                if (!(node.bound < kInfinite)) continue;
                node.key = best_ > 0.0 ? std::round(node.bound / best_ * kEqual) : node.bound;
                queue.push(std::move(node));
            }
            nodes.clear();
        };
        push_all(first);
        std::vector<Node> children;
        while (!queue.empty() && sequences < options_.sequences) {
            const Node node = queue.top();
            queue.pop();
            if (node.complete) {
                (this->*trace)(node, found);
                ++sequences;
                continue;
            }
            (this->*expand)(node, children);
            push_all(children);
        }
        return found;
    }

    // --- all devices in each sequence, any of them without items -----------------------------------------------------

    // The lower bound of all sequences that begin with the node's.
    [[nodiscard]] double bound_skipping(const Node& node) const {
        double bound = node.reached[cuts_ - 1];
        for (const auto& step : pools_.steps(node.pool)) {
            const double* rest = remaining(step.pool, step.kind, -1);
            for (std::size_t cut = 0; cut + 1 < cuts_; ++cut) {
                bound = std::min(bound, combine(node.reached[cut], rest[cut]));
            }
        }
        return bound;
    }

    // Sets `after` to F of the sequence with one more device of `kind`, which may have no items. reached: F of the
    // sequence. from: if not null, set to the begin of the device's part for each end, -1 for none, [P].
    void extend_skipping(std::int32_t kind, const std::vector<double>& reached, std::vector<double>& after,
                         std::int32_t* from) {
        ends_.clear();
        for (std::int32_t cut = 0; cut < costs_.cuts; ++cut) {
            if (reached[static_cast<std::size_t>(cut)] < kInfinite) {
                ends_.push_back({reached[static_cast<std::size_t>(cut)], 0.0, cut});
            }
        }
        after.resize(cuts_);
        forward_.run(kind, ends_, {nullptr}, {after.data()}, from);
        for (std::size_t cut = 0; cut < cuts_; ++cut) {
            if (!(reached[cut] <= after[cut])) continue;
            after[cut] = reached[cut];
            if (from != nullptr) from[cut] = static_cast<std::int32_t>(cut);
        }
    }

    // Makes the nodes with one more device.
    void expand_skipping(const Node& node, std::vector<Node>& children) {
        for (const auto& step : pools_.steps(node.pool)) {
            Node child;
            child.devices = node.devices;
            child.kinds = node.kinds;
            child.take(costs_, step.kind);
            child.pool = step.pool;
            extend_skipping(step.kind, node.reached, child.reached, nullptr);
            child.complete = step.pool == 0;
            child.bound = bound_skipping(child);
            children.push_back(std::move(child));
        }
    }

    // Appends the best partition of a complete sequence to `found`, unless none is finite.
    void trace_skipping(const Node& node, std::vector<Partition>& found) {
        std::vector<double> reached(cuts_, kInfinite), after;
        reached[0] = 0.0;
        std::vector<std::int32_t> from(node.kinds.size() * cuts_);
        for (std::size_t k = 0; k < node.kinds.size(); ++k) {
            extend_skipping(node.kinds[k], reached, after, from.data() + k * cuts_);
            reached.swap(after);
        }
        if (!(reached[cuts_ - 1] < kInfinite)) return;
        Partition partition{reached[cuts_ - 1], node.devices, {costs_.cuts - 1}};
        for (std::size_t k = node.kinds.size(); k-- > 0;) {
            const auto end = static_cast<std::size_t>(partition.bounds.back());
            partition.bounds.push_back(from[k * cuts_ + end]);
        }
        std::reverse(partition.bounds.begin(), partition.bounds.end());
        found.push_back(std::move(partition));
    }

    // The best partitions over sequences that have all devices.
    std::vector<Partition> best_skipping() {
        Node root;
        root.pool = pools_.full();
        root.reached.assign(cuts_, kInfinite);
        root.reached[0] = 0.0;
        root.bound = bound_skipping(root);
        std::vector<Node> first;
        first.push_back(std::move(root));
        return best_first(std::move(first), &Search::expand_skipping, &Search::trace_skipping);
    }

    // --- sequences of devices that all have items --------------------------------------------------------------------

    // The kind of the device before the last one; -1 if there is none, or costs do not depend on it.
    [[nodiscard]] std::int32_t before_last(const Node& node) const {
        return costs_.linked() && node.kinds.size() > 1 ? node.kinds[node.kinds.size() - 2] : -1;
    }

    // The lower bound of all sequences that begin with the node's and have items on each device.
    [[nodiscard]] double bound_chain(const Node& node) const {
        const double* rest = remaining(node.pool, node.kinds.back(), before_last(node));
        double bound = kInfinite;
        for (std::size_t cut = 0; cut + 1 < cuts_; ++cut) {
            bound = std::min(bound, combine(node.reached[cut], rest[cut]));
        }
        return bound;
    }

    // Sets `ends_` to the possible begins of the part of the last device of a sequence.
    void begin_chain(std::int32_t before, std::int32_t kind, const std::vector<double>& reached) {
        const double* enter = link(costs_.enter, before, kind);
        ends_.clear();
        for (std::int32_t cut = 0; cut + 1 < costs_.cuts; ++cut) {
            const double value = reached[static_cast<std::size_t>(cut)];
            if (value < kInfinite) ends_.push_back({value, enter == nullptr ? 0.0 : enter[cut], cut});
        }
    }

    // Makes the nodes that end with the last device, and with one more device behind it.
    void expand_chain(const Node& node, std::vector<Node>& children) {
        const std::int32_t kind = node.kinds.back();
        const auto& steps = pools_.steps(node.pool);
        begin_chain(before_last(node), kind, node.reached);
        std::vector<const double*> sides{nullptr};
        children.assign(steps.size() + 1, Node{});
        for (const auto& step : steps) sides.push_back(link(costs_.leave, kind, step.kind));
        std::vector<double*> values;
        for (std::size_t k = 0; k <= steps.size(); ++k) {
            Node& child = children[k];
            child.devices = node.devices;
            child.kinds = node.kinds;
            child.pool = node.pool;
            child.reached.resize(cuts_);
            values.push_back(child.reached.data());
        }
        forward_.run(kind, ends_, sides, values);
        children[0].complete = true;
        children[0].bound = children[0].reached[cuts_ - 1];
        for (std::size_t k = 0; k < steps.size(); ++k) {
            Node& child = children[k + 1];
            child.take(costs_, steps[k].kind);
            child.pool = steps[k].pool;
            child.bound = bound_chain(child);
        }
    }

    // Appends the best partitions of a complete sequence to `found`, at most `per_sequence`.
    void trace_chain(const Node& node, std::vector<Partition>& found) {
        const std::size_t count = node.kinds.size();
        std::vector<double> reached(cuts_, kInfinite), after(cuts_);
        reached[0] = 0.0;
        std::vector<std::int32_t> from(count * cuts_);
        for (std::size_t k = 0; k + 1 < count; ++k) {
            begin_chain(k > 0 ? node.kinds[k - 1] : -1, node.kinds[k], reached);
            forward_.run(node.kinds[k], ends_, {link(costs_.leave, node.kinds[k], node.kinds[k + 1])}, {after.data()},
                         from.data() + k * cuts_);
            reached.swap(after);
        }
        // The value of the last part for each begin.
        Extension backward(costs_, true);
        const std::int32_t before = count > 1 ? node.kinds[count - 2] : -1;
        backward.run(node.kinds[count - 1], {{0.0, 0.0, costs_.cuts - 1}},
                     {link(costs_.enter, before, node.kinds[count - 1])}, {after.data()});
        std::vector<std::pair<double, std::int32_t>> last;
        for (std::size_t cut = 0; cut + 1 < cuts_; ++cut) {
            const double value = combine(reached[cut], after[cut]);
            if (value < kInfinite) last.emplace_back(value, static_cast<std::int32_t>(cut));
        }
        const auto kept = std::min(last.size(), static_cast<std::size_t>(options_.per_sequence));
        std::partial_sort(last.begin(), last.begin() + static_cast<std::ptrdiff_t>(kept), last.end());
        for (std::size_t number = 0; number < kept; ++number) {
            Partition partition{last[number].first, node.devices, {costs_.cuts - 1, last[number].second}};
            for (std::size_t k = count - 1; k-- > 0;) {
                const auto end = static_cast<std::size_t>(partition.bounds.back());
                partition.bounds.push_back(from[k * cuts_ + end]);
            }
            std::reverse(partition.bounds.begin(), partition.bounds.end());
            found.push_back(std::move(partition));
        }
    }

    // The best partitions over sequences whose devices all have items.
    std::vector<Partition> best_chains() {
        std::vector<Node> first;
        for (const auto& step : pools_.steps(pools_.full())) {
            Node node;
            node.take(costs_, step.kind);
            node.pool = step.pool;
            node.reached.assign(cuts_, kInfinite);
            node.reached[0] = 0.0;
            node.bound = bound_chain(node);
            first.push_back(std::move(node));
        }
        return best_first(std::move(first), &Search::expand_chain, &Search::trace_chain);
    }

    const PartitionCosts& costs_;
    const PartitionOptions& options_;
    std::size_t kinds_;
    std::size_t cuts_;
    Pools pools_;
    Extension forward_;
    double best_ = 0.0;                // the least bound, by which the others are divided
    std::vector<End> ends_;            // scratch: near ends of the next extension
    std::vector<std::int32_t> place_;  // [states] row of the state in remaining_, -1: cannot be reached
    std::vector<double> remaining_;    // [rows, P] R
};

}  // namespace

std::vector<std::vector<std::int32_t>> members_of(const std::vector<std::int32_t>& kind) {
    std::vector<std::vector<std::int32_t>> members;
    for (std::size_t device = 0; device < kind.size(); ++device) {
        const auto number = static_cast<std::size_t>(kind[device]);
        if (number > members.size()) throw std::invalid_argument("expected kinds numbered from 0 as they first appear");
        if (number == members.size()) members.emplace_back();
        members[number].push_back(static_cast<std::int32_t>(device));
    }
    if (members.empty()) throw std::invalid_argument("expected at least one device");
    return members;
}

std::vector<Partition> contiguous_partitions(const PartitionCosts& costs, const PartitionOptions& options) {
    for (const auto* values : {&costs.work, &costs.fixed}) {
        if (!std::all_of(values->begin(), values->end(), [](double value) { return std::abs(value) <= kMost; })) {
            throw std::invalid_argument("expected finite times in 'work' and 'fixed'");
        }
    }
    for (const auto* values : {&costs.span, &costs.enter, &costs.leave}) {
        if (!std::all_of(values->begin(), values->end(), [](double value) { return value >= -kMost; })) {
            throw std::invalid_argument("expected no NaN among costs");
        }
    }
    return Search(costs, options).run();
}

}  // namespace ov_hsdag
