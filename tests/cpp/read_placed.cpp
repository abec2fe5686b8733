// Reads placed models through the extension library and prints what each node got; then with another input shape and
// preprocessing, as HETERO sees it: in a copy.
//
//     read_placed LIBRARY SHAPE MODEL.xml…      with "-" for the shape that the model has
#include <exception>
#include <iostream>
#include <string>

#include "openvino/openvino.hpp"

namespace {

void print(const std::string& title, const ov::Model& model) {
    std::cout << title << "\n";
    for (const auto& node : model.get_ordered_ops()) {
        const auto affinity = node->get_rt_info().find("affinity");
        const bool known = affinity != node->get_rt_info().end();
        std::cout << (known ? affinity->second.as<std::string>() : "none") << " " << node->get_friendly_name() << "\n";
    }
}

std::shared_ptr<ov::Model> scaled(const std::shared_ptr<ov::Model>& model) {
    ov::preprocess::PrePostProcessor steps(model);
    for (std::size_t i = 0; i < model->inputs().size(); ++i) {
        if (model->input(i).get_element_type() == ov::element::f32) steps.input(i).preprocess().scale(2.0F);
    }
    return steps.build();
}

}  // namespace

int main(int, char** arguments) {
    const std::string shape = arguments[2];
    ov::Core core;
    core.add_extension(arguments[1]);
    for (char** path = arguments + 3; *path != nullptr; ++path) {
        std::cout << "model " << *path << "\n";
        try {
            const auto model = core.read_model(*path);
            print("read", *model);
            if (shape != "-") model->reshape(ov::PartialShape(shape));
            print("copied", *scaled(model)->clone());
        } catch (const std::exception& error) {
            std::cout << "error " << error.what() << "\n";
        }
    }
    return 0;
}
