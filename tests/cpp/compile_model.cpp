// Compiles models in one way and prints what runs where.
//
//     compile_model WAY DEVICE MODEL.xml…      with "function" (ov_hsdag::compile_model), "pass" (ApplyPlacement), or
//     the
//                                              extension library's path (read with it, compiled by OpenVINO alone);
//                                              two ways joined by "+" (function+LIBRARY) are taken together
#include <exception>
#include <iostream>
#include <string>

#include "openvino/openvino.hpp"
#include "openvino/pass/manager.hpp"
#include "ov_hsdag/apply_placement.hpp"
#include "ov_hsdag/compile_model.hpp"

int main(int, char** arguments) {
    std::string way = arguments[1];
    const std::string device = arguments[2];
    ov::Core core;
    for (const char* name : {"CPU_A", "CPU_B"}) {
        if (std::getenv("REGISTER") != nullptr) core.register_plugin("openvino_intel_cpu_plugin", name);
    }
    const std::size_t library = way.find('/');
    if (library != std::string::npos) core.add_extension(way.substr(library));
    for (char** path = arguments + 3; *path != nullptr; ++path) {
        std::cout << "model " << *path << "\n";
        try {
            const auto model = core.read_model(*path);
            if (way.rfind("pass", 0) == 0) {
                ov::pass::Manager manager;
                manager.register_pass<ov_hsdag::ApplyPlacement>(device);
                manager.run_passes(model);
            }
            const bool function = way.rfind("function", 0) == 0;
            const ov::CompiledModel compiled =
                function ? ov_hsdag::compile_model(core, model, device) : core.compile_model(model, device);
            std::cout << "devices";
            for (const std::string& name : compiled.get_property(ov::execution_devices)) std::cout << " " << name;
            std::cout << "\nsubmodels " << compiled.get_property("HETERO_NUMBER_OF_SUBMODELS").as<std::string>()
                      << "\nrequests " << ov_hsdag::requests_in_flight(compiled) << "\n";
        } catch (const std::exception& error) {
            std::cout << "error " << error.what() << "\n";
        }
    }
    return 0;
}
