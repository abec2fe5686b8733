// What the extension library asks of the operating system. The rest of the library is the same everywhere; one of
// platform_linux.cpp and platform_windows.cpp is compiled.
//
// Windows: compiled by MinGW, never run.
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

// The file of the library that contains the address, in UTF-8; "" where there is none.
std::string library_of(const void* address);

// "2641" where the address is inside of the library of OpenVINO 2026.4.1; "" elsewhere.
std::string openvino_release(const void* address);

// A function of a library, which is loaded for good. Null where there is none; `reason` says why then.
void* find_function(const std::string& library, const char* function, std::string& reason);

// How many entries the table of virtual functions has, those before its first function included; 0 where the system
// does not tell, or it is that of another class. `mangled` is the table's name in the C++ ABI of Linux.
std::size_t entries_of_table(const void* table, const char* mangled);

// Makes loaded libraries with this in their file name call `replacement` where they call the imported function
// `mangled`, as far as that is `function`: libraries of another OpenVINO in the same process call another. Such
// libraries stay loaded. Whether there is one; never on Windows.
bool redirect_import(const char* library, const char* mangled, const void* function, const void* replacement);

}  // namespace ov_hsdag
