// A placement as it travels with a model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "complete_model.hpp"
#include "openvino/core/model.hpp"

namespace ov_hsdag {

// The newest form of an embedded placement that this code reads; ov_hsdag.model.placement.VERSION.
inline constexpr int kVersion = 1;

inline constexpr std::size_t kMostDevices = 255;  // numbers of devices are bytes

class StoredPlacement {
public:
    std::vector<std::string> devices;                       // in HETERO's order
    std::unordered_map<std::string, std::uint8_t> numbers;  // friendly name of a node → number of its device

    // Whether the model's rt_info has one.
    static bool is_in(const ov::Model& model);
    // From the model's rt_info. None (no devices) where the model carries none. Throws std::invalid_argument where it
    // cannot be read.
    static StoredPlacement of(const ov::Model& model);
    // From the tag of a Result: {"devices": […], "on 0": [names], "on 1": […]}. Throws as above.
    static StoredPlacement of_tag(std::string_view text);

    // The placement with every device that is not among `available` replaced: by one of the same kind that has no
    // nodes yet, else by the next in the list. Prints a line for each. Throws std::invalid_argument where none is left.
    [[nodiscard]] StoredPlacement map_to(const std::vector<std::string>& available) const;

    // Sets the affinity of every node of a model, whose nodes are completed (complete_model.hpp).
    void apply(const std::shared_ptr<ov::Model>& model) const;

    [[nodiscard]] bool has(const std::string& device) const { return number_of(device) >= 0; }

    // For complete(): by the affinity that a node has, else by its name.
    [[nodiscard]] KnownDevice known() const;

private:
    [[nodiscard]] std::int32_t number_of(const std::string& device) const;
};

// "HETERO:GPU,CPU" (or "GPU,CPU") → names.
std::vector<std::string> device_list(const std::string& text);
// The same of a device string; none for "HETERO", which leaves the devices open.
std::vector<std::string> hetero_devices(const std::string& device);

std::string joined(const std::vector<std::string>& names, const std::string& separator);

// One line on standard error.
void say(const std::string& text);
// The same, once in a process.
void say_once(const std::string& text);

inline constexpr const char* kAffinity = "affinity";

bool has_affinity(const ov::Node& node);
std::string affinity_of(const ov::Node& node);

}  // namespace ov_hsdag
