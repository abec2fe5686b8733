// libov_hsdag_extension.so, which programs pass to ov::Core::add_extension and `benchmark_app -extensions`.
//
// Compiled C++ code fits only one release of OpenVINO, so this library does not use OpenVINO. It loads the part that
// was built for the OpenVINO that calls it (libov_hsdag_extension.so.2641 for libopenvino.so.2641), or throws an error
// if there is none.
#include <stdexcept>
#include <string>

#include "platform.hpp"

namespace {

using Create = void (*)(void*);

// Loads the part for the OpenVINO that contains the caller's address, and returns its function. Throws
// std::runtime_error if there is no part for that release.
Create load(const void* caller) {
    const std::string here = ov_hsdag::library_of(reinterpret_cast<const void*>(&load));
    const std::string part = here + "." + ov_hsdag::openvino_release(caller);
    // The part stays loaded, as models that were read with it may outlive the Core.
    std::string reason;
    void* create = ov_hsdag::find_function(part, "ov_hsdag_create_extensions", reason);
    if (create == nullptr) {
        throw std::runtime_error(
            "ov_hsdag: " + here + " was not built for the OpenVINO of this program (" + ov_hsdag::library_of(caller) +
            "); in a Python environment with that release, run: ov-hsdag extension --build [" + reason + "]");
    }
    return reinterpret_cast<Create>(create);
}

}  // namespace

// OpenVINO's entry point, which fills a std::vector<ov::Extension::Ptr>&.
OV_HSDAG_EXPORT void create_extensions(void* extensions) { load(OV_HSDAG_CALLER)(extensions); }
