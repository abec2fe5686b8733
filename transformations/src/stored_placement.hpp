// The placement that is stored in a model: in the model's rt_info as `ov-hsdag place` writes it, or in the tag of a
// Result, which OpenVINO also writes into the file (reading.hpp). Also small functions for device names, affinities and
// messages that the files here share.
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

// The newest version of the format that this code reads; it is ov_hsdag.model.placement.VERSION in Python.
inline constexpr int kVersion = 1;

inline constexpr std::size_t kMostDevices = 255;  // numbers of devices are stored as bytes

// The devices of a placement and the device of each named node.
class StoredPlacement {
public:
    std::vector<std::string> devices;                       // in HETERO's order
    std::unordered_map<std::string, std::uint8_t> numbers;  // friendly name of a node → number of its device

    // Whether the model's rt_info has a placement.
    static bool is_in(const ov::Model& model);
    // Reads the placement in the model's rt_info; it has no devices if there is none. Throws std::invalid_argument if
    // it cannot be read.
    static StoredPlacement of(const ov::Model& model);
    // Reads the placement in the tag of a Result: {"devices": […], "on 0": [names], "on 1": […]}. Throws as `of` does.
    static StoredPlacement of_tag(std::string_view text);

    // The placement with each device that is not among `available` replaced: by one of the same kind without nodes,
    // else by the next in the list. Prints a line for each. Throws std::invalid_argument if no device is left.
    [[nodiscard]] StoredPlacement map_to(const std::vector<std::string>& available) const;

    // Completes a model (complete_model.hpp), and sets the affinity of every node.
    void apply(const std::shared_ptr<ov::Model>& model) const;

    // Whether the placement lists a device.
    [[nodiscard]] bool has(const std::string& device) const { return number_of(device) >= 0; }

    // The function for complete() that finds a node's device by its affinity, else by its name. It keeps a reference to
    // the placement.
    [[nodiscard]] KnownDevice known() const;

private:
    // The index of a device in the list; -1 if it is not there.
    [[nodiscard]] std::int32_t number_of(const std::string& device) const;
};

// The names in "HETERO:GPU,CPU" or "GPU,CPU".
std::vector<std::string> device_list(const std::string& text);
// The names in a device string of HETERO; empty for "HETERO" alone.
std::vector<std::string> hetero_devices(const std::string& device);

// The names with a separator between them.
std::string joined(const std::vector<std::string>& names, const std::string& separator);

// Prints one line on standard error.
void say(const std::string& text);
// Prints a line, but only once in a process.
void say_once(const std::string& text);

inline constexpr const char* kAffinity = "affinity";  // HETERO's key in a node's rt_info

// Whether a node has an affinity, and the affinity of a node that has one.
bool has_affinity(const ov::Node& node);
std::string affinity_of(const ov::Node& node);

}  // namespace ov_hsdag
