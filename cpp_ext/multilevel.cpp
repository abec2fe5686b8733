// The schedule of the multilevel search. `begin` offers simple placements and contiguous partitions to the pool and
// makes the first cycle. `cycles` then alternates between annealing, the island (a second population), local search
// and further cycles. Placements here have the numbers of OrderedProblem; MultilevelSearch translates them.
#include "multilevel.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <utility>

#include "acyclic.hpp"
#include "anneal.hpp"
#include "budget.hpp"
#include "contiguous_search.hpp"
#include "draws.hpp"
#include "hierarchy.hpp"
#include "judge.hpp"
#include "judged_annealing.hpp"
#include "neighbourhoods.hpp"
#include "perturb.hpp"
#include "placement_search.hpp"
#include "segments.hpp"

namespace ov_hsdag {
namespace {

// A placement of the pool.
struct Solution {
    Placement placement;  // [groups]
    double score = std::numeric_limits<double>::infinity();
    Judge::Estimates estimates;  // the judge's estimates after this placement
};

// A placement of the coarsest level, after passes, from which the first cycle may uncoarsen.
struct CoarseStart {
    double us;            // the additive objective
    bool from_devices;    // made of each item's fastest or a preferred device, not of a placement of the pool
    Placement placement;  // [items of the coarsest level]
};

}  // namespace

// The state of one search. The seed also selects the order of nodes that the levels use, so that independent searches
// differ in more than random numbers. Times are measured by now_ms.
class MultilevelSearch::Search {
public:
    Search(const SearchSpace& space, const SearchOptions& options)
        : space_(space),
          problem_(space.problem()),
          levels_(space.levels_of(options.seed)),
          model_(levels_.fine),
          rating_(transfer_ratings(model_)),
          options_(options),
          settings_(options_.settings),
          judge_(problem_, model_, options.throughput),
          local_(problem_, levels_, options.throughput, settings_),
          island_search_(problem_, space.levels_of(options.seed + 1), options.throughput, settings_),
          judged_share_(settings_.judged_annealing.share_of(space.little_memory, model_.items)),
          judged_annealing_(judge_, settings_.judged_annealing),
          random_(options.seed),
          begin_ms_(now_ms(options.processor_time)),
          since_ms_(begin_ms_),
          all_moves_(options.max_moves > 0 ? options.max_moves : std::numeric_limits<std::int64_t>::max() / 4),
          budget_(all_moves_, options.budget_ms > 0 ? begin_ms_ + options.budget_ms : Budget::kNoEnd,
                  options.processor_time) {}

    // Fills the pool with starts and makes the first cycle. starts: [count, groups] placements that are tried as well.
    void begin(std::span<const std::uint8_t> starts) {
        add_single_devices(true);
        offer_all(starts);
        add_segments();
        add_partitions(true);
        add_maximal_support();
        add_partitions(false);
        add_partitions_of_other_orders();
        add_single_devices(false);
        first_cycle();
        if (!std::isfinite(pool_.front().score)) judge_with_more_work();
        first_cycle_score_ = pool_.front().score;
        enter(Phase::kRefine);
        refine_over_memory();
        moves_after_begin_ = budget_.moves();
    }

    // Adds moves to the budget. They count as if they had been there from the begin, and as left after `begin`.
    void allow(std::int64_t moves) {
        budget_.spend(-moves);
        all_moves_ += moves;
        moves_after_begin_ += moves;
    }

    // Searches until the budget is spent. Annealing and the island are chosen while they have had less than their share
    // of the moves since `begin`, judged annealing first; otherwise local search is drawn with probability 1/2 or 1/4,
    // by the number of groups, and else a further cycle.
    void cycles() {
        since_ms_ = now_ms(options_.processor_time);
        const SearchSettings::Population& sizes = settings_.population;
        const double share = options_.throughput ? sizes.island_share_in_throughput : sizes.island_share;
        while (budget_.left()) {
            const auto all = static_cast<double>(moves_after_begin_ - budget_.moves());
            const double spent = all - static_cast<double>(judged_moves_);
            if (static_cast<double>(judged_moves_) < judged_share_ * all) {
                search_judged();
            } else if (static_cast<double>(annealed_moves_) < settings_.annealing.share * spent) {
                search_annealed();
            } else if (model_.items <= sizes.many_cycles && static_cast<double>(island_moves_) < share * spent) {
                search_island();
            } else if (model_.items <= sizes.seldom_local && random_() % (model_.items <= sizes.local ? 2 : 4) == 0) {
                search_nearby();
            } else {
                next_cycle();
            }
        }
        enter(Phase::kRefine);
    }

    // Offers placements, [count, groups], to the pool.
    void offer_all(std::span<const std::uint8_t> placements) {
        const auto width = static_cast<std::ptrdiff_t>(model_.items);
        for (auto row = placements.begin(); placements.end() - row >= width; row += width) {
            offer(Placement(row, row + width));
        }
    }

    [[nodiscard]] double score() const { return pool_.front().score; }
    [[nodiscard]] double first_cycle_score() const { return first_cycle_score_; }

    [[nodiscard]] MultilevelResult result() {
        MultilevelResult result{pool_.front().placement, pool_.front().score, progress_, cycles_, {}, {}, phase_ms_};
        for (const Solution& solution : pool_) {
            if (solution.score >= kOverMemory) continue;
            result.elite_scores.push_back(judge_.exact_score(solution.placement));
            result.elites.push_back(solution.placement);
        }
        if (!result.elites.empty()) result.score = result.elite_scores.front();
        return result;
    }

private:
    // Offers placements with all items on one device: the fastest device by the additive cost model if `fastest` is
    // true, otherwise all others. Devices that cannot hold the weights or that lack operations are skipped, as such a
    // placement is infeasible or, completed by other devices, takes long to simulate (add_maximal_support has those).
    // The first cycle starts from such devices all the same.
    void add_single_devices(bool fastest) {
        const auto width = static_cast<std::size_t>(model_.devices);
        const auto count = static_cast<std::size_t>(model_.items);
        std::vector<std::pair<double, std::size_t>> by_time;
        for (std::size_t d = 0; d < width; ++d) {
            double us = 0;
            double held = 0;
            for (std::size_t i = 0; i < count; ++i) {
                us += model_.supported[i * width + d] != 0 ? model_.item_us[i * width + d]
                                                           : std::numeric_limits<double>::infinity();
                held += static_cast<double>(model_.weight[i * width + d]);
            }
            const std::int64_t limit = model_.memory_limit[d];
            const bool fits = limit < 0 || held <= static_cast<double>(limit);
            if (fits && std::isfinite(us)) by_time.emplace_back(us, d);
        }
        std::sort(by_time.begin(), by_time.end());
        for (std::size_t k = 0; k < by_time.size(); ++k) {
            if ((k == 0) == fastest) offer(Placement(count, static_cast<std::uint8_t>(by_time[k].second)));
        }
    }

    // Offers contiguous partitions without refinement: in any order of the devices, then in the best orders with more
    // places where parts may end. Ends when `Partitions::infeasible` of them were infeasible. whole: see
    // ContiguousOptions.
    void add_partitions(bool whole) {
        if (model_.devices == 1 || !budget_.left() || (whole && !space_.lacks_operations)) return;
        most_infeasible_ = infeasible_ + settings_.partitions.infeasible;
        // With many orders of the devices, partitions take longer than all else before the first placement: one order
        // first.
        if (model_.devices > settings_.partitions.few_devices) {
            std::vector<std::int32_t> listed(static_cast<std::size_t>(model_.devices));
            std::iota(listed.begin(), listed.end(), 0);
            add_partitions_in(0, listed, settings_.partitions.few_cuts, whole);
        }
        add_partitions_of({.cuts = settings_.partitions.cuts, .sequence = {}, .whole = whole},
                          settings_.partitions.fine_sequences);
    }

    // If no placement fits into memory yet, offers partitions in any order of the devices for all orders of the groups,
    // and for the order in which the nodes run, which decides which tensors are alive at the same time.
    void add_partitions_of_other_orders() {
        if (model_.devices == 1 || pool_.empty() || pool_.front().score < kOverMemory) return;
        std::vector<std::int32_t> as_numbered(problem_.group.size());
        std::iota(as_numbered.begin(), as_numbered.end(), 0);
        contiguous_.emplace_back(problem_, model_, item_order(problem_, problem_.group, as_numbered),
                                 options_.throughput);
        for (std::size_t order = 0; order < contiguous_.size() && budget_.left(); ++order) {
            for (const bool whole : {true, false}) {
                for (ContiguousPlacement& found :
                     partitions(order, {.cuts = settings_.partitions.cuts, .sequence = {}, .whole = whole})) {
                    offer(std::move(found.placement));
                }
            }
        }
    }

    // The best partitions of an order of the groups; empty if there is no such order. order: index in contiguous_. The
    // first call fills contiguous_, which takes time: single devices are offered before it.
    std::vector<ContiguousPlacement> partitions(std::size_t order, const ContiguousOptions& wanted) {
        if (contiguous_.empty()) {
            for (std::vector<std::int32_t>& groups : space_.ordered.group_orders()) {
                contiguous_.emplace_back(problem_, model_, std::move(groups), options_.throughput);
            }
        }
        return order < contiguous_.size() ? contiguous_[order].best(wanted) : std::vector<ContiguousPlacement>{};
    }

    // Offers partitions of the best order of the groups so far, in any order of the devices. For the best `fine` of
    // these orders of devices it offers partitions of all orders of the groups again, with the most places where parts
    // may end, and sets best_order_ to the order of the groups that has the best one.
    void add_partitions_of(const ContiguousOptions& wanted, std::int32_t fine) {
        std::vector<std::vector<std::int32_t>> sequences;
        for (ContiguousPlacement& found : partitions(best_order_, wanted)) {
            if (infeasible_ < most_infeasible_) offer(std::move(found.placement));
            if (std::find(sequences.begin(), sequences.end(), found.sequence) == sequences.end()) {
                sequences.push_back(std::move(found.sequence));
            }
        }
        sequences.resize(std::min(sequences.size(), static_cast<std::size_t>(fine)));
        double best = std::numeric_limits<double>::infinity();
        for (std::size_t order = 0; order < std::max<std::size_t>(contiguous_.size(), 1); ++order) {
            for (const std::vector<std::int32_t>& sequence : sequences) {
                if (sequence.size() < 2) continue;
                const double score = add_partitions_in(order, sequence, settings_.partitions.cuts, wanted.whole);
                if (!better(score, best)) continue;
                best = score;
                best_order_ = order;
            }
        }
    }

    // Offers the best partition of one order of the groups over one sequence of devices. order: index in contiguous_.
    // cuts, whole: see ContiguousOptions. Returns its score; infinite if there is none or the budget is spent.
    double add_partitions_in(std::size_t order, const std::vector<std::int32_t>& sequence, std::int32_t cuts,
                             bool whole) {
        double score = std::numeric_limits<double>::infinity();
        if (!budget_.left() || infeasible_ >= most_infeasible_) return score;
        const ContiguousOptions wanted{
            .cuts = cuts, .sequence = sequence, .whole = whole, .sequences = 1, .per_sequence = 1};
        for (ContiguousPlacement& found : partitions(order, wanted))
            score = std::min(score, offer(std::move(found.placement)));
        return score;
    }

    // Offers, for each device that lacks operations, the placement in which it has all items that it supports and the
    // fastest devices have the rest.
    void add_maximal_support() {
        for (std::size_t device = 0; device < static_cast<std::size_t>(model_.devices) && budget_.left(); ++device) {
            Placement placement = simple_placement(device);
            const auto other = [&](std::uint8_t d) { return d != device; };
            if (std::any_of(placement.begin(), placement.end(), other)) offer(std::move(placement));
        }
    }

    // Offers placements in segments if no device runs the whole model. Most other starts are scattered then.
    void add_segments() {
        if (!space_.all_lack_operations) return;
        for (Placement& placement : segment_placements(model_)) offer(std::move(placement));
    }

    // Judges placements in segments again, and then those of the pool until one is feasible, with a higher limit of
    // work. It is for problems of which no placement was feasible within the limit: if each device lacks operations
    // that others have, there may be no simple placement. Without any limit, breaking the cycles of one scattered
    // placement of 20,000 nodes takes many minutes.
    void judge_with_more_work() {
        least_work_ = settings_.judging.work_at_last;
        const std::vector<Solution> previous = std::exchange(pool_, {});
        add_segments();
        for (const Solution& solution : previous) {
            if (pool_.empty() || (budget_.left() && !std::isfinite(pool_.front().score))) offer(solution.placement);
        }
        if (!std::isfinite(pool_.front().score)) least_work_ = 0;
    }

    // If the best placement exceeds memory limits, refines it by the simulator: live tensors count for the limits, and
    // the additive cost model does not know them.
    void refine_over_memory() {
        if (pool_.front().score < kOverMemory || model_.devices == 1 || !budget_.left()) return;
        Candidate best{pool_.front().placement, pool_.front().score, 0};
        local_.refine_coarse(best, budget_);
        if (budget_.left()) local_.refine_fine(best, budget_);
        offer(std::move(best.placement));
    }

    // Makes one hierarchy without randomness. Refines on its coarsest level the placements of the pool, each item's
    // fastest device, and each device with all items that it supports. Uncoarsens the best of both sorts.
    void first_cycle() {
        // Partitions are much alike, so that only a few stay: the pool needs room for other placements.
        const std::vector<Solution> simple = pool_;
        const auto most = static_cast<std::size_t>(settings_.population.partitions);
        if (pool_.size() > most) pool_.resize(most);
        const Hierarchy hierarchy = coarsened(settings_.coarsening.target, 0, {});
        const AdditiveModel& top = hierarchy.model(hierarchy.levels() - 1);
        std::vector<Placement> starts;
        for (const Solution& solution : simple) starts.push_back(hierarchy.coarsest(solution.placement));
        Placement fastest(static_cast<std::size_t>(top.items));
        for (std::int32_t i = 0; i < top.items; ++i) fastest[i] = top.fastest(i);
        starts.push_back(fastest);
        for (std::size_t d = 0; d < static_cast<std::size_t>(model_.devices); ++d) {
            Placement placement = fastest;
            for (std::size_t i = 0; i < placement.size(); ++i) {
                if (top.supports(static_cast<std::int32_t>(i), d)) placement[i] = static_cast<std::uint8_t>(d);
            }
            starts.push_back(std::move(placement));
        }
        // The best placement so far gives the estimates of submodels and memory.
        if (!pool_.empty()) judge_.use_estimates(pool_.front().estimates);
        std::vector<CoarseStart> refined;
        const SearchSettings::Moves& moves = settings_.moves;
        const double scattered = settings_.population.scattered_share;
        Neighbourhoods search(top, options_.throughput, moves, moves.run, moves.coarse_sharpness);
        for (std::size_t i = 0; i < starts.size() && (i == 0 || budget_.left()); ++i) {
            const double share = i < simple.size() ? 1.0 : scattered;
            search.reset(starts[i], judge_.surcharge(share), judge_.reserved());
            search.passes(moves.fine_passes, budget_);
            const auto same = [&](const CoarseStart& other) { return other.placement == search.placement(); };
            if (std::any_of(refined.begin(), refined.end(), same)) continue;
            refined.push_back({search.us(), i >= simple.size(), search.placement()});
        }
        std::stable_sort(refined.begin(), refined.end(),
                         [](const CoarseStart& a, const CoarseStart& b) { return a.us < b.us; });
        // Some that come from the pool's partitions and some that do not are chosen: the two sorts are seldom alike.
        std::int32_t chosen[2] = {0, 0};
        for (CoarseStart& start : refined) {
            if (chosen[start.from_devices ? 1 : 0]++ >= settings_.population.starts) continue;
            uncoarsen(hierarchy, std::move(start.placement), start.from_devices ? scattered : 1.0);
            if (!budget_.left()) return;
        }
    }

    // Perturbs a placement of the pool and refines it without a hierarchy. Better placements are chosen more often.
    void search_nearby() {
        const std::size_t chosen = draw_early(pool_.size(), random_);
        Candidate next{pool_[chosen].placement, pool_[chosen].score, 0};
        local_.perturb_and_refine(next, pool_[random_() % pool_.size()].placement, random_, budget_);
        if (better(next.score, pool_[chosen].score)) offer(std::move(next.placement), chosen);
    }

    // The largest number of moves of one run of annealing: as many as the search has spent so far, and no more than are
    // left. So early runs are short, later ones are longer, and each cools before the moves are spent.
    [[nodiscard]] std::int64_t moves_of_run() const { return std::min(all_moves_ - budget_.moves(), budget_.moves()); }

    // Makes the levels for a run of annealing from a placement. The run works on the coarsest one, where one move is a
    // move of many groups. Groups on different devices are not merged.
    //
    // The number of items of that level is the number of groups, halved a random number of times: from `most_items` at
    // most down to `fewest_items`. coarse: share of the runs that halve it at least once on a graph of at most
    // `most_items` groups; on larger ones all do.
    [[nodiscard]] Hierarchy levels_to_anneal(const Placement& start, double coarse, std::int32_t fewest_items,
                                             std::int32_t most_items) {
        std::uint64_t fewest_halvings = 0;
        while ((model_.items >> fewest_halvings) > most_items) ++fewest_halvings;
        std::uint64_t most_halvings = fewest_halvings;
        while ((model_.items >> (most_halvings + 1)) >= fewest_items) ++most_halvings;
        std::uint64_t halvings = 0;
        if (fewest_halvings > 0 || uniform(random_) < coarse) {
            // A graph of few groups has no coarse level.
            fewest_halvings = std::max(fewest_halvings, std::min<std::uint64_t>(1, most_halvings));
            halvings = fewest_halvings + random_() % (most_halvings - fewest_halvings + 1);
        }
        return coarsened(model_.items >> halvings, settings_.coarsening.noise,
                         std::vector<std::uint64_t>(start.begin(), start.end()));
    }

    // Anneals a placement of the pool on a fine or coarse level, refines the result on each level down to the finest,
    // and adds it to the pool.
    void search_annealed() {
        const std::int64_t before = budget_.moves();
        const double share = draw_share(random_);
        const std::size_t chosen = draw_early(pool_.size(), random_);
        const double heat = draw_heat(random_);
        const Placement& start = pool_[chosen].placement;
        judge_.use_estimates(pool_[chosen].estimates);
        const std::vector<double> reserved = judge_.reserved();
        const auto surcharge = [&] {
            return judge_.surcharge(share, random_() % 2 == 0 ? 0.0 : settings_.annealing.own);
        };
        const SearchSettings::Annealing& settings = settings_.annealing;
        const bool large = model_.items > settings.most_items;
        const Hierarchy hierarchy = levels_to_anneal(start, settings.coarse, settings.fewest_items,
                                                     large ? settings.most_coarse_items : settings.most_items);
        const std::vector<std::int32_t> item_of_group = hierarchy.items();
        // The simulator judges the placement at the end of a stage, unless the stage has not changed it, and as long as
        // that takes less than half of the run.
        Placement last = start;
        std::int64_t moves_at_next = budget_.moves();
        Solution best;
        const auto renew = [&](const Placement& coarse) -> std::optional<std::vector<double>> {
            if (budget_.moves() > moves_at_next || uniform(random_) >= settings_.annealing.renewed) return std::nullopt;
            Placement placement = gathered(coarse, item_of_group);
            if (placement == last) return std::nullopt;
            last = placement;
            limit_work();
            const std::int64_t left = budget_.moves();
            const double score = judge_.score(placement, budget_);
            const std::int64_t cost = left - budget_.moves();
            moves_at_next = budget_.moves() - cost;
            if (!std::isfinite(score)) return std::nullopt;
            if (better(score, best.score)) best = {std::move(placement), score, judge_.estimates()};
            return surcharge();
        };
        Annealing annealing(hierarchy.model(hierarchy.levels() - 1), options_.throughput, settings_.annealing);
        Placement placement = annealing.run(hierarchy.coarsest(start), heat, surcharge(), reserved, random_,
                                            moves_of_run(), budget_, renew);
        Solution result = judged(refined_down(hierarchy, std::move(placement), surcharge, true));
        add(better(best.score, result.score) ? std::move(best) : std::move(result), chosen);
        annealed_moves_ += before - budget_.moves();
    }

    // Anneals a placement of the pool by the simulator, on a fine or coarse level, and offers the result.
    void search_judged() {
        const std::int64_t before = budget_.moves();
        const std::size_t chosen = draw_early(pool_.size(), random_);
        const double heat = draw_heat(random_);
        const Placement& start = pool_[chosen].placement;
        const SearchSettings::JudgedAnnealing& settings = settings_.judged_annealing;
        const Hierarchy hierarchy =
            levels_to_anneal(start, settings.coarse, settings.fewest_items, settings.most_coarse_items);
        offer(judged_annealing_.run(hierarchy, start, heat, random_, moves_of_run(), budget_), chosen);
        judged_moves_ += before - budget_.moves();
    }

    // Improves the island, a second population. The pool descends from partitions. Local search that starts from single
    // devices or HETERO's rule, and uses the simulator at once, finds some placements that no cycle from the pool
    // finds, but it takes time to become as good. So it has its own population, and the pool gets only placements that
    // are better than all of its own.
    void search_island() {
        const std::int64_t before = budget_.moves();
        if (next_simple_ <= static_cast<std::size_t>(model_.devices)) {
            Candidate next{simple_placement(next_simple_++)};
            island_search_.refine_coarse(next, budget_);
            if (budget_.left()) island_search_.refine_fine(next, budget_);
            const auto same = [&](const Candidate& other) { return other.placement == next.placement; };
            if (std::none_of(island_.begin(), island_.end(), same)) island_.push_back(std::move(next));
            std::stable_sort(island_.begin(), island_.end(), by_score);
        } else {
            island_search_.improve_one(island_, random_, budget_);
        }
        if (better(island_.front().score, pool_.front().score)) offer(island_.front().placement);
        island_moves_ += before - budget_.moves();
    }

    // A simple placement, [groups], by its number. A number of a device: this device with all items that it supports,
    // the fastest devices with the rest. The number after the last device: HETERO's rule, by which each group is on the
    // first device of the list that supports it, and on the first device if none does.
    [[nodiscard]] Placement simple_placement(std::size_t number) const {
        const auto width = static_cast<std::size_t>(model_.devices);
        Placement placement(static_cast<std::size_t>(model_.items), 0);
        if (number < width) {
            std::fill(placement.begin(), placement.end(), static_cast<std::uint8_t>(number));
            model_.make_supported(placement);
            return placement;
        }
        for (std::size_t i = 0; i < placement.size(); ++i) {
            for (std::size_t d = width; d-- > 0;) {
                if (model_.supported[i * width + d] != 0) placement[i] = static_cast<std::uint8_t>(d);
            }
        }
        return placement;
    }

    // Makes a cycle from one placement of the pool, perturbed, or from two. Items that they have on different devices
    // are not merged, except in some of the cycles from one placement.
    void next_cycle() {
        const double share = draw_share(random_);
        // The better a placement, the more often it is the start.
        const std::size_t chosen = draw_early(pool_.size(), random_);
        const std::size_t other = random_() % pool_.size();
        const bool combined = random_() % 3 == 0 && other != chosen;
        const Placement& start = pool_[chosen].placement;
        const bool free = !combined && random_() % 4 == 0;
        std::vector<std::uint64_t> labels;
        if (!free) {
            labels.assign(start.begin(), start.end());
            if (combined) {
                for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = labels[i] * 256 + pool_[other].placement[i];
            }
        }
        // The size of the coarsest level varies: moves of its items are different moves of groups for each size.
        const std::int32_t target = std::max<std::int32_t>(settings_.coarsening.target >> (random_() % 3), 12);
        const Hierarchy hierarchy = coarsened(target, settings_.coarsening.noise, labels);
        const AdditiveModel& top = hierarchy.model(hierarchy.levels() - 1);
        judge_.use_estimates(pool_[chosen].estimates);
        Placement placement = hierarchy.coarsest(start);
        if (!combined) perturb(placement, hierarchy.coarsest(pool_[other].placement), top, random_);
        uncoarsen(hierarchy, std::move(placement), share, chosen);
    }

    // Makes a hierarchy of the fine level; see HierarchyOptions for the arguments. Measures the phase kCoarsen.
    [[nodiscard]] Hierarchy coarsened(std::int32_t target, double noise, std::span<const std::uint64_t> labels) {
        enter(Phase::kCoarsen);
        Hierarchy hierarchy(model_, rating_,
                            {.target = target,
                             .noise = noise,
                             .labels = labels,
                             .share = settings_.coarsening.share,
                             .shrink = settings_.coarsening.shrink},
                            random_);
        enter(Phase::kPlace);
        return hierarchy;
    }

    // Adds the time since the last call to the current phase, and begins another phase.
    void enter(Phase phase) {
        const double now = now_ms(options_.processor_time);
        phase_ms_[static_cast<std::size_t>(phase_)] += now - since_ms_;
        since_ms_ = now;
        phase_ = phase;
    }

    // Refines a placement of the coarsest level on each level down to the finest, and returns that of the finest.
    //
    // surcharge: returns the surcharges of a level, [devices] µs. annealed: whether the placement comes from annealing.
    // It is close to an optimum then: coarse levels approximate the maximum as well as the finest one, and the coarsest
    // level needs passes only.
    template <typename Surcharge>
    [[nodiscard]] Placement refined_down(const Hierarchy& hierarchy, Placement placement, const Surcharge& surcharge,
                                         bool annealed) {
        const SearchSettings::Moves& moves = settings_.moves;
        for (std::size_t level = hierarchy.levels(); level-- > 0;) {
            const AdditiveModel& model = hierarchy.model(level);
            const bool coarsest = level + 1 == hierarchy.levels();
            if (!coarsest) placement = hierarchy.refined(level + 1, placement);
            Neighbourhoods search(model, options_.throughput, moves, moves.run,
                                  level == 0 || annealed ? moves.fine_sharpness : moves.coarse_sharpness);
            search.reset(placement, surcharge(), judge_.reserved());
            if (coarsest && !annealed && model.items <= moves.small_level) {
                search.descend(budget_);
            } else {
                search.passes(level == 0 ? moves.fine_passes : moves.passes, budget_);
            }
            placement = search.placement();
            enter(Phase::kRefine);
        }
        return placement;
    }

    // Refines a placement of the coarsest level on all levels, and offers the result. share: see Judge::surcharge.
    // parent: see `add`.
    void uncoarsen(const Hierarchy& hierarchy, Placement placement, double share,
                   std::optional<std::size_t> parent = std::nullopt) {
        ++cycles_;
        const auto surcharge = [&] { return judge_.surcharge(share); };
        offer(refined_down(hierarchy, std::move(placement), surcharge, false), parent);
    }

    // Limits the judge's work by the moves spent so far, so that early on no single placement takes most of the time
    // that has passed. Each infeasible placement raises the limit, so that a feasible one is found.
    void limit_work() {
        const auto spent = static_cast<double>(all_moves_ - budget_.moves());
        const double share =
            std::max(spent / settings_.judging.moves_of_all_work,
                     settings_.judging.least_work * std::pow(settings_.judging.more_work, infeasible_));
        judge_.limit_work(std::max(std::min(share, 1.0), least_work_));
    }

    // Judges a placement (Judge::score). If it is infeasible for another reason than memory, cycles among its parts are
    // removed and it is judged again.
    [[nodiscard]] Solution judged(Placement placement) {
        limit_work();
        double score = judge_.score(placement, budget_);
        if (!std::isfinite(score)) {
            break_circles(model_, placement);
            if (const Solution* known = find(placement)) return *known;
            score = judge_.score(placement, budget_);
            ++infeasible_;
        }
        return {std::move(placement), score, judge_.estimates()};
    }

    // The solution of the pool with this placement; null if there is none.
    [[nodiscard]] const Solution* find(const Placement& placement) const {
        const auto same = [&](const Solution& solution) { return solution.placement == placement; };
        const auto known = std::find_if(pool_.begin(), pool_.end(), same);
        return known != pool_.end() ? &*known : nullptr;
    }

    // Judges a placement, adds it to the pool if it is good enough, and returns its score. parent: see `add`.
    double offer(Placement placement, std::optional<std::size_t> parent = std::nullopt) {
        if (const Solution* known = find(placement)) return known->score;
        Solution solution = judged(std::move(placement));
        const double score = solution.score;
        add(std::move(solution), parent);
        return score;
    }

    // Adds a solution to the pool if it is good enough, and not in it yet.
    //
    // parent: index in the pool of the placement from which it was made. A better solution replaces its parent;
    // another one is added only while the pool has free places. Otherwise all placements of the pool would come from
    // one of them and be alike after many cycles. Without a parent the pool keeps the best. Problems of more than
    // `many_cycles` groups have too few cycles for that to happen, so that `parent` is ignored.
    void add(Solution solution, std::optional<std::size_t> parent) {
        if (find(solution.placement) != nullptr) return;
        const double score = solution.score;
        if (pool_.empty() || better(score, pool_.front().score)) {
            if (score < kOverMemory) progress_.push_back({now_ms(options_.processor_time) - begin_ms_, score});
        }
        const auto most = static_cast<std::size_t>(settings_.population.size);
        if (model_.items > settings_.population.many_cycles) parent.reset();
        if (parent && pool_.size() == most && !better(score, pool_[*parent].score)) return;
        if (parent && better(score, pool_[*parent].score)) {
            pool_[*parent] = std::move(solution);
        } else {
            pool_.push_back(std::move(solution));
        }
        std::stable_sort(pool_.begin(), pool_.end(),
                         [](const Solution& a, const Solution& b) { return a.score < b.score; });
        if (pool_.size() > most) pool_.pop_back();
    }

    const SearchSpace& space_;
    const Problem& problem_;
    const Levels& levels_;
    const AdditiveModel& model_;
    std::vector<double> rating_;  // [tensors of model_] transfer_ratings
    const SearchOptions options_;
    const SearchSettings& settings_;
    Judge judge_;
    PlacementSearch local_, island_search_;
    double judged_share_;  // share of the moves that annealing by the simulator gets
    JudgedAnnealing judged_annealing_;
    std::vector<ContiguousSearch> contiguous_;  // one for each order of the groups; empty until the first is needed
    std::size_t best_order_ = 0;                // index in contiguous_ of the order with the best partition
    std::mt19937_64 random_;
    double begin_ms_, since_ms_;  // when the search and the current phase began
    Phase phase_ = Phase::kPlace;
    std::array<double, 3> phase_ms_{};
    std::int64_t all_moves_;  // the budget's moves, spent ones included
    Budget budget_;
    double least_work_ = 0;          // least limit of the judge's work, see judge_with_more_work
    int most_infeasible_ = 0;        // value of infeasible_ at which no more partitions are offered
    int infeasible_ = 0;             // number of placements that were infeasible at first
    std::vector<Solution> pool_;     // best first
    std::vector<Candidate> island_;  // best first
    std::size_t next_simple_ = 0;    // number of simple placements that the island has had
    std::int64_t island_moves_ = 0, annealed_moves_ = 0, judged_moves_ = 0;
    double first_cycle_score_ = std::numeric_limits<double>::infinity();
    std::int64_t moves_after_begin_ = 0;  // moves of the budget that were left after `begin`
    std::vector<Improvement> progress_;
    std::int64_t cycles_ = 0;
};

std::vector<std::int32_t> contracted(const SearchSpace& space, std::int32_t target) {
    const AdditiveModel& model = space.levels.coarse;
    std::mt19937_64 random(0);
    const std::vector<std::int32_t> item =
        Hierarchy(model, transfer_ratings(model), {.target = target, .labels = {}}, random).items();
    return space.ordered.as_given<std::int32_t>(gathered(item, space.levels.coarse_of));
}

MultilevelSearch::MultilevelSearch(const SearchSpace& space, const SearchOptions& options)
    : space_(space), search_(std::make_unique<Search>(space, options)) {}

MultilevelSearch::~MultilevelSearch() = default;

void MultilevelSearch::begin(std::span<const std::uint8_t> starts) {
    search_->begin(space_.ordered.ordered(starts));
    search_->cycles();
}

void MultilevelSearch::go_on(std::int64_t moves) {
    search_->allow(moves);
    search_->cycles();
}

void MultilevelSearch::offer(std::span<const std::uint8_t> placements) {
    search_->offer_all(space_.ordered.ordered(placements));
}

double MultilevelSearch::score() const { return search_->score(); }

double MultilevelSearch::first_cycle_score() const { return search_->first_cycle_score(); }

MultilevelResult MultilevelSearch::result() {
    const OrderedProblem& problem = space_.ordered;
    MultilevelResult result = search_->result();
    result.placement = problem.as_given<std::uint8_t>(result.placement);
    for (Placement& elite : result.elites) elite = problem.as_given<std::uint8_t>(elite);
    if (result.score >= kOverMemory) result.score = std::numeric_limits<double>::infinity();
    return result;
}

MultilevelResult multilevel_search(const SearchSpace& space, std::span<const std::uint8_t> starts,
                                   const SearchOptions& options) {
    if (options.max_moves <= 0 && !(options.budget_ms > 0)) throw std::invalid_argument("expected a budget");
    options.settings.check();
    MultilevelSearch search(space, options);
    search.begin(starts);
    return search.result();
}

}  // namespace ov_hsdag
