// Reads a placed model, adds preprocessing, compiles it for HETERO, infers once and prints what ran where.
//
//     placed_inference MODEL.xml HETERO:GPU,CPU                                     follows by ov_hsdag::compile_model
//     placed_inference MODEL.xml HETERO:GPU,CPU "$(ov-hsdag extension)"             by the extension library alone
//
// Devices such as CPU_A are the CPU once more, under another name: two devices on a machine that has but one.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "openvino/openvino.hpp"
#include "ov_hsdag/compile_model.hpp"

namespace {

void register_further_cpus(ov::Core& core, const std::string& device) {
    std::istringstream names(device.substr(device.find(':') + 1));
    for (std::string name; std::getline(names, name, ',');) {
        if (name.find("CPU") == std::string::npos || name == "CPU") continue;
        core.register_plugin("openvino_intel_cpu_plugin", name);
        core.set_property(name, ov::hint::inference_precision(ov::element::f32));
    }
}

// Images and the like come as bytes.
std::shared_ptr<ov::Model> with_byte_inputs(const std::shared_ptr<ov::Model>& model) {
    ov::preprocess::PrePostProcessor steps(model);
    for (std::size_t i = 0; i < model->inputs().size(); ++i) {
        if (!model->input(i).get_element_type().is_real()) continue;
        steps.input(i).tensor().set_element_type(ov::element::u8);
        steps.input(i).preprocess().convert_element_type(ov::element::f32).scale(255.0F);
    }
    return steps.build();
}

ov::Tensor example_input(const ov::Output<const ov::Node>& input) {
    ov::Shape shape;
    for (const ov::Dimension& dimension : input.get_partial_shape()) {
        shape.push_back(dimension.is_static() ? static_cast<std::size_t>(dimension.get_length()) : 1);
    }
    ov::Tensor tensor(input.get_element_type(), shape);
    std::memset(tensor.data(), 0, tensor.get_byte_size());
    if (tensor.get_element_type() == ov::element::u8) {
        for (std::size_t i = 0; i < tensor.get_size(); ++i) {
            tensor.data<std::uint8_t>()[i] = static_cast<std::uint8_t>(i % 251);
        }
    }
    return tensor;
}

int run(const std::string& path, const std::string& device, const std::string& extension) {
    ov::Core core;
    register_further_cpus(core, device);
    if (!extension.empty()) {
        // The library follows the placement while reading, when nobody has told it of these devices.
        setenv("OV_HSDAG_DEVICE", device.c_str(), 0);
        core.add_extension(extension);
    }
    const std::shared_ptr<ov::Model> model = with_byte_inputs(core.read_model(path));
    ov::CompiledModel compiled =
        extension.empty() ? ov_hsdag::compile_model(core, model, device) : core.compile_model(model, device);

    ov::InferRequest request = compiled.create_infer_request();
    for (const auto& input : compiled.inputs()) request.set_tensor(input, example_input(input));
    request.infer();

    std::cout << "submodels: " << compiled.get_property("HETERO_NUMBER_OF_SUBMODELS").as<std::string>()
              << "\nrequests for throughput: " << ov_hsdag::requests_in_flight(compiled) << "\ndevices:";
    for (const std::string& name : compiled.get_property(ov::execution_devices)) std::cout << " " << name;
    std::cout << "\n";
    for (const auto& output : compiled.outputs()) {
        const ov::Tensor tensor = request.get_tensor(output);
        std::cout << "output: " << tensor.get_shape() << " " << tensor.get_element_type();
        if (tensor.get_element_type() == ov::element::f32) {
            double sum = 0;
            for (std::size_t i = 0; i < tensor.get_size(); ++i) sum += std::abs(tensor.data<float>()[i]);
            std::cout << ", sum of magnitudes " << sum;
        }
        std::cout << "\n";
    }
    return 0;
}

}  // namespace

int main(int count, char** arguments) {
    if (count < 3 || count > 4) {
        std::cerr << "usage: placed_inference MODEL.xml HETERO:A,B [EXTENSION.so]\n";
        return 2;
    }
    try {
        return run(arguments[1], arguments[2], count == 4 ? arguments[3] : "");
    } catch (const std::exception& error) {
        std::cerr << "error: " << error.what() << "\n";
        return 1;
    }
}
