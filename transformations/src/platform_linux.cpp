#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <string_view>

#include "platform.hpp"

namespace ov_hsdag {

std::string library_of(const void* address) {
    Dl_info info{};
    return dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

std::string openvino_release(const void* address) {
    const std::string library = library_of(address);
    const std::string name = "libopenvino.so.";
    const std::size_t at = library.rfind(name);
    return at == std::string::npos ? "" : library.substr(at + name.size());
}

void* find_function(const std::string& library, const char* function, std::string& reason) {
    void* loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    void* found = loaded == nullptr ? nullptr : dlsym(loaded, function);
    if (found == nullptr) {
        const char* said = dlerror();
        reason = said == nullptr ? "" : said;
    }
    return found;
}

std::size_t entries_of_table(const void* table, const char* mangled) {
    Dl_info info{};
    void* found = nullptr;
    if (dladdr1(table, &info, &found, RTLD_DL_SYMENT) == 0 || info.dli_sname == nullptr || found == nullptr ||
        std::string_view(info.dli_sname) != mangled) {
        return 0;
    }
    return static_cast<const ElfW(Sym)*>(found)->st_size / sizeof(void*);
}

}  // namespace ov_hsdag
