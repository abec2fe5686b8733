// The additive part of a placement's cost: node times and transfers, without HETERO's split. A local search can update
// it move by move; only the simulator knows the submodels.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "problem.hpp"

namespace ov_hsdag {

// Items are what moves: colocation groups, or coarse groups of them.
struct AdditiveModel {
    std::int32_t items = 0;
    std::int32_t devices = 0;
    std::vector<double> item_us;          // [items, devices]; the first in order also pays the first submodel
    std::vector<std::uint8_t> supported;  // [items, devices]
    std::vector<std::int64_t> weight;     // [items, devices] bytes of constants and states
    std::vector<std::int32_t> order;      // [items] in the order in which their first operations run

    // Tensors with consumers in other items than their producer's.
    std::vector<std::int32_t> source;          // [tensors]
    std::vector<double> bytes;                 // [tensors]
    std::vector<double> fusion_penalty_us;     // [tensors, devices] of the fusion that a device breaks by receiving it
    std::vector<std::int32_t> consumer_ptr;    // [tensors + 1]
    std::vector<std::int32_t> consumer;        // each item once
    std::vector<std::int32_t> produced_ptr;    // [items + 1]
    std::vector<std::int32_t> produced;        // tensors that leave the item
    std::vector<std::int32_t> received_ptr;    // [items + 1]
    std::vector<std::int32_t> received;        // tensors that enter it
    std::vector<double> transfer_us;           // [devices, devices]
    std::vector<double> transfer_us_per_byte;  // [devices, devices]
    std::vector<std::int64_t> memory_limit;    // [devices] negative: none

    // item: [nodes] dense numbers.
    AdditiveModel(const Problem& problem, std::span<const std::int32_t> item);

    [[nodiscard]] std::int32_t tensors() const { return static_cast<std::int32_t>(source.size()); }
    [[nodiscard]] bool supports(std::int32_t item, std::size_t device) const {
        return supported[static_cast<std::size_t>(item) * static_cast<std::size_t>(devices) + device] != 0;
    }
};

// One placement of a model's items, and what a move would change.
class AdditiveState {
public:
    AdditiveState(const AdditiveModel& model, bool throughput);
    // placement: [items]. surcharge_us: [devices] what a device pays more for each tensor that it receives, in place of
    // submodels. reserved: [devices] bytes of memory that weights cannot have.
    void reset(const std::uint8_t* placement, std::span<const double> surcharge_us, std::span<const double> reserved);

    // What is minimized. Latency: µs. Throughput: the sum of powers of the devices' work, relative to the busiest one's
    // at the time of `sharpen`; unlike the maximum it differs between moves that leave the busiest device alone. Both
    // include a penalty for weights beyond the memory limits.
    [[nodiscard]] double score() const;
    // The objective itself, with the penalty, µs: latency, or the busiest device's work.
    [[nodiscard]] double us() const;
    // Throughput: the power is 2^doublings from here on. The higher, the closer to the maximum.
    void sharpen(int doublings);
    void move(std::int32_t item, std::uint8_t device);

    [[nodiscard]] std::uint8_t device(std::int32_t item) const { return placement_[item]; }
    [[nodiscard]] const std::vector<std::uint8_t>& placement() const { return placement_; }
    // Gains of single moves are up to date from `begin_pass` to the next `reset` or `move`.
    struct Move {
        std::int32_t item = -1;
        std::uint8_t device = 0;
        double score = 0;  // after it
    };
    void begin_pass();
    // The move that leads to the lowest score among items that have not moved in this pass; item -1 where none is left.
    [[nodiscard]] Move best_move() const;
    // Moves the item, locks it for the rest of the pass and updates its neighbours' gains. Returns items looked at.
    std::int32_t move_in_pass(std::int32_t item, std::uint8_t device);

private:
    [[nodiscard]] double power(double busy) const;
    // Bytes of an item on the device that it leaves and on the one that it enters.
    [[nodiscard]] std::pair<double, double> weights_of(std::int32_t item, std::uint8_t from, std::uint8_t to) const;
    [[nodiscard]] double penalty_of(std::uint8_t device, double weight) const;
    [[nodiscard]] double penalty_after(std::int32_t item, std::uint8_t to) const;
    // Adds to `busy` [width_] what moving the item would change.
    void add_change(std::int32_t item, std::uint8_t to, double* busy) const;
    void add_transfer(std::int32_t tensor, std::uint8_t from, std::uint8_t to, double sign, double* busy) const;
    void update_gains(std::int32_t item);

    const AdditiveModel& model_;
    bool throughput_;
    std::size_t devices_;
    std::size_t width_;  // numbers that make up the cost: one for latency, one per device for throughput
    std::vector<std::uint8_t> placement_;  // [items]
    std::vector<std::int32_t> count_;      // [tensors, devices] consumers on each device
    std::vector<double> busy_;             // [width]
    std::vector<double> weight_;           // [devices]
    std::vector<double> surcharge_, reserved_, change_;
    double penalty_ = 0;
    double penalty_per_byte_ = 0;
    bool limited_ = false;
    double scale_ = 1.0;  // of work and penalties within scores
    int doublings_ = 0;

    std::vector<double> gain_;           // [items, devices, width]
    std::vector<std::uint8_t> locked_;   // [items]
    std::vector<std::int32_t> touched_;  // [items] last update that saw the item
    std::vector<std::int32_t> free_;     // items that have not moved in this pass
    std::vector<std::int32_t> free_at_;  // [items] their places there
    std::int32_t updates_ = 0;
};

}  // namespace ov_hsdag
