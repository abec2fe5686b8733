// The functions of the extension library that depend on the operating system. Either platform_linux.cpp or
// platform_windows.cpp is compiled; the rest of the library is the same everywhere.
//
// The code for Windows has been compiled by MinGW, but has never been run.
#pragma once

#include <cstddef>
#include <string>

#ifdef _WIN32
#ifdef _MSC_VER
#include <intrin.h>
#define OV_HSDAG_CALLER _ReturnAddress()
#else
#define OV_HSDAG_CALLER __builtin_return_address(0)
#endif
#define OV_HSDAG_EXPORT extern "C" __declspec(dllexport)
#else
#define OV_HSDAG_CALLER __builtin_return_address(0)
#define OV_HSDAG_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace ov_hsdag {

// OV_HSDAG_CALLER is the address to which the present function returns; OV_HSDAG_EXPORT makes a function visible
// outside of the library, with C linkage.

// The file of the library that contains the address, in UTF-8; "" if there is none.
std::string library_of(const void* address);

// The release of the OpenVINO library that contains the address: "2641" for OpenVINO 2026.4.1; "" for other addresses.
std::string openvino_release(const void* address);

// Loads a library, which stays loaded, and returns one of its functions. Null if there is none; `reason` is then set.
void* find_function(const std::string& library, const char* function, std::string& reason);

// The number of entries in a table of virtual functions, including those before its first function. 0 if it is not
// known, or the table is that of another class. mangled: the table's name in the C++ ABI of Linux.
std::size_t entries_of_table(const void* table, const char* mangled);

// Makes loaded libraries call `replacement` instead of the imported function with the symbol name `mangled`. It changes
// libraries with `library` in their file name in which that symbol is bound to `function`; in a library of another
// OpenVINO in the same process it is bound to another one. Such libraries stay loaded. Returns whether there was one;
// always false on Windows.
bool redirect_import(const char* library, const char* mangled, const void* function, const void* replacement);

}  // namespace ov_hsdag
