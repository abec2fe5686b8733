// Environment variables are read at each call, as programs may change them.
#include "environment.hpp"

#include <cstdlib>
#include <sstream>

#include "stored_placement.hpp"

namespace ov_hsdag {
namespace {

// The value of an environment variable; "" if it is not set.
std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
}

}  // namespace

bool disabled() {
    const std::string value = variable("OV_HSDAG_DISABLE");
    return !value.empty() && value != "0";
}

std::vector<std::string> devices_for_reading() { return hetero_devices(variable("OV_HSDAG_DEVICE")); }

std::vector<std::string> virtual_devices() {
    std::vector<std::string> names;
    std::istringstream entries(variable("OV_HSDAG_VIRTUAL_DEVICES"));
    for (std::string entry; std::getline(entries, entry, ';');) {
        for (std::string& name : device_list(entry.substr(0, entry.find(':')))) names.push_back(std::move(name));
    }
    return names;
}

}  // namespace ov_hsdag
