// Contraction of pairs of items, level by level. Contraction rates the pairs that may be merged, matches them
// greedily, the highest rating first, and finds an order of the coarse items. Hierarchy repeats this until the
// target size is reached.
#include "hierarchy.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <utility>

namespace ov_hsdag {
namespace {

constexpr std::int32_t kNone = -1;     // no neighbour, partner or number
constexpr std::int32_t kSeveral = -2;  // several neighbours

// The larger of each item's share of all work, on fastest devices, and its share of all weights, [items].
std::vector<double> shares(const AdditiveModel& model) {
    const auto width = static_cast<std::size_t>(model.devices);
    const auto count = static_cast<std::size_t>(model.items);
    std::vector<double> work(count, 0.0), held(count, 0.0);
    bool limited = std::any_of(model.memory_limit.begin(), model.memory_limit.end(),
                               [](std::int64_t limit) { return limit >= 0; });
    for (std::size_t i = 0; i < count; ++i) {
        double least = std::numeric_limits<double>::infinity();
        for (std::size_t d = 0; d < width; ++d) {
            if (model.supported[i * width + d] != 0) least = std::min(least, model.item_us[i * width + d]);
            held[i] = std::max(held[i], static_cast<double>(model.weight[i * width + d]));
        }
        if (least < std::numeric_limits<double>::infinity()) work[i] = least;
    }
    const double all_work = std::max(std::accumulate(work.begin(), work.end(), 0.0), 1e-30);
    const double all_held = std::max(std::accumulate(held.begin(), held.end(), 0.0), 1.0);
    for (std::size_t i = 0; i < count; ++i) work[i] = std::max(work[i] / all_work, limited ? held[i] / all_held : 0.0);
    return work;
}

// One round of contractions. An edge may be contracted if its target receives from no other item, or if its source
// sends to no other item. Any number of these contractions at once makes no cycle: each pair is entered only through
// its first item, or left only through its last, so that a cycle of pairs would be a cycle of these items.
//
// rating: [tensors]. share: [items] see `shares`. most: largest share of a merged item. labels: [items] or empty, see
// HierarchyOptions.
class Contraction {
public:
    Contraction(const AdditiveModel& model, std::span<const double> rating, std::span<const double> share, double most,
                const HierarchyOptions& options, std::span<const std::uint64_t> labels, std::mt19937_64& random)
        : model_(model),
          rating_(rating),
          share_(share),
          most_(most),
          noise_(options.noise),
          shrink_(options.shrink),
          labels_(labels),
          random_(random),
          place_(static_cast<std::size_t>(model.items)),
          partner_(place_.size(), kNone) {
        for (std::int32_t k = 0; k < model.items; ++k) place_[model.order[k]] = k;
    }

    // Matches items in pairs. Returns the coarser item of each item, dense numbers, [items]; empty if there is little
    // to contract. count: set to the number of coarser items.
    std::vector<std::int32_t> items(std::int32_t& count) {
        find_only_neighbours();
        match();
        count = number();
        if (count > shrink_ * model_.items) {
            std::fill(partner_.begin(), partner_.end(), kNone);
            pairs_.clear();
            // Neighbours in the order can be merged, as no item is between them.
            for (std::int32_t k = 0; k + 1 < model_.items; ++k) add(model_.order[k], model_.order[k + 1], true);
            match();
            count = number();
        }
        if (count > shrink_ * model_.items) return {};
        return std::move(number_);
    }

    // A topological order of the coarse items, provided that the finer order is one, [coarse items]. item, count: the
    // results of `items`.
    std::vector<std::int32_t> order(const std::vector<std::int32_t>& item, std::int32_t count) const {
        std::vector<std::int32_t> first(static_cast<std::size_t>(count), model_.items);
        std::vector<std::int32_t> waits(first.size(), 0);
        for (std::int32_t i = 0; i < model_.items; ++i) first[item[i]] = std::min(first[item[i]], place_[i]);
        for_each_edge([&](std::int32_t, std::int32_t from, std::int32_t to) {
            if (item[from] != item[to]) ++waits[item[to]];
        });
        std::vector<std::vector<std::int32_t>> members(static_cast<std::size_t>(count));
        for (const std::int32_t i : model_.order) members[item[i]].push_back(i);
        using Next = std::pair<std::int32_t, std::int32_t>;
        std::priority_queue<Next, std::vector<Next>, std::greater<>> ready;
        for (std::int32_t c = 0; c < count; ++c) {
            if (waits[c] == 0) ready.emplace(first[c], c);
        }
        std::vector<std::int32_t> result;
        while (!ready.empty()) {
            const std::int32_t c = ready.top().second;
            ready.pop();
            result.push_back(c);
            for (const std::int32_t i : members[c]) {
                for (std::int32_t p = model_.produced_ptr[i]; p < model_.produced_ptr[i + 1]; ++p) {
                    const std::int32_t t = model_.produced[p];
                    for (std::int32_t e = model_.consumer_ptr[t]; e < model_.consumer_ptr[t + 1]; ++e) {
                        const std::int32_t to = model_.consumer[e];
                        if (place_[to] <= place_[i] || item[to] == c) continue;
                        if (--waits[item[to]] == 0) ready.emplace(first[item[to]], item[to]);
                    }
                }
            }
        }
        return result;
    }

private:
    struct Pair {
        double rating;
        std::int32_t from, to;
    };

    // Calls visit(tensor, from, to) for each edge that follows the order. Groups of operations may wait for each other;
    // coarsening ignores the edges against the order.
    template <typename Visit>
    void for_each_edge(Visit visit) const {
        for (std::int32_t t = 0; t < model_.tensors(); ++t) {
            const std::int32_t from = model_.source[t];
            for (std::int32_t c = model_.consumer_ptr[t]; c < model_.consumer_ptr[t + 1]; ++c) {
                if (place_[model_.consumer[c]] > place_[from]) visit(t, from, model_.consumer[c]);
            }
        }
    }

    // Adds the pairs of an item with the only item from which it receives, or to which it sends.
    void find_only_neighbours() {
        const auto count = static_cast<std::size_t>(model_.items);
        std::vector<std::int32_t> before(count, kNone), behind(count, kNone);
        std::vector<double> received(count, 0.0), sent(count, 0.0);
        const auto note = [](std::int32_t& slot, std::int32_t value) {
            if (slot == kNone) slot = value;
            if (slot != value) slot = kSeveral;
        };
        for_each_edge([&](std::int32_t t, std::int32_t from, std::int32_t to) {
            note(behind[from], to);
            note(before[to], from);
            sent[from] += rating_[t];
            received[to] += rating_[t];
        });
        for (std::int32_t i = 0; i < model_.items; ++i) {
            if (before[i] >= 0) add(before[i], i, false, received[i]);
            if (behind[i] >= 0 && before[behind[i]] != i) add(i, behind[i], false, sent[i]);
        }
    }

    // Adds a pair that may be merged, with its rating. A pair may be merged if it is small enough, its labels are equal
    // and some device supports both items. rate: whether to add the ratings of tensors between the items to `rating`; a
    // pair without any is left out.
    void add(std::int32_t from, std::int32_t to, bool rate, double rating = 0.0) {
        const double share = share_[from] + share_[to];
        if (share > most_) return;
        if (!labels_.empty() && labels_[from] != labels_[to]) return;
        bool any = false;
        bool same = true;
        for (std::int32_t d = 0; d < model_.devices; ++d) {
            const bool a = model_.supports(from, static_cast<std::size_t>(d));
            const bool b = model_.supports(to, static_cast<std::size_t>(d));
            any = any || (a && b);
            same = same && a == b;
        }
        if (!any) return;
        if (rate) {
            for (std::int32_t p = model_.produced_ptr[from]; p < model_.produced_ptr[from + 1]; ++p) {
                const std::int32_t t = model_.produced[p];
                const auto begin = model_.consumer.begin() + model_.consumer_ptr[t];
                const auto end = model_.consumer.begin() + model_.consumer_ptr[t + 1];
                if (std::find(begin, end, to) != end) rating += rating_[t];
            }
            if (rating == 0.0) return;
        }
        // Small items are merged first, so that the items of a level have similar sizes.
        rating /= share + 0.1 * most_;
        if (!same) rating *= 0.1;
        if (noise_ > 0) rating *= 1.0 + noise_ * std::uniform_real_distribution<double>()(random_);
        pairs_.push_back({rating, from, to});
    }

    // Makes partners of pairs, the highest rating first, unless one of the two has a partner.
    void match() {
        std::sort(pairs_.begin(), pairs_.end(), [](const Pair& a, const Pair& b) {
            return a.rating != b.rating ? a.rating > b.rating : std::pair(a.from, a.to) < std::pair(b.from, b.to);
        });
        for (const Pair& pair : pairs_) {
            if (partner_[pair.from] != kNone || partner_[pair.to] != kNone) continue;
            partner_[pair.from] = pair.to;
            partner_[pair.to] = pair.from;
        }
    }

    // Numbers the merged items in the order of their first items (number_). Returns their count.
    std::int32_t number() {
        number_.assign(place_.size(), kNone);
        std::int32_t count = 0;
        for (const std::int32_t i : model_.order) {
            if (number_[i] != kNone) continue;
            number_[i] = count;
            if (partner_[i] != kNone) number_[partner_[i]] = count;
            ++count;
        }
        return count;
    }

    const AdditiveModel& model_;
    std::span<const double> rating_, share_;
    double most_, noise_, shrink_;
    std::span<const std::uint64_t> labels_;
    std::mt19937_64& random_;
    std::vector<std::int32_t> place_;    // [items] position in the order
    std::vector<std::int32_t> partner_;  // [items] the item with which it is merged, or kNone
    std::vector<std::int32_t> number_;   // [items] the coarser item
    std::vector<Pair> pairs_;            // pairs that may be merged
};

}  // namespace

Hierarchy::Hierarchy(const AdditiveModel& finest, std::span<const double> rating, const HierarchyOptions& options,
                     std::mt19937_64& random)
    : finest_(finest) {
    std::vector<double> ratings(rating.begin(), rating.end());
    std::vector<double> share = shares(finest);
    std::vector<std::uint64_t> labels(options.labels.begin(), options.labels.end());
    const double most = options.share / options.target;
    while (model(levels() - 1).items > options.target) {
        const AdditiveModel& finer = model(levels() - 1);
        Contraction contraction(finer, ratings, share, most, options, labels, random);
        std::int32_t count = 0;
        std::vector<std::int32_t> item = contraction.items(count);
        if (item.empty()) break;
        std::vector<double> merged(static_cast<std::size_t>(count), 0.0);
        std::vector<std::uint64_t> merged_labels(labels.empty() ? 0 : merged.size());
        for (std::int32_t i = 0; i < finer.items; ++i) {
            merged[item[i]] += share[i];
            if (!labels.empty()) merged_labels[item[i]] = labels[i];
        }
        std::vector<std::int32_t> kept;
        AdditiveModel coarser(finer, item, contraction.order(item, count), kept);
        std::vector<double> of_kept(kept.size());
        for (std::size_t t = 0; t < kept.size(); ++t) of_kept[t] = ratings[static_cast<std::size_t>(kept[t])];
        coarser_.push_back({std::move(item), std::move(coarser)});
        ratings = std::move(of_kept);
        share = std::move(merged);
        labels = std::move(merged_labels);
    }
}

std::vector<std::int32_t> Hierarchy::items() const {
    std::vector<std::int32_t> item(static_cast<std::size_t>(finest_.items));
    std::iota(item.begin(), item.end(), 0);
    for (const Level& level : coarser_) item = gathered(level.item_of, item);
    return item;
}

Placement Hierarchy::coarsest(const Placement& placement) const {
    std::vector<double> votes = finest_.votes(placement);
    for (const Level& level : coarser_) votes = level.model.summed(votes, level.item_of);
    return model(levels() - 1).elected(votes);
}

std::vector<double> transfer_ratings(const AdditiveModel& model) {
    const auto width = static_cast<std::size_t>(model.devices);
    double fixed = 0, per_byte = 0;
    for (std::size_t a = 0; a < width; ++a) {
        for (std::size_t b = 0; b < width; ++b) {
            if (a == b) continue;
            fixed += model.transfer_us[a * width + b];
            per_byte += model.transfer_us_per_byte[a * width + b];
        }
    }
    const auto links = static_cast<double>(std::max<std::size_t>(width * (width - 1), 1));
    std::vector<double> result;
    for (const double bytes : model.bytes) result.push_back((fixed + per_byte * bytes) / links + 1e-9);
    return result;
}

}  // namespace ov_hsdag
