#include "multilevel.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <utility>

#include "acyclic.hpp"
#include "budget.hpp"
#include "contiguous_search.hpp"
#include "hierarchy.hpp"
#include "judge.hpp"
#include "neighbourhoods.hpp"
#include "perturb.hpp"
#include "placement_search.hpp"

namespace ov_hsdag {
namespace {

// Placements of the coarsest level that are refined on all levels: of those that come from partitions, and of others.
constexpr std::size_t kStarts = 2;
// Partitions that stay in the pool.
constexpr std::size_t kPartitions = 3;
// Of the cost of submodels, in the first cycle from placements that are none. HETERO's rule makes fewer of them than
// tensors cross, and partitions already have few.
constexpr double kShareOfScattered = 0.25;
// Placements that further cycles begin with.
constexpr std::size_t kPool = 8;
// Places where parts of contiguous partitions may end, at most, and orders of the devices in which so many are tried.
// More than `kFewDevices` begin with fewer places, in the order of the list.
constexpr std::int32_t kCuts = 300;
constexpr std::size_t kFineSequences = 2;
constexpr std::int32_t kFewDevices = 5;
constexpr std::int32_t kFewCuts = 96;
// Of graphs of at most so many groups all orders are looked at again, this many times as long and with more places, and
// so many of the best with the most. Larger ones have found better by then.
constexpr std::int32_t kAllOrders = 600;
constexpr double kLonger = 4;
constexpr std::int32_t kMoreOrders = 8;
constexpr std::size_t kFineOrders = 4;
// Graphs of at most so many groups have time for hundreds of cycles: lines of descent stay apart (offer), and a share
// of the moves goes to a second population (search_island).
constexpr std::int32_t kManyCycles = 2000;
constexpr double kShareOfIsland = 0.5;
constexpr double kShareOfIslandInThroughput = 0.25;
// For throughput, so many partitions of so many orders of the devices are judged, once so many moves for each group,
// and more than placing makes by default, have been made: that takes 30 ms for a thousand groups on four devices, a
// tenth of a second on eight.
constexpr std::int32_t kJudgedCuts = 600;
constexpr double kJudgedEffort = 16;
constexpr std::int32_t kJudgedOrders = 64;
constexpr std::int32_t kJudgedOfOrder = 24;
constexpr double kBeforeJudgedPartitions = 800;
constexpr double kLeastBeforeJudgedPartitions = 600'000;
// Passes on each level, and on the finest.
constexpr int kPasses = 2;
constexpr int kFinePasses = 4;
// Doublings of the power that stands for the maximum (AdditiveState::sharpen), on coarse and on fine levels.
constexpr int kCoarseSharpness = 2;
constexpr int kFineSharpness = 4;
// Graphs of at most so many groups are searched without a hierarchy in every second cycle, or in every fourth.
constexpr std::int32_t kLocal = 4000;
constexpr std::int32_t kSeldomLocal = 16'000;
// Coarsest levels of at most so many items are searched with all moves, others with single moves.
constexpr std::int32_t kSmall = 400;
// Items that move together in a row, at most.
constexpr std::int32_t kLongestRun = 64;
// Moves after which a placement whose parts wait for each other is judged with all the work that it may take, and the
// share of it from the beginning; that grows with each one that is not found feasible.
constexpr double kMovesOfAllWork = 300'000;
constexpr double kLeastWork = 1.0 / 64;
constexpr double kMoreWork = 1.2;
// Random numbers by which further cycles rate edges.
constexpr double kNoise = 2.0;

struct Solution {
    Placement placement;  // [groups]
    double score = std::numeric_limits<double>::infinity();
    Judge::Estimates estimates;
};

// What passes on the coarsest level made of a start.
struct Refined {
    double us;
    bool from_devices;  // of a placement that need not be feasible
    Placement placement;
};

class Search {
public:
    Search(const OrderedProblem& ordered, const Levels& levels, const Levels& other_levels,
           std::span<const double> rating, const MultilevelOptions& options)
        : ordered_(ordered),
          problem_(ordered.problem()),
          model_(levels.fine),
          rating_(rating),
          options_(options),
          judge_(problem_, levels.fine, options.throughput),
          local_(problem_, levels, options.throughput),
          island_search_(problem_, other_levels, options.throughput),
          random_(options.seed),
          begin_ms_(now_ms(options.processor_time)),
          all_moves_(options.max_moves > 0 ? options.max_moves : std::numeric_limits<std::int64_t>::max() / 4),
          budget_(all_moves_, options.budget_ms > 0 ? begin_ms_ + options.budget_ms : Budget::kNoEnd,
                  options.processor_time),
          lacking_(std::find(model_.supported.begin(), model_.supported.end(), 0) != model_.supported.end()) {}

    MultilevelResult run(std::span<const std::uint8_t> starts) {
        add_single_devices(true);
        const auto width = static_cast<std::size_t>(model_.items);
        for (std::size_t at = 0; at + width <= starts.size(); at += width) {
            offer(Placement(starts.begin() + static_cast<std::ptrdiff_t>(at),
                            starts.begin() + static_cast<std::ptrdiff_t>(at + width)));
        }
        add_partitions(true);
        add_scattered();
        add_partitions(false);
        add_partitions_of_other_orders();
        add_more_partitions();
        add_single_devices(false);
        first_cycle();
        if (!std::isfinite(pool_.front().score)) judge_without_limit();
        refine_over_memory();
        const double share = options_.throughput ? kShareOfIslandInThroughput : kShareOfIsland;
        const std::int64_t begin = budget_.moves();
        while (budget_.left()) {
            const auto spent = static_cast<double>(begin - budget_.moves());
            if (!judged_partitions_ &&
                spent > std::max(kBeforeJudgedPartitions * model_.items, kLeastBeforeJudgedPartitions)) {
                add_judged_partitions();
            } else if (model_.items <= kManyCycles && static_cast<double>(island_moves_) < share * spent) {
                search_island();
            } else if (model_.items <= kSeldomLocal && random_() % (model_.items <= kLocal ? 2 : 4) == 0) {
                search_nearby();
            } else {
                next_cycle();
            }
        }
        MultilevelResult result{pool_.front().placement, pool_.front().score, std::move(progress_), cycles_, {}, {}};
        for (Solution& solution : pool_) {
            if (solution.score >= kOverMemory) continue;
            result.elite_scores.push_back(judge_.exact_score(solution.placement));
            result.elites.push_back(std::move(solution.placement));
        }
        if (!result.elites.empty()) result.score = result.elite_scores.front();
        return result;
    }

private:
    // All on one device, which what adds up tells the time of: the fastest, or all others. Where weights exceed a
    // memory limit there is nothing to judge, and where devices lack operations, much; the first cycle begins there all
    // the same.
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

    // Contiguous partitions, as they are: in any order of the devices, then in the best orders with more places where
    // parts may end. whole: only of what each device runs itself (ContiguousOptions).
    void add_partitions(bool whole) {
        if (model_.devices == 1 || !budget_.left() || (whole && !lacking_)) return;
        // With many orders of the devices, partitions take longer than all else before the first placement: one order
        // first.
        if (model_.devices > kFewDevices) {
            std::vector<std::int32_t> listed(static_cast<std::size_t>(model_.devices));
            std::iota(listed.begin(), listed.end(), 0);
            add_partitions_in(0, listed, kFewCuts, whole);
        }
        add_partitions_of({.cuts = kCuts, .sequence = {}, .whole = whole}, kFineSequences);
    }

    // Where nothing fits into memory yet, in any order of the devices for all orders of the groups; also for the one in
    // which the nodes run, which decides what is alive at the same time.
    void add_partitions_of_other_orders() {
        if (model_.devices == 1 || pool_.empty() || pool_.front().score < kOverMemory) return;
        std::vector<std::int32_t> as_numbered(problem_.group.size());
        std::iota(as_numbered.begin(), as_numbered.end(), 0);
        contiguous_.emplace_back(problem_, model_, item_order(problem_, problem_.group, as_numbered),
                                 options_.throughput);
        for (std::size_t order = 0; order < contiguous_.size() && budget_.left(); ++order) {
            for (const bool whole : {true, false}) {
                for (ContiguousPlacement& found : partitions(order, {.cuts = kCuts, .sequence = {}, .whole = whole})) {
                    offer(std::move(found.placement));
                }
            }
        }
    }

    // Few places do not tell which orders of many devices are best.
    void add_more_partitions() {
        if (model_.devices <= kFewDevices || model_.items > kAllOrders || !budget_.left()) return;
        add_partitions_of(
            {.cuts = kCuts, .sequence = {}, .effort = kLonger, .sequences = kMoreOrders, .per_sequence = 1},
            kFineOrders);
    }

    // Of an order of the groups. What partitions have in common is found out when the first is wanted: single devices
    // come before.
    std::vector<ContiguousPlacement> partitions(std::size_t order, const ContiguousOptions& wanted) {
        if (contiguous_.empty()) {
            for (std::vector<std::int32_t>& groups : ordered_.group_orders()) {
                contiguous_.emplace_back(problem_, model_, std::move(groups), options_.throughput);
            }
        }
        return order < contiguous_.size() ? contiguous_[order].best(wanted) : std::vector<ContiguousPlacement>{};
    }

    // In any order of the devices, and in the best `fine` orders again with the most places and of other orders of the
    // groups.
    void add_partitions_of(const ContiguousOptions& wanted, std::size_t fine) {
        std::vector<std::vector<std::int32_t>> sequences;
        for (ContiguousPlacement& found : partitions(best_order_, wanted)) {
            offer(std::move(found.placement));
            if (std::find(sequences.begin(), sequences.end(), found.sequence) == sequences.end()) {
                sequences.push_back(std::move(found.sequence));
            }
        }
        if (sequences.size() > fine) sequences.resize(fine);
        double best = std::numeric_limits<double>::infinity();
        for (std::size_t order = 0; order < std::max<std::size_t>(contiguous_.size(), 1); ++order) {
            for (const std::vector<std::int32_t>& sequence : sequences) {
                if (sequence.size() < 2) continue;
                const double score = add_partitions_in(order, sequence, kCuts, wanted.whole);
                if (!better(score, best)) continue;
                best = score;
                best_order_ = order;
            }
        }
    }

    // Returns the score of what is found.
    double add_partitions_in(std::size_t order, const std::vector<std::int32_t>& sequence, std::int32_t cuts,
                             bool whole) {
        double score = std::numeric_limits<double>::infinity();
        if (!budget_.left()) return score;
        const ContiguousOptions wanted{
            .cuts = cuts, .sequence = sequence, .whole = whole, .sequences = 1, .per_sequence = 1};
        for (ContiguousPlacement& found : partitions(order, wanted))
            score = std::min(score, offer(std::move(found.placement)));
        return score;
    }

    // Many partitions, for the simulator to choose from: what their submodels cost is not known before.
    void add_judged_partitions() {
        judged_partitions_ = true;
        if (model_.items > kManyCycles || !options_.throughput || model_.devices == 1 || lacking_) return;
        const ContiguousOptions wanted{.cuts = kJudgedCuts,
                                       .sequence = {},
                                       .effort = kJudgedEffort,
                                       .sequences = kJudgedOrders,
                                       .per_sequence = kJudgedOfOrder};
        for (ContiguousPlacement& found : partitions(best_order_, wanted)) {
            if (!budget_.left()) return;
            offer(std::move(found.placement));
        }
    }

    // Each device that lacks operations with all that it runs, the fastest ones with the rest.
    void add_scattered() {
        for (std::size_t device = 0; device < static_cast<std::size_t>(model_.devices) && budget_.left(); ++device) {
            Placement placement = simple_placement(device);
            const auto other = [&](std::uint8_t d) { return d != device; };
            if (std::any_of(placement.begin(), placement.end(), other)) offer(std::move(placement));
        }
    }

    // Where no placement could be judged: devices that each lack what others have may leave no simple one.
    void judge_without_limit() {
        limited_work_ = false;
        judge_.limit_work(std::numeric_limits<double>::infinity());
        const std::vector<Solution> known = std::exchange(pool_, {});
        for (const Solution& solution : known) {
            if (pool_.empty() || (budget_.left() && !std::isfinite(pool_.front().score))) offer(solution.placement);
        }
    }

    // Live tensors count for memory limits, and what adds up says nothing of them: where limits are exceeded, by the
    // simulator.
    void refine_over_memory() {
        if (pool_.front().score < kOverMemory || model_.devices == 1 || !budget_.left()) return;
        Candidate best{pool_.front().placement, pool_.front().score, 0};
        local_.refine_coarse(best, budget_);
        if (budget_.left()) local_.refine_fine(best, budget_);
        offer(std::move(best.placement));
    }

    void make_supported(Placement& placement) const {
        const auto width = static_cast<std::size_t>(model_.devices);
        for (std::size_t i = 0; i < placement.size(); ++i) {
            if (model_.supports(static_cast<std::int32_t>(i), placement[i])) continue;
            double least = std::numeric_limits<double>::infinity();
            for (std::size_t d = 0; d < width; ++d) {
                if (model_.supported[i * width + d] == 0 || model_.item_us[i * width + d] >= least) continue;
                least = model_.item_us[i * width + d];
                placement[i] = static_cast<std::uint8_t>(d);
            }
        }
    }

    void first_cycle() {
        // Partitions are much alike: what comes next shall have room beside them.
        const std::vector<Solution> simple = pool_;
        if (pool_.size() > kPartitions) pool_.resize(kPartitions);
        const Hierarchy hierarchy(model_, rating_, {.target = options_.target, .noise = 0, .labels = options_.labels},
                                  random_);
        const AdditiveModel& top = hierarchy.model(hierarchy.levels() - 1);
        std::vector<Placement> found;
        for (const Solution& solution : simple) found.push_back(hierarchy.coarsest(solution.placement));
        found.push_back(fastest(top));
        for (std::size_t d = 0; d < static_cast<std::size_t>(model_.devices); ++d) {
            Placement placement = fastest(top);
            for (std::size_t i = 0; i < placement.size(); ++i) {
                if (top.supports(static_cast<std::int32_t>(i), d)) placement[i] = static_cast<std::uint8_t>(d);
            }
            found.push_back(std::move(placement));
        }
        // By what the best one so far tells of submodels and memory.
        if (!pool_.empty()) judge_.go_by(pool_.front().estimates);
        std::vector<Refined> refined;
        Neighbourhoods search(top, options_.throughput, kLongestRun, kCoarseSharpness);
        for (std::size_t i = 0; i < found.size() && (i == 0 || budget_.left()); ++i) {
            const double share = i < simple.size() ? 1.0 : kShareOfScattered;
            search.reset(found[i], judge_.surcharge(share), judge_.reserved());
            search.passes(kFinePasses, budget_);
            const auto same = [&](const Refined& other) { return other.placement == search.placement(); };
            if (std::any_of(refined.begin(), refined.end(), same)) continue;
            refined.push_back({search.us(), i >= simple.size(), search.placement()});
        }
        std::stable_sort(refined.begin(), refined.end(),
                         [](const Refined& a, const Refined& b) { return a.us < b.us; });
        // Some of those that come from partitions, and some of the others: they are seldom alike.
        std::size_t chosen[2] = {0, 0};
        for (Refined& start : refined) {
            if (chosen[start.from_devices ? 1 : 0]++ >= kStarts) continue;
            uncoarsen(hierarchy, std::move(start.placement), start.from_devices ? kShareOfScattered : 1.0);
            if (!budget_.left()) return;
        }
    }

    // Without a hierarchy, from a perturbation.
    void search_nearby() {
        const std::size_t chosen = std::min(random_() % pool_.size(), random_() % pool_.size());
        Candidate next{pool_[chosen].placement, pool_[chosen].score, 0};
        local_.perturb_and_refine(next, pool_[random_() % pool_.size()].placement, random_, budget_);
        if (better(next.score, pool_[chosen].score)) offer(std::move(next.placement), chosen);
    }

    // The pool descends from partitions, and no cycle from it finds some of what local search finds that begins with
    // all on one device, or with HETERO's rule, and goes by the simulator at once. That takes time to become as good: a
    // population of its own, of which the pool gets what is better than all it has.
    void search_island() {
        const std::int64_t before = budget_.moves();
        if (simple_ <= static_cast<std::size_t>(model_.devices)) {
            Candidate next{simple_placement(simple_++)};
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

    // All on one device, as far as it runs them; after the last device HETERO's rule: each group on the first device of
    // the list that runs it, or on the first one where none does.
    [[nodiscard]] Placement simple_placement(std::size_t number) const {
        const auto width = static_cast<std::size_t>(model_.devices);
        Placement placement(static_cast<std::size_t>(model_.items), 0);
        if (number < width) {
            std::fill(placement.begin(), placement.end(), static_cast<std::uint8_t>(number));
            make_supported(placement);
            return placement;
        }
        for (std::size_t i = 0; i < placement.size(); ++i) {
            for (std::size_t d = width; d-- > 0;) {
                if (model_.supported[i * width + d] != 0) placement[i] = static_cast<std::uint8_t>(d);
            }
        }
        return placement;
    }

    // From one or two placements of the pool: what they have apart stays apart while coarsening.
    void next_cycle() {
        constexpr double kShares[] = {1.0, 1.0, 0.5, 0.0, 1.5};
        const double share = kShares[random_() % std::size(kShares)];
        // The better a placement, the more often it is the start.
        const std::size_t chosen = std::min(random_() % pool_.size(), random_() % pool_.size());
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
        if (!options_.labels.empty()) {
            if (labels.empty()) labels.assign(start.size(), 0);
            for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = labels[i] << 32 | options_.labels[i];
        }
        // Coarse levels of many sizes: the moves of one are not those of another.
        const std::int32_t target = std::max<std::int32_t>(options_.target >> (random_() % 3), 12);
        const Hierarchy hierarchy(model_, rating_, {.target = target, .noise = kNoise, .labels = labels}, random_);
        const AdditiveModel& top = hierarchy.model(hierarchy.levels() - 1);
        judge_.go_by(pool_[chosen].estimates);
        Placement placement = hierarchy.coarsest(start);
        if (!combined) perturb(placement, hierarchy.coarsest(pool_[other].placement), top, random_);
        uncoarsen(hierarchy, std::move(placement), share, chosen);
    }

    [[nodiscard]] Placement fastest(const AdditiveModel& top) const {
        const auto width = static_cast<std::size_t>(top.devices);
        Placement result(static_cast<std::size_t>(top.items), 0);
        for (std::size_t i = 0; i < result.size(); ++i) {
            double least = std::numeric_limits<double>::infinity();
            for (std::size_t d = 0; d < width; ++d) {
                if (top.supported[i * width + d] == 0 || top.item_us[i * width + d] >= least) continue;
                least = top.item_us[i * width + d];
                result[i] = static_cast<std::uint8_t>(d);
            }
        }
        return result;
    }

    // parent: of the placement (offer).
    void uncoarsen(const Hierarchy& hierarchy, Placement placement, double share,
                   std::optional<std::size_t> parent = std::nullopt) {
        ++cycles_;
        for (std::size_t level = hierarchy.levels(); level-- > 0;) {
            const AdditiveModel& model = hierarchy.model(level);
            if (level + 1 < hierarchy.levels()) placement = hierarchy.refined(level + 1, placement);
            Neighbourhoods search(model, options_.throughput, kLongestRun,
                                  level == 0 ? kFineSharpness : kCoarseSharpness);
            search.reset(placement, judge_.surcharge(share), judge_.reserved());
            if (level + 1 == hierarchy.levels() && model.items <= kSmall) {
                search.descend(budget_);
            } else {
                search.passes(level == 0 ? kFinePasses : kPasses, budget_);
            }
            placement = search.placement();
        }
        offer(std::move(placement), parent);
    }

    // Early on, no placement may take most of the time that has passed, unless none is found.
    void limit_work() {
        if (!limited_work_) return;
        const auto spent = static_cast<double>(all_moves_ - budget_.moves());
        const double share = std::max(spent / kMovesOfAllWork, kLeastWork * std::pow(kMoreWork, infeasible_));
        judge_.limit_work(std::min(share, 1.0));
    }

    // Keeps a placement that is good enough for the pool, and returns its score. What was made of one in the pool, its
    // parent, takes the place of it if it is better, and else has none but a free one: after many cycles all would be
    // made of one and alike.
    double offer(Placement placement, std::optional<std::size_t> parent = std::nullopt) {
        const auto same = [&](const Solution& solution) { return solution.placement == placement; };
        if (const auto known = std::find_if(pool_.begin(), pool_.end(), same); known != pool_.end())
            return known->score;
        limit_work();
        double score = judge_.score(placement, budget_);
        if (!std::isfinite(score)) {
            break_circles(model_, placement);
            if (const auto known = std::find_if(pool_.begin(), pool_.end(), same); known != pool_.end()) {
                return known->score;
            }
            score = judge_.score(placement, budget_);
            ++infeasible_;
        }
        if (pool_.empty() || better(score, pool_.front().score)) {
            if (score < kOverMemory) progress_.push_back({now_ms(options_.processor_time) - begin_ms_, score});
        }
        if (model_.items > kManyCycles) parent.reset();
        if (parent && pool_.size() == kPool && !better(score, pool_[*parent].score)) return score;
        Solution solution{std::move(placement), score, judge_.estimates()};
        if (parent && better(score, pool_[*parent].score)) {
            pool_[*parent] = std::move(solution);
        } else {
            pool_.push_back(std::move(solution));
        }
        std::stable_sort(pool_.begin(), pool_.end(),
                         [](const Solution& a, const Solution& b) { return a.score < b.score; });
        if (pool_.size() > kPool) pool_.pop_back();
        return score;
    }

    const OrderedProblem& ordered_;
    const Problem& problem_;
    const AdditiveModel& model_;
    std::span<const double> rating_;
    const MultilevelOptions& options_;
    Judge judge_;
    PlacementSearch local_, island_search_;
    std::vector<ContiguousSearch> contiguous_;  // of each order of the groups
    std::size_t best_order_ = 0;                // of these
    std::mt19937_64 random_;
    double begin_ms_;
    std::int64_t all_moves_;
    Budget budget_;
    bool lacking_;  // some device lacks operations
    bool limited_work_ = true;
    bool judged_partitions_ = false;
    int infeasible_ = 0;
    std::vector<Solution> pool_;     // best first
    std::vector<Candidate> island_;  // best first
    std::size_t simple_ = 0;         // simple placements that the island has begun with
    std::int64_t island_moves_ = 0;
    std::vector<Improvement> progress_;
    std::int64_t cycles_ = 0;
};

}  // namespace

Multilevel::Multilevel(const Problem& problem, std::span<const std::int32_t> coarse_groups)
    : problem_(problem), levels_(problem_, coarse_groups), other_levels_(problem_, coarse_groups, 1) {}

std::vector<std::int32_t> Multilevel::contracted(std::int32_t target) const {
    const AdditiveModel& model = levels_.coarse;
    std::mt19937_64 random(0);
    const HierarchyOptions options{.target = target, .noise = 0, .labels = {}};
    const std::vector<std::int32_t> item = Hierarchy(model, transfer_ratings(model), options, random).items();
    std::vector<std::int32_t> result(levels_.coarse_of.size());
    for (std::size_t g = 0; g < result.size(); ++g) result[g] = item[static_cast<std::size_t>(levels_.coarse_of[g])];
    return problem_.as_given<std::int32_t>(result);
}

MultilevelResult Multilevel::search(std::span<const std::uint8_t> starts, std::span<const double> rating,
                                    const MultilevelOptions& options) const {
    if (options.max_moves <= 0 && !(options.budget_ms > 0)) throw std::invalid_argument("expected a budget");
    const AdditiveModel& model = levels_.fine;
    std::vector<double> ratings = transfer_ratings(model);
    if (!rating.empty()) {
        if (rating.size() != ratings.size()) throw std::invalid_argument("expected one rating per tensor");
        std::vector<std::int32_t> ports = model.port;
        std::sort(ports.begin(), ports.end());
        for (std::size_t t = 0; t < ratings.size(); ++t) {
            const auto at = std::lower_bound(ports.begin(), ports.end(), model.port[t]) - ports.begin();
            ratings[t] = rating[static_cast<std::size_t>(at)];
        }
    }
    MultilevelOptions ordered = options;
    const std::vector<std::uint64_t> labels = problem_.ordered(options.labels);
    ordered.labels = labels;
    MultilevelResult result = Search(problem_, levels_, other_levels_, ratings, ordered).run(problem_.ordered(starts));
    result.placement = problem_.as_given<std::uint8_t>(result.placement);
    for (Placement& elite : result.elites) elite = problem_.as_given<std::uint8_t>(elite);
    if (result.score >= kOverMemory) result.score = std::numeric_limits<double>::infinity();
    return result;
}

}  // namespace ov_hsdag
