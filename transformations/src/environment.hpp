// What the environment says: the variables of the Python package, and one of the library's own.
#pragma once

#include <string>
#include <vector>

namespace ov_hsdag {

// OV_HSDAG_DISABLE is set to anything but "" and "0": placed models are ordinary models.
bool disabled();

// OV_HSDAG_DEVICE=HETERO:GPU,CPU: the devices on which models that the extension library reads follow their placements.
// None where it leaves them open.
std::vector<std::string> devices_for_reading();

// The names in OV_HSDAG_VIRTUAL_DEVICES, which Python registers.
std::vector<std::string> virtual_devices();

}  // namespace ov_hsdag
