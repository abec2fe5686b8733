// The additive cost model: times of nodes, transfers and broken fusions, without HETERO's split into submodels.
//
// For a placement p it is
//
//     work(d)  = sum over items i on d of item_us(i, d)
//              + sum over fusions that d breaks of fusion_penalty_us + surcharge(d) for each tensor that d receives
//     moved(t, d) = transfer_us + transfer_us_per_byte * bytes(t), for each device d != p(source(t)) with a consumer
//     latency  = sum over devices of work + sum over t, d of moved
//     period   = maximum over devices of work + transfer_share * moved, for both ends of each transfer
//
// A local search can update it move by move. Only the simulator knows the submodels, for which `surcharge` stands.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "problem.hpp"

namespace ov_hsdag {

// Items are the units that a search moves: colocation groups, or coarse groups of them.
struct AdditiveModel {
    std::int32_t items = 0;
    std::int32_t devices = 0;
    std::vector<double> item_us;          // [items, devices] µs; the first item in order includes one submodel
    std::vector<std::uint8_t> supported;  // [items, devices]
    std::vector<std::int64_t> weight;     // [items, devices] bytes of constants and states
    std::vector<std::int32_t> order;      // [items] in the order in which their first operations run

    // Tensors with consumers in other items than their producer's.
    std::vector<std::int32_t> source;          // [tensors]
    std::vector<std::int32_t> port;            // [tensors] output port of the graph; empty in coarser models
    std::vector<double> bytes;                 // [tensors]
    std::vector<double> fusion_penalty_us;     // [tensors, devices] µs, if receiving the tensor breaks a fusion
    std::vector<std::int32_t> consumer_ptr;    // [tensors + 1]
    std::vector<std::int32_t> consumer;        // consuming items, each once per tensor
    std::vector<std::int32_t> produced_ptr;    // [items + 1]
    std::vector<std::int32_t> produced;        // tensors that leave the item, by item
    std::vector<std::int32_t> received_ptr;    // [items + 1]
    std::vector<std::int32_t> received;        // tensors that enter the item, by item
    std::vector<double> transfer_us;           // [devices, devices] µs, fixed part, from row to column
    std::vector<double> transfer_us_per_byte;  // [devices, devices]
    std::vector<double> transfer_share;        // [devices] share of a transfer's time that keeps the device busy
    std::vector<std::int64_t> memory_limit;    // [devices] bytes; negative: no limit

    // The model of a problem. item: item of each node, dense numbers, [nodes]. node_order: topological order of the
    // nodes, [nodes], which decides the order of items and tensors.
    AdditiveModel(const Problem& problem, std::span<const std::int32_t> item, std::span<const std::int32_t> node_order);
    // A coarser model. item: coarse item of each item of `finer`, dense numbers. at: the coarse items in order, [coarse
    // items]. kept: set to the number in `finer` of each tensor of this model; those within coarse items are left out.
    AdditiveModel(const AdditiveModel& finer, std::span<const std::int32_t> item, std::vector<std::int32_t> at,
                  std::vector<std::int32_t>& kept);

    [[nodiscard]] std::int32_t tensors() const { return static_cast<std::int32_t>(source.size()); }
    // The device that runs an item in the least time; the first device where none supports it.
    [[nodiscard]] std::uint8_t fastest(std::int32_t item) const;
    // Moves items whose device does not support them to the fastest. placement: [items]
    void make_supported(std::vector<std::uint8_t>& placement) const;
    // Translates a placement of a finer level into one of coarse items, each on the device where most of its time is
    // spent. `votes` are the times of a finer placement, [items, devices]; `summed` adds them up for coarse items;
    // `elected` chooses the device with the most among those that support the item.
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

// A placement of a model's items whose cost is kept up to date under moves.
class AdditiveState {
public:
    AdditiveState(const AdditiveModel& model, bool throughput);
    // Takes a placement, [items]. surcharge_us: µs that a device pays for each tensor that it receives, which stand for
    // submodels, [devices]. reserved: bytes of memory on each device that are not available to weights, [devices].
    void reset(const std::uint8_t* placement, std::span<const double> surcharge_us, std::span<const double> reserved);

    // The value to minimize. For latency it is in µs. For throughput it is the sum over devices of
    // (work / work of the busiest device at the time of `sharpen`)^(2^doublings); unlike the maximum, it distinguishes
    // moves that do not touch the busiest device. Both include a penalty for weights beyond the memory limits.
    [[nodiscard]] double score() const;
    // The objective itself with the penalty, µs: latency, or the work of the busiest device.
    [[nodiscard]] double us() const;
    // Sets the power of the score for throughput to 2^doublings. A higher power is closer to the maximum.
    void sharpen(int doublings);
    // Moves an item to a device and updates all sums.
    void move(std::int32_t item, std::uint8_t device);

    [[nodiscard]] std::uint8_t device(std::int32_t item) const { return placement_[item]; }
    [[nodiscard]] const std::vector<std::uint8_t>& placement() const { return placement_; }
    // The score after a move, without making it.
    [[nodiscard]] double score_after(std::int32_t item, std::uint8_t device) const;
    // Updates the prices of work that `may_pay` uses to the present work of the devices.
    void update_prices();
    // Whether moving an item alone may lower the score: one of its tensors crosses devices already, or it runs so much
    // faster on another device that this outweighs one transfer.
    [[nodiscard]] bool may_pay(std::int32_t item) const;

private:
    // The term of the score for one entry of busy_: (busy * scale_)^(2^doublings_).
    [[nodiscard]] double power(double busy) const;
    // Bytes of an item on the device `from` and on the device `to`.
    [[nodiscard]] std::pair<double, double> weights_of(std::int32_t item, std::uint8_t from, std::uint8_t to) const;
    // The penalty of a device with `weight` bytes of weights, µs: 0 within the memory limit.
    [[nodiscard]] double penalty_of(std::uint8_t device, double weight) const;
    // The sum of penalties after a move.
    [[nodiscard]] double penalty_after(std::int32_t item, std::uint8_t to) const;
    // Adds the changes by moving an item to `busy` [width_].
    void add_change(std::int32_t item, std::uint8_t to, double* busy) const;
    // Adds (sign 1) or subtracts (sign -1) the cost of a tensor's transfer to `busy` [width_].
    void add_transfer(std::int32_t tensor, std::uint8_t from, std::uint8_t to, double sign, double* busy) const;

    const AdditiveModel& model_;
    bool throughput_;
    std::size_t devices_;
    std::size_t width_;                         // length of busy_: 1 for latency, the number of devices for throughput
    std::vector<std::uint8_t> placement_;       // [items]
    std::vector<std::int32_t> count_;           // [tensors, devices] consumers on each device
    std::vector<double> busy_;                  // [width] µs
    std::vector<double> weight_;                // [devices] bytes
    std::vector<double> surcharge_, reserved_;  // [devices] see `reset`
    mutable std::vector<double> after_;         // [width] scratch
    double penalty_ = 0;                        // µs, sum of all penalties
    double penalty_per_byte_ = 0;               // µs for each byte beyond a memory limit
    bool limited_ = false;                      // whether any device has a memory limit
    std::vector<double> price_;                 // [width] derivative of the score by work, up to a common factor
    double scale_ = 1.0;                        // factor of work and penalties in scores
    int doublings_ = 0;                         // the power of the score is 2^doublings_
};

}  // namespace ov_hsdag
