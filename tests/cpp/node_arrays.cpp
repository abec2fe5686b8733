// Prints what the rules of legality read of models, for the tests to compare with what Python reads.
//
//     node_arrays MODEL.xml…
#include <exception>
#include <iostream>

#include "model_graph.hpp"
#include "openvino/openvino.hpp"

int main(int count, char** arguments) {
    ov::Core core;
    for (int i = 1; i < count; ++i) {
        std::cout << "model " << arguments[i] << "\n";
        try {
            const ov::NodeVector nodes = core.read_model(arguments[i])->get_ordered_ops();
            const ov_hsdag::NodeArrays arrays = ov_hsdag::node_arrays(nodes);
            for (std::size_t node = 0; node < nodes.size(); ++node) {
                std::cout << "node " << arrays.types[node] << " " << arrays.variables[node] << "\n";
            }
            for (std::size_t output = 0; output < arrays.movable.size(); ++output) {
                std::cout << "output " << int{arrays.movable[output]} << " " << arrays.ranks[output];
                for (auto at = arrays.shape_ptr[output]; at < arrays.shape_ptr[output + 1]; ++at) {
                    std::cout << " " << arrays.dimensions[at];
                }
                std::cout << "\n";
            }
            const ov_hsdag::ModelGraph graph(nodes);
            std::cout << "groups";
            for (const auto group : graph.legality().groups()) std::cout << " " << group;
            std::cout << "\n";
        } catch (const std::exception& error) {
            std::cout << "error " << error.what() << "\n";
        }
    }
    return 0;
}
