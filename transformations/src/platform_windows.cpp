// The functions for Windows. Tables of virtual functions and imports are left as they are there.
#include <windows.h>

#include <cstdio>
#include <vector>

#include "platform.hpp"

namespace ov_hsdag {
namespace {

// The loaded library that contains an address; null if there is none.
HMODULE module_of(const void* address) {
    HMODULE module = nullptr;
    constexpr DWORD flags = GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT;
    return GetModuleHandleExW(flags, static_cast<const wchar_t*>(address), &module) != 0 ? module : nullptr;
}

// The result of OpenVINO's function get_openvino_version.
struct Version {
    const char* build;  // "2026.4.1-22982-…"
    const char* description;
};

}  // namespace

std::string library_of(const void* address) {
    const HMODULE module = module_of(address);
    std::vector<wchar_t> path(32768);  // the longest path on Windows
    const DWORD length = GetModuleFileNameW(module, path.data(), static_cast<DWORD>(path.size()));
    if (module == nullptr || length == 0) return "";
    const int wide = static_cast<int>(length);
    std::string name(
        static_cast<std::size_t>(WideCharToMultiByte(CP_UTF8, 0, path.data(), wide, nullptr, 0, nullptr, nullptr)),
        '\0');
    WideCharToMultiByte(CP_UTF8, 0, path.data(), wide, name.data(), static_cast<int>(name.size()), nullptr, nullptr);
    return name;
}

// The name of openvino.dll has no release, so it is asked for its version.
std::string openvino_release(const void* address) {
    const HMODULE module = module_of(address);
    if (module == nullptr) return "";
    const auto version =
        reinterpret_cast<Version (*)()>(reinterpret_cast<void*>(GetProcAddress(module, "get_openvino_version")));
    int year = 0;
    int minor = 0;
    int patch = 0;
    if (version == nullptr || std::sscanf(version().build, "%d.%d.%d", &year, &minor, &patch) != 3) return "";
    return std::to_string(year % 100) + std::to_string(minor) + std::to_string(patch);
}

void* find_function(const std::string& library, const char* function, std::string& reason) {
    const int size = static_cast<int>(library.size());
    std::wstring path(static_cast<std::size_t>(MultiByteToWideChar(CP_UTF8, 0, library.data(), size, nullptr, 0)),
                      L'\0');
    MultiByteToWideChar(CP_UTF8, 0, library.data(), size, path.data(), static_cast<int>(path.size()));
    const HMODULE loaded = LoadLibraryW(path.c_str());  // never freed
    const FARPROC found = loaded == nullptr ? nullptr : GetProcAddress(loaded, function);
    if (found == nullptr) reason = library + ": error " + std::to_string(GetLastError());
    return reinterpret_cast<void*>(found);
}

std::size_t entries_of_table(const void*, const char*) { return 0; }

bool redirect_import(const char*, const char*, const void*, const void*) { return false; }

}  // namespace ov_hsdag
