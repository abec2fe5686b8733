// The pass reads the placement in the model, maps it to the devices of its argument, and applies it.
#include "ov_hsdag/apply_placement.hpp"

#include <stdexcept>

#include "environment.hpp"
#include "openvino/core/except.hpp"
#include "stored_placement.hpp"

namespace ov_hsdag {

ApplyPlacement::ApplyPlacement(const std::string& device) : devices_(hetero_devices(device)) {}

bool ApplyPlacement::run_on_model(const std::shared_ptr<ov::Model>& model) {
    if (disabled()) return false;
    StoredPlacement placement;
    try {
        placement = StoredPlacement::of(*model);
        if (placement.devices.empty()) return false;
        if (!devices_.empty()) placement = placement.map_to(devices_);
    } catch (const std::invalid_argument& error) {
        OPENVINO_THROW("ov_hsdag: ", error.what());
    }
    placement.apply(model);
    return true;
}

std::vector<std::string> ApplyPlacement::devices_of(const std::shared_ptr<const ov::Model>& model) {
    try {
        return StoredPlacement::of(*model).devices;
    } catch (const std::invalid_argument& error) {
        OPENVINO_THROW("ov_hsdag: ", error.what());
    }
}

}  // namespace ov_hsdag
