// Makes coarser and coarser models of a placement problem by contracting edges, as in multilevel graph partitioning
// (Hendrickson and Leland, "A multilevel algorithm for partitioning graphs", SC 1995; for acyclic graphs Herrmann et
// al., "Multilevel algorithms for acyclic partitioning of directed acyclic graphs", SIAM J. Sci. Comput. 41(4), 2019).
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "additive.hpp"
#include "levels.hpp"
#include "settings.hpp"

namespace ov_hsdag {

struct HierarchyOptions {
    std::int32_t target = SearchSettings::Coarsening{}.target;  // coarsening ends at this number of items
    // Ratings are multiplied by random numbers between 1 and 1 + noise, which gives different hierarchies.
    double noise = 0.0;
    // [items of the finest level] items with different labels are not merged; empty: all may be.
    std::span<const std::uint64_t> labels;
    double share = SearchSettings::Coarsening{}.share;    // see SearchSettings::Coarsening
    double shrink = SearchSettings::Coarsening{}.shrink;  // likewise
};

// Additive cost models from fine to coarse. Level 0 is the given model; each further level merges items of the one
// before, which keeps the sums of times and weights. A placement of a level has a device for each of its items.
class Hierarchy {
public:
    // finest: must outlive the hierarchy. rating: [tensors of `finest`], those with high ratings are contracted first.
    // random: used only if the options have noise.
    Hierarchy(const AdditiveModel& finest, std::span<const double> rating, const HierarchyOptions& options,
              std::mt19937_64& random);

    // 0 is the finest level.
    [[nodiscard]] std::size_t levels() const { return coarser_.size() + 1; }
    [[nodiscard]] const AdditiveModel& model(std::size_t level) const {
        return level == 0 ? finest_ : coarser_[level - 1].model;
    }
    // The coarsest item of each item of the finest level, [items of the finest level].
    [[nodiscard]] std::vector<std::int32_t> items() const;
    // Translates a placement of a level's items, level >= 1, into one of the next finer level.
    [[nodiscard]] Placement refined(std::size_t level, const Placement& placement) const {
        return gathered(placement, coarser_[level - 1].item_of);
    }
    // Translates a placement of the finest level into one of the coarsest: each item goes to the device where most of
    // its time is spent, among those that support it.
    [[nodiscard]] Placement coarsest(const Placement& placement) const;

private:
    struct Level {
        std::vector<std::int32_t> item_of;  // [items of the finer level] item of this level
        AdditiveModel model;
    };

    const AdditiveModel& finest_;
    std::vector<Level> coarser_;  // levels 1, 2, …
};

// Ratings by heavy edges: the mean time of each tensor's transfer, µs, [tensors].
std::vector<double> transfer_ratings(const AdditiveModel& model);

}  // namespace ov_hsdag
