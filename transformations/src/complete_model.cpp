// Runs the steps of the core's completion on an OpenVINO model: devices of hosts, the plan of copies, the copies
// themselves, and the legal devices of all nodes.
#include "complete_model.hpp"

#include <unordered_set>
#include <utility>

#include "complete.hpp"
#include "model_graph.hpp"
#include "openvino/core/version.hpp"

namespace ov_hsdag {
namespace {

// HETERO's splitting rule in the OpenVINO of this process.
SplitRule rule_here() { return split_rule_of(ov::get_openvino_version().buildNumber); }

// The number of each node's device, -1 if it is not known, [nodes].
std::vector<std::int32_t> known_devices(const ov::NodeVector& nodes, const KnownDevice& known) {
    std::vector<std::int32_t> devices;
    for (const auto& node : nodes) devices.push_back(known(*node));
    return devices;
}

// Maps each node to its entry of `device`, [nodes].
DeviceOfNode by_node(const ov::NodeVector& nodes, const std::vector<std::uint8_t>& device) {
    DeviceOfNode result;
    for (std::size_t node = 0; node < nodes.size(); ++node) result.emplace(nodes[node].get(), device[node]);
    return result;
}

// The friendly names in use, and new ones that differ from all of them.
class Names {
public:
    explicit Names(const ov::NodeVector& nodes) {
        for (const auto& node : nodes) taken_.insert(node->get_friendly_name());
    }
    // A new name "<name>/copy_<number>", which counts as in use from now on.
    std::string free(const std::string& name) {
        for (int number = 1;; ++number) {
            std::string candidate = name + "/copy_" + std::to_string(number);
            if (taken_.insert(candidate).second) return candidate;
        }
    }

private:
    std::unordered_set<std::string> taken_;
};

// Makes friendly names unique, as HETERO finds nodes by name.
void make_names_unique(const ov::NodeVector& nodes) {
    Names names(nodes);
    std::unordered_set<std::string> seen;
    for (const auto& node : nodes) {
        if (!seen.insert(node->get_friendly_name()).second) {
            node->set_friendly_name(names.free(node->get_friendly_name()));
            seen.insert(node->get_friendly_name());
        }
    }
}

// A copy of a node with other inputs, with its friendly name and rt_info.
std::shared_ptr<ov::Node> copy_of(const std::shared_ptr<ov::Node>& node, const ov::OutputVector& inputs) {
    auto copy = node->copy_with_new_inputs(inputs);
    copy->set_friendly_name(node->get_friendly_name());
    copy->get_rt_info() = node->get_rt_info();
    return copy;
}

// Copies a node that depends on constants only, together with these. Returns the copies in topological order.
ov::NodeVector copy_constants(const std::shared_ptr<ov::Node>& node) {
    ov::NodeVector copies;
    std::unordered_map<const ov::Node*, std::shared_ptr<ov::Node>> made;
    for (const auto& original : ordered({node})) {
        ov::OutputVector inputs;
        for (const auto& value : original->input_values()) {
            inputs.push_back(made.at(value.get_node())->output(value.get_index()));
        }
        copies.push_back(copy_of(original, inputs));
        made.emplace(original.get(), copies.back());
    }
    return copies;
}

// Makes the copies of a replication with new names, and connects their consumers with them. Returns the home
// (complete.hpp in the core) of every node of the changed model.
std::unordered_map<const ov::Node*, std::int32_t> replicate(const ModelGraph& model, const Replication& plan) {
    std::unordered_map<const ov::Node*, std::int32_t> home;
    for (std::size_t node = 0; node < model.nodes.size(); ++node)
        home.emplace(model.nodes[node].get(), plan.home[node]);
    Names names(model.nodes);
    ov::NodeVector instances = model.nodes;
    for (const Replica& replica : plan.replicas) {
        const std::shared_ptr<ov::Node>& node = model.nodes[replica.node];
        const bool constant = model.legality().constant()[replica.node] != 0;
        const ov::NodeVector copies =
            constant ? copy_constants(node) : ov::NodeVector{copy_of(node, node->input_values())};
        for (const auto& copy : copies) {
            copy->set_friendly_name(names.free(copy->get_friendly_name()));
            home.emplace(copy.get(), replica.home);
        }
        for (const auto& [instance, port] : replica.inputs) {
            auto target = instances[instance]->input(port);
            target.replace_source_output(copies.back()->output(target.get_source_output().get_index()));
        }
        instances.push_back(copies.back());
    }
    return home;
}

// Completes the nodes that `nodes` returns, in topological order; it is called again after nodes were copied.
DeviceOfNode complete(const std::function<ov::NodeVector()>& nodes, const KnownDevice& known, std::int32_t devices) {
    make_names_unique(nodes());
    ModelGraph graph(nodes());
    const auto hosts = host_devices(graph.legality(), known_devices(graph.nodes, known), devices);
    const Replication plan = replication(graph.legality(), hosts, {});
    std::vector<std::int32_t> device = plan.home;
    if (!plan.replicas.empty()) {
        const auto home = replicate(graph, plan);
        graph = ModelGraph(nodes());
        device.clear();
        for (const auto& node : graph.nodes) device.push_back(home.at(node.get()));
    }
    return by_node(graph.nodes, settle(graph.legality(), device, devices, rule_here()));
}

}  // namespace

DeviceOfNode complete(const std::shared_ptr<ov::Model>& model, const KnownDevice& known, std::int32_t devices) {
    return complete([&model] { return model->get_ordered_ops(); }, known, devices);
}

DeviceOfNode complete_above(const std::shared_ptr<ov::Node>& result, const KnownDevice& known, std::int32_t devices) {
    return complete([&result] { return ordered({result}); }, known, devices);
}

DeviceOfNode complete_as_is(const ov::NodeVector& nodes, const KnownDevice& known, std::int32_t devices) {
    const ModelGraph graph(nodes);
    return by_node(nodes, complete_in_place(graph.legality(), known_devices(nodes, known), devices, rule_here()));
}

}  // namespace ov_hsdag
