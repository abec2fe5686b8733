// Reads environment variables: those of the Python package, and one of the library.
#pragma once

#include <string>
#include <vector>

namespace ov_hsdag {

// Whether OV_HSDAG_DISABLE is set to anything but "" and "0", so that placements are ignored.
bool disabled();

// The devices in OV_HSDAG_DEVICE, such as HETERO:GPU,CPU, on which models that the extension library reads follow their
// placements. Empty if the variable names none.
std::vector<std::string> devices_for_reading();

// The names in OV_HSDAG_VIRTUAL_DEVICES, which the Python package registers as devices.
std::vector<std::string> virtual_devices();

}  // namespace ov_hsdag
