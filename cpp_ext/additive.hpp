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
    std::vector<std::int32_t> port;            // [tensors] output port of the graph; empty in coarser models
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
    std::vector<double> transfer_share;        // [devices] of its time, in which a device is busy with a transfer
    std::vector<std::int64_t> memory_limit;    // [devices] negative: none

    // item: [nodes] dense numbers. node_order: [nodes] topological; items and tensors are in the order of their nodes.
    AdditiveModel(const Problem& problem, std::span<const std::int32_t> item, std::span<const std::int32_t> node_order);
    // A coarser model. item: [items of the finer] dense numbers. at: [coarse items] their order. kept: set to the finer
    // model's number of each tensor.
    AdditiveModel(const AdditiveModel& finer, std::span<const std::int32_t> item, std::vector<std::int32_t> at,
                  std::vector<std::int32_t>& kept);

    [[nodiscard]] std::int32_t tensors() const { return static_cast<std::int32_t>(source.size()); }
    // The device that runs an item in the least time; the first where none does.
    [[nodiscard]] std::uint8_t fastest(std::int32_t item) const;
    // Moves items whose device does not support them to the fastest. placement: [items]
    void make_supported(std::vector<std::uint8_t>& placement) const;
    // Coarse items where most of a finer placement's time is spent: `votes` of the finer level, `summed` to a coarser
    // one, are what `elected` goes by, which takes devices that support the items. [items, devices]
    [[nodiscard]] std::vector<double> votes(const std::vector<std::uint8_t>& placement) const;
    [[nodiscard]] std::vector<double> summed(const std::vector<double>& votes,
                                             const std::vector<std::int32_t>& item_of) const;
    [[nodiscard]] std::vector<std::uint8_t> elected(const std::vector<double>& votes) const;
    [[nodiscard]] bool supports(std::int32_t item, std::size_t device) const {
        return supported[static_cast<std::size_t>(item) * static_cast<std::size_t>(devices) + device] != 0;
    }

private:
    void index_tensors();
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
    // The score after a move, which is not made.
    [[nodiscard]] double score_after(std::int32_t item, std::uint8_t device) const;
    // What `may_pay` goes by, from the present work of the devices.
    void update_prices();
    // Whether moving an item alone may pay: a tensor of it is moved already, or it runs so much faster elsewhere that
    // one transfer is paid.
    [[nodiscard]] bool may_pay(std::int32_t item) const;

private:
    [[nodiscard]] double power(double busy) const;
    // Bytes of an item on the device that it leaves and on the one that it enters.
    [[nodiscard]] std::pair<double, double> weights_of(std::int32_t item, std::uint8_t from, std::uint8_t to) const;
    [[nodiscard]] double penalty_of(std::uint8_t device, double weight) const;
    [[nodiscard]] double penalty_after(std::int32_t item, std::uint8_t to) const;
    // Adds to `busy` [width_] what moving the item would change.
    void add_change(std::int32_t item, std::uint8_t to, double* busy) const;
    void add_transfer(std::int32_t tensor, std::uint8_t from, std::uint8_t to, double sign, double* busy) const;

    const AdditiveModel& model_;
    bool throughput_;
    std::size_t devices_;
    std::size_t width_;  // numbers that make up the cost: one for latency, one per device for throughput
    std::vector<std::uint8_t> placement_;  // [items]
    std::vector<std::int32_t> count_;      // [tensors, devices] consumers on each device
    std::vector<double> busy_;             // [width]
    std::vector<double> weight_;           // [devices]
    std::vector<double> surcharge_, reserved_;
    mutable std::vector<double> after_;  // [width] scratch
    double penalty_ = 0;
    double penalty_per_byte_ = 0;
    bool limited_ = false;
    std::vector<double> price_;  // [width]
    double scale_ = 1.0;         // of work and penalties within scores
    int doublings_ = 0;
};

}  // namespace ov_hsdag
