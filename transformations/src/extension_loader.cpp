// libov_hsdag_extension.so: what programs give to ov::Core::add_extension and `benchmark_app -extensions`.
//
// C++ code belongs to one release of OpenVINO, so this library uses none of it: it loads the part that was built for
// the OpenVINO that calls it (libov_hsdag_extension.so.2641 for libopenvino.so.2641), or says that there is none.
#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace {

std::string path_of(const void* address) {
    Dl_info info{};
    return dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

// "2641" of ".../libopenvino.so.2641"; "" of anything else.
std::string release_of(const std::string& library) {
    const std::string name = "libopenvino.so.";
    const std::size_t at = library.rfind(name);
    return at == std::string::npos ? "" : library.substr(at + name.size());
}

using Create = void (*)(void*);

Create load(const std::string& caller) {
    const std::string here = path_of(reinterpret_cast<const void*>(&load));
    const std::string part = here + "." + release_of(caller);
    // It stays loaded: models that were read with it may outlive the Core.
    void* library = dlopen(part.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) {
        const char* reason = dlerror();
        throw std::runtime_error("ov_hsdag: " + here + " was not built for the OpenVINO of this program (" + caller +
                                 "); in a Python environment with that release, run: ov-hsdag extension --build [" +
                                 (reason == nullptr ? "" : reason) + "]");
    }
    return reinterpret_cast<Create>(dlsym(library, "ov_hsdag_create_extensions"));
}

}  // namespace

// OpenVINO's entry point, which fills a std::vector<ov::Extension::Ptr>&.
extern "C" __attribute__((visibility("default"))) void create_extensions(void* extensions) {
    load(path_of(__builtin_return_address(0)))(extensions);
}
