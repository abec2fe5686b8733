// The functions for Linux: dladdr and dlopen, and the ELF tables of loaded libraries for redirect_import.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "platform.hpp"

namespace ov_hsdag {
namespace {

struct LoadedLibrary {
    std::string path;
    std::uintptr_t base = 0;                                // address at which it is loaded
    std::uintptr_t protected_begin = 0, protected_end = 0;  // the part that is read-only since the library was loaded
    const ElfW(Dyn) * dynamic = nullptr;                    // its dynamic section; null: none
};

// All libraries that this process has loaded.
std::vector<LoadedLibrary> loaded_libraries() {
    std::vector<LoadedLibrary> libraries;
    const auto add = [](dl_phdr_info* info, std::size_t, void* list) {
        LoadedLibrary library;
        library.path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
        library.base = info->dlpi_addr;
        for (ElfW(Half) number = 0; number < info->dlpi_phnum; ++number) {
            const ElfW(Phdr) & header = info->dlpi_phdr[number];
            if (header.p_type == PT_DYNAMIC)
                library.dynamic = reinterpret_cast<const ElfW(Dyn)*>(library.base + header.p_vaddr);
            if (header.p_type == PT_GNU_RELRO) {
                library.protected_begin = library.base + header.p_vaddr;
                library.protected_end = library.protected_begin + header.p_memsz;
            }
        }
        static_cast<std::vector<LoadedLibrary>*>(list)->push_back(std::move(library));
        return 0;
    };
    dl_iterate_phdr(add, &libraries);
    return libraries;
}

// An address or a size in a library's dynamic section; 0 if it has no such entry.
std::uintptr_t dynamic_entry(const LoadedLibrary& library, ElfW(Sxword) tag) {
    for (const ElfW(Dyn)* entry = library.dynamic; entry != nullptr && entry->d_tag != DT_NULL; ++entry) {
        if (entry->d_tag == tag) return entry->d_un.d_ptr;
    }
    return 0;
}

// An absolute address from a library's dynamic section. glibc has made these addresses absolute; other C libraries
// leave them relative to the library.
std::uintptr_t dynamic_address(const LoadedLibrary& library, ElfW(Sxword) tag) {
    const std::uintptr_t address = dynamic_entry(library, tag);
    return address != 0 && address < library.base ? library.base + address : address;
}

// The memory in which a library keeps the address of an imported function; null if it does not import the function.
void** import_slot(const LoadedLibrary& library, std::string_view mangled) {
    const auto* symbols = reinterpret_cast<const ElfW(Sym)*>(dynamic_address(library, DT_SYMTAB));
    const auto* names = reinterpret_cast<const char*>(dynamic_address(library, DT_STRTAB));
    if (symbols == nullptr || names == nullptr) return nullptr;
    const struct {
        ElfW(Sxword) table, size;
    } kinds[] = {{DT_JMPREL, DT_PLTRELSZ}, {DT_RELA, DT_RELASZ}};
    for (const auto& kind : kinds) {
        const auto* relocations = reinterpret_cast<const ElfW(Rela)*>(dynamic_address(library, kind.table));
        const std::size_t count = relocations == nullptr ? 0 : dynamic_entry(library, kind.size) / sizeof(ElfW(Rela));
        for (std::size_t number = 0; number < count; ++number) {
            const ElfW(Sym) & symbol = symbols[ELF64_R_SYM(relocations[number].r_info)];
            if (names + symbol.st_name == mangled)
                return reinterpret_cast<void**>(library.base + relocations[number].r_offset);
        }
    }
    return nullptr;
}

// Writes an import slot, whose page the loader may have protected after binding all functions (RELRO). Returns whether
// it could be written.
bool write_slot(const LoadedLibrary& library, void** slot, const void* value) {
    const auto address = reinterpret_cast<std::uintptr_t>(slot);
    const bool is_protected = address >= library.protected_begin && address < library.protected_end;
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    void* begin = reinterpret_cast<void*>(address / page * page);
    if (is_protected && mprotect(begin, page, PROT_READ | PROT_WRITE) != 0) return false;
    __atomic_store_n(slot, const_cast<void*>(value), __ATOMIC_RELEASE);
    if (is_protected) mprotect(begin, page, PROT_READ);
    return true;
}

}  // namespace

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

bool redirect_import(const char* library, const char* mangled, const void* function, const void* replacement) {
    bool redirected = false;
    for (const LoadedLibrary& loaded : loaded_libraries()) {
        if (loaded.path.find(library) == std::string::npos) continue;
        void** slot = import_slot(loaded, mangled);
        void* handle = dlopen(loaded.path.c_str(), RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
        if (slot != nullptr && handle != nullptr && dlsym(handle, mangled) == function) {
            redirected = write_slot(loaded, slot, replacement) || redirected;
        }
        if (handle != nullptr) dlclose(handle);
    }
    return redirected;
}

}  // namespace ov_hsdag
