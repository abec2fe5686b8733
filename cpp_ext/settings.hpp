// The settings of searches, in one nested struct, so that experiments can change single numbers without a new build.
// Each nested struct is a group of numbers, which Python addresses by group and name (ov_hsdag/placers/settings.py).
// SearchOptions are what differs from call to call: objective, limits, seed and threads.
#pragma once

#include <cstdint>
#include <span>
#include <sstream>
#include <string>
#include <tuple>

namespace ov_hsdag {

// Defines the list of a group's numbers, and of their names.
#define OV_HSDAG_NUMBERS(...)                           \
    static constexpr const char* kNames = #__VA_ARGS__; \
    auto numbers() { return std::tie(__VA_ARGS__); }    \
    auto numbers() const { return std::tie(__VA_ARGS__); }

struct SearchSettings {
    // Numbers of moves that are tried without a given limit (descents.hpp). The first turn of each search has
    //     moves + moves_per_group * groups
    // and on more than two devices additionally min(more_per_group * groups, most_more). It takes 5 to 30 ms on one
    // core for models of up to a thousand groups on two devices, and up to 200 ms on more devices.
    struct Effort {
        std::int64_t moves = 125'000;
        std::int64_t moves_per_group = 25;
        std::int64_t more_per_group = 2'500;
        std::int64_t most_more = 875'000;
        // If a device cannot hold the model, good placements are rarer: least number of moves, factor of the number of
        // moves, and number of the best placements from which local search starts.
        std::int64_t moves_in_little_memory = 1'000'000;
        std::int64_t times_in_little_memory = 3;
        std::int32_t refined_in_little_memory = 4;
        // Number of searches, which continue until they agree. Graphs of more than `most_groups` groups have only
        // `large_descents`. Each has a turn with the moves of `large_turn` first turns, or of half as many where a
        // device cannot hold the model, as these are longer. It has a second turn if they are in doubt.
        std::int32_t descents = 4;
        std::int32_t large_descents = 2;
        std::int32_t large_turn = 8;
        std::int32_t most_groups = 4'000;
        std::int32_t turns_over_memory = 3;   // largest number of such turns more while no placement is feasible
        std::int64_t most_moves = 8'000'000;  // largest number of moves of a search: 0.7 to 1 s on one core
        // Factor of `most_moves`, and of the moves of a search of a large graph, if one more search is expected to gain
        // at least `large_regret`, a share of the best score, when the searches would exchange placements.
        std::int32_t times_in_doubt = 2;
        double large_regret = 0.005;
        double expected_regret = 0.0001;  // searches end below this expected gain, a share of the best score
        double together = 0.5;  // last share of `most_moves`, for which searches that disagree exchange placements
        OV_HSDAG_NUMBERS(moves, moves_per_group, more_per_group, most_more, moves_in_little_memory,
                         times_in_little_memory, refined_in_little_memory, descents, large_descents, large_turn,
                         most_groups, turns_over_memory, most_moves, times_in_doubt, large_regret, expected_regret,
                         together)
    } effort;

    struct Coarsening {
        std::int32_t target = 160;  // approximate number of items of the coarsest level
        double share = 1.5;         // limit of an item's work and weights, as a multiple of their mean on that level
        double shrink = 0.95;       // largest ratio of the sizes of a level and the one before
        double noise = 2.0;         // HierarchyOptions::noise of all cycles but the first
        OV_HSDAG_NUMBERS(target, share, shrink, noise)
    } coarsening;

    // Contiguous partitions, from which searches start.
    struct Partitions {
        // Largest number of places where parts may end, and number of orders of devices for which this many are used.
        // More than `few_devices` devices begin with `few_cuts` places, in the order of the list.
        std::int32_t cuts = 300;
        std::int32_t fine_sequences = 2;
        std::int32_t few_devices = 5;
        std::int32_t few_cuts = 96;
        // Partitions are offered until this many were infeasible for another reason than memory. Breaking the cycles
        // of each takes as long as ten simulations, and where some devices lack operations often all are infeasible.
        std::int32_t infeasible = 3;
        OV_HSDAG_NUMBERS(cuts, fine_sequences, few_devices, few_cuts, infeasible)
    } partitions;

    // The population with which cycles begin.
    struct Population {
        std::int32_t size = 8;
        std::int32_t partitions = 3;  // number of contiguous partitions in it before the first cycle
        // Number of placements of the coarsest level that are refined on all levels, of those that come from partitions
        // and of others each.
        std::int32_t starts = 2;
        // Share of the cost of submodels in the first cycle from placements that are no partitions: HETERO's rule makes
        // fewer submodels than tensors cross, and partitions have few already.
        double scattered_share = 0.25;
        // Graphs of at most `many_cycles` groups have time for hundreds of cycles: lines of descent are kept apart, and
        // a share of the moves goes to a second population.
        std::int32_t many_cycles = 2000;
        double island_share = 0.5;
        double island_share_in_throughput = 0.25;
        // One cycle in two is a local search without a hierarchy on graphs of at most `local` groups, one in four on
        // larger ones of at most `seldom_local` groups.
        std::int32_t local = 4000;
        std::int32_t seldom_local = 16'000;
        OV_HSDAG_NUMBERS(size, partitions, starts, scattered_share, many_cycles, island_share,
                         island_share_in_throughput, local, seldom_local)
    } population;

    // Limit of the work of breaking the cycles of one placement, as a share of the default (Judge::limit_work). It is
    // all of it after `moves_of_all_work` moves. At first it is `least_work`, which is multiplied by `more_work` after
    // each placement that was not found feasible.
    struct Judging {
        double moves_of_all_work = 300'000;
        double least_work = 1.0 / 64;
        double more_work = 1.2;
        // The same where no placement is feasible within the default limit: about a second for one placement.
        double work_at_last = 64.0;
        OV_HSDAG_NUMBERS(moves_of_all_work, least_work, more_work, work_at_last)
    } judging;

    // Moves on the levels (neighbourhoods.hpp).
    struct Moves {
        std::int32_t passes = 2;       // largest number of passes on each level but the finest
        std::int32_t fine_passes = 4;  // largest number of passes on the finest level
        // Doublings of the power that approximates the maximum (AdditiveState::sharpen): on coarse levels, on fine ones
        // at first, and at the end. Close to the optimum a better approximation is needed.
        std::int32_t coarse_sharpness = 2;
        std::int32_t fine_sharpness = 4;
        std::int32_t most_sharpness = 5;
        std::int32_t small_level = 400;  // coarsest levels of at most this many items are searched with all moves
        std::int32_t run = 64;           // largest number of items in a run
        std::int32_t slide = 64;         // largest number of items by which a part slides
        std::int32_t rounds = 12;        // largest number of rounds of passes, flips, runs and slides in a descent
        // Up to this number of items, all moves of each item are tried; on larger levels only those that may pay.
        std::int32_t every_move = 256;
        // Up to this number of items, all entries of the queue are renewed after each move, as work and memory change
        // for all items.
        std::int32_t fresh = 48;
        std::int32_t many_consumers = 64;  // tensors with more consumers do not update all of these when one moves
        std::int32_t patience = 40;        // a pass ends after this many moves without a new best state
        std::int64_t run_moves = 20'000;   // largest number of moves in one search for runs or slides
        OV_HSDAG_NUMBERS(passes, fine_passes, coarse_sharpness, fine_sharpness, most_sharpness, small_level, run, slide,
                         rounds, every_move, fresh, many_consumers, patience, run_moves)
    } moves;

    // Simulated annealing (anneal.hpp).
    struct Annealing {
        std::int32_t most_items = 4000;  // graphs of more groups are annealed on coarse levels only
        std::int32_t sweeps = 200;       // number of moves of each item that one run tries
        std::int32_t stages = 40;        // number of temperatures in one run
        std::int32_t sharpness = 6;      // doublings of the power that approximates the maximum
        // Temperatures: a move that increases the objective by this share is accepted with probability 1/e.
        double hottest = 0.002;
        double coldest = 0.00005;
        double share = 0.75;  // share of all moves that annealing gets
        // Share of the stages after which the simulator judges the placement, and renews the estimate of submodels.
        double renewed = 1.0;
        // Half of these estimates have this weight for each device's own number of submodels (Judge::surcharge). It
        // says more about the busiest device than that of all devices, but about fewer tensors.
        double own = 0.5;
        // Share of the runs that work on a coarse level, and least number of items of such a level. On larger graphs
        // than `most_items` all do, on levels of at most `most_coarse_items`: time does not suffice for runs of more.
        double coarse = 0.8;
        std::int32_t fewest_items = 24;
        std::int32_t most_coarse_items = 1000;
        OV_HSDAG_NUMBERS(most_items, sweeps, stages, sharpness, hottest, coldest, share, renewed, own, coarse,
                         fewest_items, most_coarse_items)
    } annealing;

    // Simulated annealing by the simulator (judged_annealing.hpp), if a device cannot hold the model.
    struct JudgedAnnealing {
        std::int32_t most_items = 1500;  // graphs of at most this many groups
        std::int32_t small_items = 150;  // graphs of at most this many groups are small
        std::int32_t sweeps = 60;        // number of proposals for each group in one run
        std::int32_t stages = 30;        // number of temperatures in one run
        // Temperatures: a proposal that increases log(objective) by this much is accepted with probability 1/e.
        double hottest = 0.03;
        double coldest = 0.002;
        // Weight of the excess of memory (Judge::softened) at the beginning and at the end of a run.
        double gentle = 0.3;
        double strict = 30.0;
        // Share of all moves, on small graphs and on others.
        double share = 0.5;
        double large_share = 0.25;
        // Share of the runs that work on a coarse level, and least and largest number of items of such a level. On
        // graphs of more groups all do: the simulator takes so long that few steps fit into a run.
        double coarse = 0.8;
        std::int32_t fewest_items = 24;
        std::int32_t most_coarse_items = 200;
        OV_HSDAG_NUMBERS(most_items, small_items, sweeps, stages, hottest, coldest, gentle, strict, share, large_share,
                         coarse, fewest_items, most_coarse_items)

        // The share for a problem of so many groups; 0 if each device can hold the model.
        [[nodiscard]] double share_of(bool little_memory, std::int32_t groups) const {
            if (!little_memory || groups > most_items) return 0.0;
            return groups > small_items ? large_share : share;
        }
    } judged_annealing;

    // Local search by the simulator, and refinement of batches (placement_search.hpp, refine.hpp).
    struct Local {
        std::int32_t fine_run =
            256;                   // largest number of colocation groups in a run; runs of coarse groups have no limit
        double close = 1.03;       // ratio to the best score up to which a coarse placement gets a finer search
        std::int32_t tries = 12;   // runs that the simulator tries before a placement counts as not improvable by one
        std::int32_t elites = 6;   // placements that are refined on groups and perturbed, if moves are limited
        std::int32_t islands = 2;  // searches from perturbed placements, which share the moves equally
        OV_HSDAG_NUMBERS(fine_run, close, tries, elites, islands)
    } local;

    // The settings of a preset: "fast" has a fifth of the moves of "default", "thorough" eight times as many. Throws
    // std::invalid_argument for other names.
    static SearchSettings preset(const std::string& name);
    // Throws std::invalid_argument if a number is negative, or a count that must be positive is 0.
    void check() const;

    // Calls visit(group, name, number) for each number.
    template <typename Self, typename Visit>
    static void for_each(Self& self, Visit visit) {
        const auto each = [&](const std::string& group, auto& settings) {
            std::istringstream names(settings.kNames);
            const auto next = [&] {
                std::string name;
                names >> name;
                return name.substr(0, name.find(','));
            };
            std::apply([&](auto&... number) { (visit(group, next(), number), ...); }, settings.numbers());
        };
        each("effort", self.effort);
        each("coarsening", self.coarsening);
        each("partitions", self.partitions);
        each("population", self.population);
        each("judging", self.judging);
        each("moves", self.moves);
        each("annealing", self.annealing);
        each("judged_annealing", self.judged_annealing);
        each("local", self.local);
    }
};

#undef OV_HSDAG_NUMBERS

// The options of one search.
struct SearchOptions {
    bool throughput = false;      // objective: throughput, otherwise latency
    std::int64_t max_moves = 0;   // limit of moves that are tried, for a whole batch; 0: no limit
    double budget_ms = 0;         // limit of time; 0: no limit. With a limit, results depend on the machine
    bool processor_time = false;  // `multilevel_search` limits processor time; otherwise, and in `refine`, wall time
    std::uint64_t seed = 0;
    std::int32_t threads = 1;  // threads for a batch; results do not depend on their number
    SearchSettings settings;
};

}  // namespace ov_hsdag
