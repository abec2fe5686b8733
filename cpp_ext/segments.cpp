// Runs the items in a topological order, segment by segment. What an item waits for is counted in tensors.
#include "segments.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace ov_hsdag {
namespace {

// A placement that is made segment by segment.
class Segments {
public:
    explicit Segments(const AdditiveModel& model)
        : model_(model),
          placement_(static_cast<std::size_t>(model.items)),
          placed_(static_cast<std::size_t>(model.items), 0),
          waits_(static_cast<std::size_t>(model.items)),
          waits_after_(static_cast<std::size_t>(model.items)) {
        for (std::int32_t item = 0; item < model.items; ++item) {
            waits_[item] = model.received_ptr[item + 1] - model.received_ptr[item];
            placement_[item] = model.fastest(item);
            if (waits_[item] == 0) ready_.push_back(item);
        }
    }

    // The items that are ready and those that become so when a device runs all that it can, in topological order.
    [[nodiscard]] std::vector<std::int32_t> runnable(std::size_t device) {
        std::vector<std::int32_t> items;
        std::vector<std::int32_t> changed;
        for (const std::int32_t item : ready_) {
            if (model_.supports(item, device)) items.push_back(item);
        }
        for (std::size_t next = 0; next < items.size(); ++next) {
            for_each_reader(items[next], [&](std::int32_t reader) {
                if (waits_after_[reader] == 0) {
                    waits_after_[reader] = waits_[reader];
                    changed.push_back(reader);
                }
                if (--waits_after_[reader] == 0 && model_.supports(reader, device)) items.push_back(reader);
            });
        }
        for (const std::int32_t item : changed) waits_after_[item] = 0;
        return items;
    }

    // Of items in topological order, those that `device` does not support and those that run before them.
    [[nodiscard]] std::vector<std::int32_t> needed(const std::vector<std::int32_t>& items, std::size_t device) const {
        std::vector<std::uint8_t> keeps(placed_.size(), 0);
        std::vector<std::int32_t> kept;
        for (std::size_t next = items.size(); next-- > 0;) {
            const std::int32_t item = items[next];
            bool keep = !model_.supports(item, device);
            for_each_reader(item, [&](std::int32_t reader) { keep = keep || keeps[reader] != 0; });
            if (!keep) continue;
            keeps[item] = 1;
            kept.push_back(item);
        }
        std::reverse(kept.begin(), kept.end());
        return kept;
    }

    // Adds a segment: items in topological order, on a device.
    void add(const std::vector<std::int32_t>& items, std::size_t device) {
        for (const std::int32_t item : items) {
            placement_[item] = static_cast<std::uint8_t>(device);
            placed_[item] = 1;
            for_each_reader(item, [&](std::int32_t reader) {
                if (--waits_[reader] == 0) ready_.push_back(reader);
            });
        }
        std::erase_if(ready_, [&](std::int32_t item) { return placed_[item] != 0; });
    }

    [[nodiscard]] bool done() const { return ready_.empty(); }
    [[nodiscard]] Placement placement() const { return placement_; }

private:
    // Calls visit(item) for each item that reads a tensor of an item, once for each tensor.
    template <typename Visit>
    void for_each_reader(std::int32_t item, Visit visit) const {
        for (std::int32_t p = model_.produced_ptr[item]; p < model_.produced_ptr[item + 1]; ++p) {
            const std::int32_t tensor = model_.produced[p];
            for (std::int32_t c = model_.consumer_ptr[tensor]; c < model_.consumer_ptr[tensor + 1]; ++c) {
                visit(model_.consumer[c]);
            }
        }
    }

    const AdditiveModel& model_;
    Placement placement_;                    // [items]
    std::vector<std::uint8_t> placed_;       // [items] whether the item is in a segment
    std::vector<std::int32_t> waits_;        // [items] number of tensors that the item still waits for
    std::vector<std::int32_t> waits_after_;  // [items] the same within `runnable`; 0 between its calls
    std::vector<std::int32_t> ready_;        // items that wait for nothing and are in no segment yet
};

// Each segment has all that its device can run; `device` begins.
Placement all_that_run(const AdditiveModel& model, std::size_t device) {
    Segments segments(model);
    std::vector<std::int32_t> items = segments.runnable(device);
    while (!segments.done()) {
        segments.add(items, device);
        items.clear();
        for (std::size_t d = 0; d < static_cast<std::size_t>(model.devices); ++d) {
            std::vector<std::int32_t> others = segments.runnable(d);
            if (others.size() <= items.size()) continue;
            items = std::move(others);
            device = d;
        }
        if (items.empty()) break;  // no device supports what is ready
    }
    return segments.placement();
}

// Every other segment is that of `device`, and the others have only what it needs.
Placement mostly_on(const AdditiveModel& model, std::size_t device) {
    Segments segments(model);
    while (true) {
        segments.add(segments.runnable(device), device);
        std::vector<std::int32_t> items;
        std::size_t most = 0;
        std::size_t other = device;
        for (std::size_t d = 0; d < static_cast<std::size_t>(model.devices); ++d) {
            const std::vector<std::int32_t> all = segments.runnable(d);
            const auto lacking = static_cast<std::size_t>(std::count_if(
                all.begin(), all.end(), [&](std::int32_t item) { return !model.supports(item, device); }));
            if (lacking <= most) continue;
            items = segments.needed(all, device);
            most = lacking;
            other = d;
        }
        if (items.empty()) return segments.placement();
        segments.add(items, other);
    }
}

}  // namespace

std::vector<Placement> segment_placements(const AdditiveModel& model) {
    std::vector<Placement> placements;
    for (std::size_t device = 0; device < static_cast<std::size_t>(model.devices); ++device) {
        for (const Placement& placement : {all_that_run(model, device), mostly_on(model, device)}) {
            if (std::find(placements.begin(), placements.end(), placement) != placements.end()) continue;
            placements.push_back(placement);
        }
    }
    return placements;
}

}  // namespace ov_hsdag
