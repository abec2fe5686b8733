// Reads the formats of stored placements, maps placements to available devices, and prints messages.
#include "stored_placement.hpp"

#include <algorithm>
#include <iostream>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>

#include "json.hpp"

namespace ov_hsdag {
namespace {

constexpr const char* kEntry = "ov_hsdag";  // key of the placement in a model's rt_info

// The text of a field of the placement in a model's rt_info; throws if there is none.
std::string text_of(const ov::Model& model, const char* key) {
    return model.get_rt_info<std::string>(std::string(kEntry), std::string(key));
}

// The kind of a device: "GPU" for "GPU.1".
std::string kind_of(const std::string& device) { return device.substr(0, device.find('.')); }

bool contains(const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

// Whether two names mean the same device; "GPU" is "GPU.0".
bool same_device(const std::string& a, const std::string& b) {
    return a == b || (kind_of(a) == kind_of(b) && (a == kind_of(a) || b == kind_of(b)) &&
                      (a == kind_of(a) + ".0" || b == kind_of(b) + ".0"));
}

}  // namespace

std::string joined(const std::vector<std::string>& names, const std::string& separator) {
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : separator) + name;
    return text;
}

bool StoredPlacement::is_in(const ov::Model& model) { return model.has_rt_info(std::string(kEntry)); }

StoredPlacement StoredPlacement::of(const ov::Model& model) {
    StoredPlacement placement;
    if (!is_in(model)) return placement;
    try {
        const std::string version = text_of(model, "version");
        if (std::stoi(version) > kVersion) {
            throw std::invalid_argument("it has version " + version + ", this library reads up to " +
                                        std::to_string(kVersion));
        }
        placement.devices = parse_list(text_of(model, "devices"));
        if (placement.devices.size() > kMostDevices)
            throw std::invalid_argument("it lists more devices than there are");
        const std::int32_t usual = placement.number_of(text_of(model, "default"));
        for (const auto& [device, names] : parse_lists(text_of(model, "exceptions"))) {
            const std::int32_t number = placement.number_of(device);
            if (number < 0) throw std::invalid_argument("it uses a device that it does not list: " + device);
            for (const std::string& name : names) placement.numbers[name] = static_cast<std::uint8_t>(number);
        }
        if (usual < 0) throw std::invalid_argument("its default device is not among its devices");
        if (model.has_rt_info(std::string(kEntry), std::string("default_nodes"))) {
            for (const std::string& name : parse_list(text_of(model, "default_nodes"))) {
                placement.numbers[name] = static_cast<std::uint8_t>(usual);
            }
        } else {  // a tool that writes only the required parts of the format
            for (const auto& node : model.get_ops()) {
                placement.numbers.emplace(node->get_friendly_name(), static_cast<std::uint8_t>(usual));
            }
        }
    } catch (const std::exception& error) {
        throw std::invalid_argument(std::string("the model's embedded placement cannot be read: ") + error.what());
    }
    return placement;
}

StoredPlacement StoredPlacement::of_tag(std::string_view text) {
    StoredPlacement placement;
    std::map<std::string, StringList> entries;
    for (auto& [key, values] : parse_lists(text)) entries[key] = std::move(values);
    placement.devices = entries["devices"];
    if (placement.devices.empty()) throw std::invalid_argument("it lists no devices");
    if (placement.devices.size() > kMostDevices) throw std::invalid_argument("it lists more devices than there are");
    for (std::size_t number = 0; number < placement.devices.size(); ++number) {
        for (const std::string& name : entries["on " + std::to_string(number)]) {
            placement.numbers[name] = static_cast<std::uint8_t>(number);
        }
    }
    return placement;
}

StoredPlacement StoredPlacement::map_to(const std::vector<std::string>& available) const {
    StoredPlacement mapped;
    for (const std::string& name : available) {
        if (!contains(mapped.devices, name)) mapped.devices.push_back(name);
    }
    if (mapped.devices.size() > kMostDevices) throw std::invalid_argument("more devices are named than there are");
    const std::vector<std::string>& targets = mapped.devices;
    if (targets.empty()) throw std::invalid_argument("none of the devices " + joined(devices, ", ") + " is available");
    std::vector<std::int64_t> nodes(devices.size(), 0);
    for (const auto& [name, number] : numbers) ++nodes[number];
    std::set<std::string> used;  // targets that have nodes already
    for (std::size_t number = 0; number < devices.size(); ++number) {
        if (nodes[number] > 0 && contains(targets, devices[number])) used.insert(devices[number]);
    }
    std::vector<std::uint8_t> target_of(devices.size(), 0);
    for (std::size_t number = 0; number < devices.size(); ++number) {
        const std::string& device = devices[number];
        std::string target = device;
        if (!contains(targets, device)) {
            if (nodes[number] == 0) continue;
            const auto twin = std::find_if(targets.begin(), targets.end(), [&](const std::string& name) {
                return kind_of(name) == kind_of(device) && used.count(name) == 0;
            });
            if (twin != targets.end()) {
                target = *twin;
                used.insert(target);
            } else {
                // Later devices in the placement's list come first, then those only in the requested list, then earlier
                // ones.
                std::vector<std::string> ranked(devices.begin() + static_cast<std::ptrdiff_t>(number) + 1,
                                                devices.end());
                for (const std::string& name : targets) {
                    if (!contains(devices, name)) ranked.push_back(name);
                }
                ranked.insert(ranked.end(), devices.begin(), devices.begin() + static_cast<std::ptrdiff_t>(number));
                target = *std::find_if(ranked.begin(), ranked.end(),
                                       [&](const std::string& name) { return contains(targets, name); });
            }
            if (!same_device(device, target)) {
                say("the placement uses " + device + ", which is not among the devices here (" + joined(targets, ", ") +
                    "); its nodes run: " + std::to_string(nodes[number]) + " on " + target);
            }
        }
        target_of[number] = static_cast<std::uint8_t>(mapped.number_of(target));
    }
    for (const auto& [name, number] : numbers) mapped.numbers.emplace(name, target_of[number]);
    return mapped;
}

void StoredPlacement::apply(const std::shared_ptr<ov::Model>& model) const {
    const DeviceOfNode device = complete(model, known(), static_cast<std::int32_t>(devices.size()));
    for (const auto& node : model->get_ops()) node->get_rt_info()[kAffinity] = devices[device.at(node.get())];
}

KnownDevice StoredPlacement::known() const {
    return [this](const ov::Node& node) -> std::int32_t {
        const auto& rt_info = node.get_rt_info();
        const auto affinity = rt_info.find(kAffinity);
        if (affinity != rt_info.end() && affinity->second.is<std::string>()) {
            const std::int32_t number = number_of(affinity->second.as<std::string>());
            if (number >= 0) return number;
        }
        const auto stored = numbers.find(node.get_friendly_name());
        return stored == numbers.end() ? -1 : stored->second;
    };
}

std::int32_t StoredPlacement::number_of(const std::string& device) const {
    const auto found = std::find(devices.begin(), devices.end(), device);
    return found == devices.end() ? -1 : static_cast<std::int32_t>(found - devices.begin());
}

std::vector<std::string> device_list(const std::string& text) {
    std::vector<std::string> names;
    const std::size_t colon = text.find(':');
    std::string name;
    for (const char c : (colon == std::string::npos ? text : text.substr(colon + 1)) + ",") {
        if (c != ',') {
            if (c != ' ') name += c;
        } else if (!name.empty()) {
            names.push_back(std::move(name));
            name.clear();
        }
    }
    return names;
}

std::vector<std::string> hetero_devices(const std::string& device) {
    return device == "HETERO" ? std::vector<std::string>{} : device_list(device);
}

void say(const std::string& text) {
    std::string line = "ov_hsdag: " + text;
    // Control characters in names could command the terminal.
    for (char& c : line) {
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
    }
    std::cerr << line + "\n" << std::flush;
}

void say_once(const std::string& text) {
    static std::mutex mutex;
    static std::set<std::string> said;
    const std::lock_guard lock(mutex);
    if (said.insert(text).second) say(text);
}

bool has_affinity(const ov::Node& node) { return node.get_rt_info().count(kAffinity) != 0; }

std::string affinity_of(const ov::Node& node) { return node.get_rt_info().at(kAffinity).as<std::string>(); }

}  // namespace ov_hsdag
