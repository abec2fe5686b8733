// Applies the placements of models and prints what each node got, for the tests to compare with Python.
//
//     apply_placement DEVICE MODEL.xml…      with "-" for the placement's own devices
#include <exception>
#include <iostream>
#include <string>

#include "openvino/openvino.hpp"
#include "openvino/pass/manager.hpp"
#include "ov_hsdag/apply_placement.hpp"

int main(int count, char** arguments) {
    const std::string device = arguments[1];
    ov::Core core;
    for (int i = 2; i < count; ++i) {
        std::cout << "model " << arguments[i] << "\n";
        try {
            const auto model = core.read_model(arguments[i]);
            ov_hsdag::ApplyPlacement pass(device == "-" ? "" : device);
            std::cout << "changed " << pass.run_on_model(model) << "\n";
            for (const auto& node : model->get_ordered_ops()) {
                const auto affinity = node->get_rt_info().find("affinity");
                if (affinity == node->get_rt_info().end()) continue;
                std::cout << affinity->second.as<std::string>() << " " << node->get_friendly_name() << "\n";
            }
        } catch (const std::exception& error) {
            std::cout << "error " << error.what() << "\n";
        }
    }
    return 0;
}
