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
    // Moves that are tried where no limit is given, by ov_hsdag/placers: 20 to 120 ms on one core for models of up to a
    // thousand groups on two devices. On more, where as many stop 2 to 4% short in throughput, up to 350 ms.
    struct Effort {
        std::int64_t moves = 500'000;
        std::int64_t moves_per_group = 100;
        std::int64_t more_per_group = 10'000;  // on more than two devices, and at most
        std::int64_t most_more = 3'500'000;
        // Where a device cannot hold the model, good placements are rarer: so many at least, so many times as many, and
        // local search from so many of the best.
        std::int64_t moves_in_little_memory = 6'000'000;
        std::int64_t times_in_little_memory = 3;
        std::int32_t refined_in_little_memory = 4;
        OV_HSDAG_NUMBERS(moves, moves_per_group, more_per_group, most_more, moves_in_little_memory,
                         times_in_little_memory, refined_in_little_memory)
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
        // Of graphs of at most so many groups all orders are looked at again, this many times as long and with more
        // places, and so many of the best with the most. Larger ones have found better by then.
        std::int32_t small_graph = 600;
        double longer = 4;
        std::int32_t more_sequences = 8;
        std::int32_t more_fine_sequences = 4;
        // For throughput, so many partitions of so many orders of the devices are judged, once so many moves for each
        // group, and more than placing makes by default, have been made: that takes 30 ms for a thousand groups on four
        // devices, a tenth of a second on eight.
        std::int32_t judged_cuts = 600;
        double judged_effort = 16;
        std::int32_t judged_sequences = 64;
        std::int32_t judged_per_sequence = 24;
        double judged_after_per_group = 800;
        double judged_after = 600'000;
        OV_HSDAG_NUMBERS(cuts, fine_sequences, few_devices, few_cuts, small_graph, longer, more_sequences,
                         more_fine_sequences, judged_cuts, judged_effort, judged_sequences, judged_per_sequence,
                         judged_after_per_group, judged_after)
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
