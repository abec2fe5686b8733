// What searches are tuned with: one nested struct, so that an experiment sets what it asks about and builds nothing.
#pragma once

#include <cstdint>
#include <span>
#include <sstream>
#include <string>
#include <tuple>

namespace ov_hsdag {

// The numbers of a group and their names.
#define OV_HSDAG_NUMBERS(...)                           \
    static constexpr const char* kNames = #__VA_ARGS__; \
    auto numbers() { return std::tie(__VA_ARGS__); }    \
    auto numbers() const { return std::tie(__VA_ARGS__); }

struct SearchSettings {
    // Moves that are tried where no limit is given (descents.hpp). Those of the first turn of each search: 5 to 30 ms
    // on one core for models of up to a thousand groups on two devices, up to 200 ms on more.
    struct Effort {
        std::int64_t moves = 125'000;
        std::int64_t moves_per_group = 25;
        std::int64_t more_per_group = 2'500;  // on more than two devices, and at most
        std::int64_t most_more = 875'000;
        // Where a device cannot hold the model, good placements are rarer: so many at least, so many times as many, and
        // local search from so many of the best.
        std::int64_t moves_in_little_memory = 1'000'000;
        std::int64_t times_in_little_memory = 3;
        std::int32_t refined_in_little_memory = 4;
        // So many searches, until they agree; graphs of more groups have one, with the moves of all first turns.
        std::int32_t descents = 4;
        std::int32_t most_groups = 4'000;
        std::int64_t most_moves = 6'000'000;  // of each search: about 1 s on a core of its own
        double expected_regret = 0.0001;      // share of the best score
        double together = 0.25;  // share of `most_moves` after searches that disagree exchange all they have
        OV_HSDAG_NUMBERS(moves, moves_per_group, more_per_group, most_more, moves_in_little_memory,
                         times_in_little_memory, refined_in_little_memory, descents, most_groups, most_moves,
                         expected_regret, together)
    } effort;

    struct Coarsening {
        std::int32_t target = 160;  // items of the coarsest level, about
        double share = 1.5;         // an item may have so many times the mean share of work or weights there
        double shrink = 0.95;       // a level must be so much smaller than the one before
        double noise = 2.0;         // random numbers by which further cycles rate edges
        OV_HSDAG_NUMBERS(target, share, shrink, noise)
    } coarsening;

    // Contiguous partitions, from which search starts.
    struct Partitions {
        // Places where parts may end, at most, and orders of the devices in which so many are tried. More than
        // `few_devices` begin with fewer places, in the order of the list.
        std::int32_t cuts = 300;
        std::int32_t fine_sequences = 2;
        std::int32_t few_devices = 5;
        std::int32_t few_cuts = 96;
        OV_HSDAG_NUMBERS(cuts, fine_sequences, few_devices, few_cuts)
    } partitions;

    // What cycles begin with.
    struct Population {
        std::int32_t size = 8;
        std::int32_t partitions = 3;  // that stay in it before the first cycle
        // Placements of the coarsest level that are refined on all levels: of those that come from partitions, and of
        // others.
        std::int32_t starts = 2;
        // Of the cost of submodels, in the first cycle from placements that are none. HETERO's rule makes fewer of them
        // than tensors cross, and partitions already have few.
        double scattered_share = 0.25;
        // Graphs of at most so many groups have time for hundreds of cycles: lines of descent stay apart, and a share
        // of the moves goes to a second population.
        std::int32_t many_cycles = 2000;
        double island_share = 0.5;
        double island_share_in_throughput = 0.25;
        // Graphs of at most so many groups are searched without a hierarchy in every second cycle, or in every fourth.
        std::int32_t local = 4000;
        std::int32_t seldom_local = 16'000;
        OV_HSDAG_NUMBERS(size, partitions, starts, scattered_share, many_cycles, island_share,
                         island_share_in_throughput, local, seldom_local)
    } population;

    // Work that the judging of one placement whose parts wait for each other may take: all of it after so many moves, a
    // share of it from the beginning, which grows with each one that is not found feasible.
    struct Judging {
        double moves_of_all_work = 300'000;
        double least_work = 1.0 / 64;
        double more_work = 1.2;
        OV_HSDAG_NUMBERS(moves_of_all_work, least_work, more_work)
    } judging;

    // Moves on the levels (neighbourhoods.hpp).
    struct Moves {
        std::int32_t passes = 2;  // on each level, and on the finest
        std::int32_t fine_passes = 4;
        // Doublings of the power that stands for the maximum (AdditiveState::sharpen), on coarse and on fine levels at
        // first, and in the end: what is close to the optimum is searched with more.
        std::int32_t coarse_sharpness = 2;
        std::int32_t fine_sharpness = 4;
        std::int32_t most_sharpness = 5;
        std::int32_t small_level = 400;  // coarsest levels of at most so many items are searched with all moves
        std::int32_t run = 64;           // items that move together in a row, at most
        std::int32_t rounds = 12;        // of passes, flips and runs in one descent
        // Levels of at most so many items look at every move of each; larger ones at those that may pay.
        std::int32_t every_move = 256;
        // On levels of at most so many items every entry is made anew after each move: work and memory count for all.
        std::int32_t fresh = 48;
        std::int32_t many_consumers = 64;  // tensors with more do not bring all up again when one of them moves
        std::int32_t patience = 40;        // a pass ends after so many moves without a new best
        std::int64_t run_moves = 20'000;   // that one search for runs may try
        OV_HSDAG_NUMBERS(passes, fine_passes, coarse_sharpness, fine_sharpness, most_sharpness, small_level, run,
                         rounds, every_move, fresh, many_consumers, patience, run_moves)
    } moves;

    // Simulated annealing (anneal.hpp).
    struct Annealing {
        std::int32_t most_items = 4000;  // graphs of at most so many groups are annealed
        std::int32_t sweeps = 200;       // so many moves of each item are tried in one run
        std::int32_t stages = 40;        // temperatures of one run
        std::int32_t sharpness = 6;      // doublings of the power that stands for the maximum
        // Temperatures: a move that makes the objective larger by this share is made once in e times.
        double hottest = 0.002;
        double coldest = 0.00005;
        double share = 0.75;  // of all moves
        OV_HSDAG_NUMBERS(most_items, sweeps, stages, sharpness, hottest, coldest, share)
    } annealing;

    // Local search by the simulator, and refinement of batches (placement_search.hpp, refine.hpp).
    struct Local {
        std::int32_t fine_run =
            256;                   // items that a run of colocation groups may have; of coarse groups it may have all
        double close = 1.03;       // a coarse placement this close to the best is worth a finer search
        std::int32_t tries = 12;   // runs that the simulator tries before it gives up on improving a placement by one
        std::int32_t elites = 6;   // that are refined on colocation groups, and perturbed, where moves are limited
        std::int32_t islands = 2;  // searches from perturbed placements, which share the moves equally
        OV_HSDAG_NUMBERS(fine_run, close, tries, elites, islands)
    } local;

    // "fast": a fifth of the moves; "default"; "thorough": eight times as many. Throws std::invalid_argument.
    static SearchSettings preset(const std::string& name);
    // Throws std::invalid_argument where a number is negative, or a count that has to be positive is not.
    void check() const;

    // Calls visit(group, name, number) for each.
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
        each("local", self.local);
    }
};

#undef OV_HSDAG_NUMBERS

// What one search is asked for.
struct SearchOptions {
    bool throughput = false;
    std::int64_t max_moves = 0;   // that are tried, of a whole batch; 0: no limit
    double budget_ms = 0;         // 0: no limit. With it, results depend on the machine
    bool processor_time = false;  // what `multilevel_search` counts; otherwise, and in `refine`, wall time
    std::uint64_t seed = 0;
    std::int32_t threads = 1;  // for a batch; results do not depend on their number
    SearchSettings settings;
};

}  // namespace ov_hsdag
