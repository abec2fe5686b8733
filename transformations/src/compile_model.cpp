// Compiles a clone with affinities. The devices that exist and are in the list are used; without any, or without a
// readable placement, the model is compiled without affinities.
#include "ov_hsdag/compile_model.hpp"

#include <algorithm>
#include <exception>
#include <vector>

#include "environment.hpp"
#include "openvino/runtime/properties.hpp"
#include "stored_placement.hpp"

namespace ov_hsdag {
namespace {

// Whether the Core has a device, that is, knows its full name.
bool has_device(ov::Core& core, const std::string& device) {
    try {
        core.get_property(device, ov::device::full_name);
    } catch (const std::exception&) {  // a missing driver, plugin or device
        return false;
    }
    return true;
}

// The devices that the call, its properties or the Core name for HETERO; empty if none of them does.
std::vector<std::string> requested(ov::Core& core, const std::string& device, const ov::AnyMap& properties) {
    std::vector<std::string> names = hetero_devices(device);
    if (!names.empty()) return names;
    const auto given = properties.find(ov::device::priorities.name());
    if (given != properties.end()) return device_list(given->second.as<std::string>());
    try {
        return device_list(core.get_property("HETERO", ov::device::priorities));
    } catch (const std::exception&) {  // not every release has the property
        return {};
    }
}

}  // namespace

ov::CompiledModel compile_model(ov::Core& core, const std::shared_ptr<const ov::Model>& model,
                                const std::string& device, const ov::AnyMap& properties) {
    if (device.substr(0, device.find(':')) != "HETERO" || disabled()) {
        return core.compile_model(model, device, properties);
    }
    const std::shared_ptr<ov::Model> placed = model->clone();
    std::vector<std::string> devices;
    try {
        StoredPlacement placement = StoredPlacement::of(*model);
        if (placement.devices.empty()) return core.compile_model(model, device, properties);
        std::vector<std::string> names = requested(core, device, properties);
        if (names.empty()) names = placement.devices;
        for (const std::string& name : names) {
            if (has_device(core, name)) {
                devices.push_back(name);
            } else if (!placement.has(name)) {
                say(name + " is not available here and is left out");
            }
        }
        // If no device is left, compiling below throws OpenVINO's error about the missing ones.
        if (!devices.empty()) placement.map_to(devices).apply(placed);
    } catch (const std::exception& error) {
        say(std::string("the model is compiled without its placement: ") + error.what());
        devices.clear();
    }
    if (devices.empty()) {
        for (const auto& node : placed->get_ops()) node->get_rt_info().erase(kAffinity);
        return core.compile_model(placed, device, properties);
    }
    ov::AnyMap others = properties;
    others.erase(ov::device::priorities.name());  // the device string has the list of devices
    return core.compile_model(placed, "HETERO:" + joined(devices, ","), others);
}

std::uint32_t requests_in_flight(const ov::CompiledModel& compiled) {
    // These numbers are the same as in ov_hsdag.devices.requests.
    constexpr std::uint32_t kPerDevice = 3;
    constexpr std::uint32_t kPerSubmodel = 2;
    constexpr std::uint32_t kMost = 16;
    const std::uint32_t reported = compiled.get_property(ov::optimal_number_of_infer_requests);
    const auto devices = static_cast<std::uint32_t>(compiled.get_property(ov::execution_devices).size());
    if (devices < 2) return reported;
    // HETERO's count is too low, even negative, once its Core has compiled an unplaced model with unused inputs.
    const auto counted = compiled.get_property("HETERO_NUMBER_OF_SUBMODELS").as<std::uint64_t>();
    const auto submodels =
        static_cast<std::uint32_t>(counted < (1u << 31) ? std::min<std::uint64_t>(counted, kMost) : 0);
    return std::max({reported, kPerDevice * devices, std::min(kPerSubmodel * submodels, kMost)});
}

}  // namespace ov_hsdag
