// The ways to change a placement, of which `perturb` draws one. Random numbers are taken modulo a size, so that
// results are the same with every standard library.
#include "perturb.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace ov_hsdag {
namespace {

// Changes one placement. A "part of the order" is a range of positions in the model's order of items.
class Perturbation {
public:
    Perturbation(Placement& placement, const AdditiveModel& model, std::mt19937_64& random)
        : placement_(placement),
          model_(model),
          random_(random),
          items_(static_cast<std::uint64_t>(model.items)),
          devices_(static_cast<std::uint64_t>(model.devices)) {}

    // Takes a part of the order from the other placement.
    void recombine(const Placement& other) {
        const std::uint64_t a = draw(items_);
        const std::uint64_t b = a + 1 + draw(items_);
        for (std::uint64_t k = a; k < b; ++k) put(k % items_, other[item(k % items_)]);
    }

    // Moves one to three parts of the order, each to a random device.
    void move_parts() {
        const std::uint64_t times = 1 + draw(3);
        for (std::uint64_t i = 0; i < times; ++i) {
            const std::uint64_t begin = draw(items_);
            const std::uint64_t length = 1 + draw_length();
            const std::uint8_t device = draw_device();
            for (std::uint64_t k = begin; k < std::min(begin + length, items_); ++k) put(k, device);
        }
    }

    // Divides the order into consecutive stages for the devices, which come in random order.
    void make_stages() {
        std::vector<std::uint64_t> cuts;
        for (std::uint64_t d = 1; d < std::min<std::uint64_t>(devices_, 8); ++d) cuts.push_back(draw(items_));
        std::sort(cuts.begin(), cuts.end());
        std::vector<std::uint8_t> device(static_cast<std::size_t>(devices_));
        std::iota(device.begin(), device.end(), std::uint8_t{0});
        for (std::size_t i = device.size(); i > 1; --i) std::swap(device[i - 1], device[draw(i)]);
        for (std::uint64_t k = 0; k < items_; ++k) {
            put(k, device[static_cast<std::size_t>(std::upper_bound(cuts.begin(), cuts.end(), k) - cuts.begin())]);
        }
    }

    // Swaps two devices in a part of the order.
    void swap_devices() {
        const std::uint8_t a = draw_device();
        const std::uint8_t b = draw_device();
        const std::uint64_t begin = draw(items_);
        const std::uint64_t end = begin + 1 + draw(items_ - begin);
        for (std::uint64_t k = begin; k < end; ++k) {
            const std::uint8_t device = placement_[item(k)];
            put(k, device == a ? b : device == b ? a : device);
        }
    }

private:
    // A random number from 0 to below - 1.
    std::uint64_t draw(std::uint64_t below) { return random_() % below; }
    std::uint8_t draw_device() { return static_cast<std::uint8_t>(draw(devices_)); }

    // Draws a length of at most a ninth to a half of all items.
    std::uint64_t draw_length() {
        const std::uint64_t number = random_();
        return number % (1 + items_ / (2 + random_() % 8));
    }

    // The item at position k of the order.
    [[nodiscard]] std::size_t item(std::uint64_t k) const { return static_cast<std::size_t>(model_.order[k]); }

    // Moves the item at position k to a device, unless the device does not support it.
    void put(std::uint64_t k, std::uint8_t device) {
        if (model_.supports(model_.order[k], device)) placement_[item(k)] = device;
    }

    Placement& placement_;
    const AdditiveModel& model_;
    std::mt19937_64& random_;
    std::uint64_t items_, devices_;
};

}  // namespace

void perturb(Placement& placement, const Placement& other, const AdditiveModel& model, std::mt19937_64& random) {
    Perturbation change(placement, model, random);
    const std::uint64_t kind = random() % 5;
    if (kind == 0 && placement != other) {
        change.recombine(other);
    } else if (kind <= 2) {
        change.move_parts();
    } else if (kind == 3) {
        change.make_stages();
    } else {
        change.swap_devices();
    }
}

}  // namespace ov_hsdag
