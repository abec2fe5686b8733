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
#include "hierarchy.hpp"
#include "judge.hpp"
#include "neighbourhoods.hpp"
#include "perturb.hpp"
#include "placement_search.hpp"

namespace ov_hsdag {
namespace {

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

}  // namespace

// The seed also says which of the problem's orders the levels have, so that descents differ in more than luck.
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
          annealing_(model_, options.throughput, settings_.annealing),
          random_(options.seed),
          begin_ms_(now_ms(options.processor_time)),
          since_ms_(begin_ms_),
          all_moves_(options.max_moves > 0 ? options.max_moves : std::numeric_limits<std::int64_t>::max() / 4),
          budget_(all_moves_, options.budget_ms > 0 ? begin_ms_ + options.budget_ms : Budget::kNoEnd,
                  options.processor_time),
          lacking_(std::find(model_.supported.begin(), model_.supported.end(), 0) != model_.supported.end()) {}

    // What search starts from, and the first cycle. starts: [count, groups] placements that are tried as well.
    void begin(std::span<const std::uint8_t> starts) {
        add_single_devices(true);
        offer_all(starts);
        add_partitions(true);
        add_scattered();
        add_partitions(false);
        add_partitions_of_other_orders();
        add_single_devices(false);
        if (!pool_.empty()) start_score_ = pool_.front().score;
        first_cycle();
        if (!std::isfinite(pool_.front().score)) judge_without_limit();
        enter(Phase::kRefine);
        refine_over_memory();
        begun_at_ = budget_.moves();
    }

    void allow(std::int64_t moves) {
        budget_.spend(-moves);
        all_moves_ += moves;
        begun_at_ += moves;
    }

    // Further cycles, until the budget is spent.
    void cycles() {
        since_ms_ = now_ms(options_.processor_time);
        const SearchSettings::Population& sizes = settings_.population;
        const double share = options_.throughput ? sizes.island_share_in_throughput : sizes.island_share;
        while (budget_.left()) {
            const auto spent = static_cast<double>(begun_at_ - budget_.moves());
            if (model_.items <= settings_.annealing.most_items &&
                static_cast<double>(annealed_moves_) < settings_.annealing.share * spent) {
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

    void offer_all(std::span<const std::uint8_t> placements) {
        const auto width = static_cast<std::ptrdiff_t>(model_.items);
        for (auto row = placements.begin(); placements.end() - row >= width; row += width) {
            offer(Placement(row, row + width));
        }
    }

    [[nodiscard]] double score() const { return pool_.front().score; }
    [[nodiscard]] double start_score() const { return start_score_; }

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
        if (model_.devices > settings_.partitions.few_devices) {
            std::vector<std::int32_t> listed(static_cast<std::size_t>(model_.devices));
            std::iota(listed.begin(), listed.end(), 0);
            add_partitions_in(0, listed, settings_.partitions.few_cuts, whole);
        }
        add_partitions_of({.cuts = settings_.partitions.cuts, .sequence = {}, .whole = whole},
                          settings_.partitions.fine_sequences);
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
                for (ContiguousPlacement& found :
                     partitions(order, {.cuts = settings_.partitions.cuts, .sequence = {}, .whole = whole})) {
                    offer(std::move(found.placement));
                }
            }
        }
    }

    // Of an order of the groups. What partitions have in common is found out when the first is wanted: single devices
    // come before.
    std::vector<ContiguousPlacement> partitions(std::size_t order, const ContiguousOptions& wanted) {
        if (contiguous_.empty()) {
            for (std::vector<std::int32_t>& groups : space_.ordered.group_orders()) {
                contiguous_.emplace_back(problem_, model_, std::move(groups), options_.throughput);
            }
        }
        return order < contiguous_.size() ? contiguous_[order].best(wanted) : std::vector<ContiguousPlacement>{};
    }

    // In any order of the devices, and in the best `fine` orders again with the most places and of other orders of the
    // groups.
    void add_partitions_of(const ContiguousOptions& wanted, std::int32_t fine) {
        std::vector<std::vector<std::int32_t>> sequences;
        for (ContiguousPlacement& found : partitions(best_order_, wanted)) {
            offer(std::move(found.placement));
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

    void first_cycle() {
        // Partitions are much alike: what comes next shall have room beside them.
        const std::vector<Solution> simple = pool_;
        const auto kept = static_cast<std::size_t>(settings_.population.partitions);
        if (pool_.size() > kept) pool_.resize(kept);
        const Hierarchy hierarchy = coarsened(settings_.coarsening.target, 0, {});
        const AdditiveModel& top = hierarchy.model(hierarchy.levels() - 1);
        std::vector<Placement> found;
        for (const Solution& solution : simple) found.push_back(hierarchy.coarsest(solution.placement));
        Placement fastest(static_cast<std::size_t>(top.items));
        for (std::int32_t i = 0; i < top.items; ++i) fastest[i] = top.fastest(i);
        found.push_back(fastest);
        for (std::size_t d = 0; d < static_cast<std::size_t>(model_.devices); ++d) {
            Placement placement = fastest;
            for (std::size_t i = 0; i < placement.size(); ++i) {
                if (top.supports(static_cast<std::int32_t>(i), d)) placement[i] = static_cast<std::uint8_t>(d);
            }
            found.push_back(std::move(placement));
        }
        // By what the best one so far tells of submodels and memory.
        if (!pool_.empty()) judge_.go_by(pool_.front().estimates);
        std::vector<Refined> refined;
        const SearchSettings::Moves& moves = settings_.moves;
        const double scattered = settings_.population.scattered_share;
        Neighbourhoods search(top, options_.throughput, moves, moves.run, moves.coarse_sharpness);
        for (std::size_t i = 0; i < found.size() && (i == 0 || budget_.left()); ++i) {
            const double share = i < simple.size() ? 1.0 : scattered;
            search.reset(found[i], judge_.surcharge(share), judge_.reserved());
            search.passes(moves.fine_passes, budget_);
            const auto same = [&](const Refined& other) { return other.placement == search.placement(); };
            if (std::any_of(refined.begin(), refined.end(), same)) continue;
            refined.push_back({search.us(), i >= simple.size(), search.placement()});
        }
        std::stable_sort(refined.begin(), refined.end(),
                         [](const Refined& a, const Refined& b) { return a.us < b.us; });
        // Some of those that come from partitions, and some of the others: they are seldom alike.
        std::int32_t chosen[2] = {0, 0};
        for (Refined& start : refined) {
            if (chosen[start.from_devices ? 1 : 0]++ >= settings_.population.starts) continue;
            uncoarsen(hierarchy, std::move(start.placement), start.from_devices ? scattered : 1.0);
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

    // From a placement of the pool, by annealing and passes behind it.
    void search_annealed() {
        const std::int64_t before = budget_.moves();
        const double share = draw_share(random_);
        const std::size_t chosen = std::min(random_() % pool_.size(), random_() % pool_.size());
        constexpr double kHeats[] = {1.0, 0.3, 0.1, 3.0};
        const double heat = kHeats[random_() % std::size(kHeats)];
        judge_.go_by(pool_[chosen].estimates);
        Placement found =
            annealing_.run(pool_[chosen].placement, heat, judge_.surcharge(share), judge_.reserved(), random_, budget_);
        Neighbourhoods search(model_, options_.throughput, settings_.moves, settings_.moves.run,
                              settings_.moves.fine_sharpness);
        search.reset(found, judge_.surcharge(share), judge_.reserved());
        search.passes(settings_.moves.fine_passes, budget_);
        offer(search.placement(), chosen);
        annealed_moves_ += before - budget_.moves();
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

    // From one or two placements of the pool: what they have apart stays apart while coarsening.
    void next_cycle() {
        const double share = draw_share(random_);
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
        // Coarse levels of many sizes: the moves of one are not those of another.
        const std::int32_t target = std::max<std::int32_t>(settings_.coarsening.target >> (random_() % 3), 12);
        const Hierarchy hierarchy = coarsened(target, settings_.coarsening.noise, labels);
        const AdditiveModel& top = hierarchy.model(hierarchy.levels() - 1);
        judge_.go_by(pool_[chosen].estimates);
        Placement placement = hierarchy.coarsest(start);
        if (!combined) perturb(placement, hierarchy.coarsest(pool_[other].placement), top, random_);
        uncoarsen(hierarchy, std::move(placement), share, chosen);
    }

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

    // What was spent since the last call is the phase's before.
    void enter(Phase phase) {
        const double now = now_ms(options_.processor_time);
        phase_ms_[static_cast<std::size_t>(phase_)] += now - since_ms_;
        since_ms_ = now;
        phase_ = phase;
    }

    // parent: of the placement (offer).
    void uncoarsen(const Hierarchy& hierarchy, Placement placement, double share,
                   std::optional<std::size_t> parent = std::nullopt) {
        ++cycles_;
        for (std::size_t level = hierarchy.levels(); level-- > 0;) {
            const AdditiveModel& model = hierarchy.model(level);
            if (level + 1 < hierarchy.levels()) placement = hierarchy.refined(level + 1, placement);
            const SearchSettings::Moves& moves = settings_.moves;
            Neighbourhoods search(model, options_.throughput, moves, moves.run,
                                  level == 0 ? moves.fine_sharpness : moves.coarse_sharpness);
            search.reset(placement, judge_.surcharge(share), judge_.reserved());
            if (level + 1 == hierarchy.levels() && model.items <= moves.small_level) {
                search.descend(budget_);
            } else {
                search.passes(level == 0 ? moves.fine_passes : moves.passes, budget_);
            }
            placement = search.placement();
            enter(Phase::kRefine);
        }
        offer(std::move(placement), parent);
    }

    // Early on, no placement may take most of the time that has passed, unless none is found.
    void limit_work() {
        if (!limited_work_) return;
        const auto spent = static_cast<double>(all_moves_ - budget_.moves());
        const double share =
            std::max(spent / settings_.judging.moves_of_all_work,
                     settings_.judging.least_work * std::pow(settings_.judging.more_work, infeasible_));
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
        const auto most = static_cast<std::size_t>(settings_.population.size);
        if (model_.items > settings_.population.many_cycles) parent.reset();
        if (parent && pool_.size() == most && !better(score, pool_[*parent].score)) return score;
        Solution solution{std::move(placement), score, judge_.estimates()};
        if (parent && better(score, pool_[*parent].score)) {
            pool_[*parent] = std::move(solution);
        } else {
            pool_.push_back(std::move(solution));
        }
        std::stable_sort(pool_.begin(), pool_.end(),
                         [](const Solution& a, const Solution& b) { return a.score < b.score; });
        if (pool_.size() > most) pool_.pop_back();
        return score;
    }

    const SearchSpace& space_;
    const Problem& problem_;
    const Levels& levels_;
    const AdditiveModel& model_;
    std::vector<double> rating_;
    const SearchOptions options_;
    const SearchSettings& settings_;
    Judge judge_;
    PlacementSearch local_, island_search_;
    Annealing annealing_;
    std::vector<ContiguousSearch> contiguous_;  // of each order of the groups
    std::size_t best_order_ = 0;                // of these
    std::mt19937_64 random_;
    double begin_ms_, since_ms_;
    Phase phase_ = Phase::kPlace;
    std::array<double, 3> phase_ms_{};
    std::int64_t all_moves_;
    Budget budget_;
    bool lacking_;  // some device lacks operations
    bool limited_work_ = true;
    int infeasible_ = 0;
    std::vector<Solution> pool_;     // best first
    std::vector<Candidate> island_;  // best first
    std::size_t simple_ = 0;         // simple placements that the island has begun with
    std::int64_t island_moves_ = 0, annealed_moves_ = 0;
    double start_score_ = std::numeric_limits<double>::infinity();
    std::int64_t begun_at_ = 0;  // moves that were left after the first cycle
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

double MultilevelSearch::start_score() const { return search_->start_score(); }

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
