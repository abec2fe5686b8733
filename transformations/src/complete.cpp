#include "complete.hpp"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "legality.hpp"
#include "model_graph.hpp"
#include "openvino/op/result.hpp"

namespace ov_hsdag {
namespace {

using Inputs = std::vector<ov::Input<ov::Node>>;

// The first of the largest counts; -1 where all are 0.
std::int32_t most_votes(const std::int64_t* votes, std::int32_t devices) {
    const std::int64_t* best = std::max_element(votes, votes + devices);
    return *best == 0 ? -1 : static_cast<std::int32_t>(best - votes);
}

// A device for every node that does not follow its consumers, from those that are known. [nodes]
std::vector<std::int32_t> homes_of(const ModelGraph& model, const Flags& follows, const KnownDevice& known,
                                   std::int32_t devices) {
    const Graph& graph = model.graph;
    const std::vector<std::int32_t> group = merged(model, tied(model, follows));
    const std::int32_t groups = *std::max_element(group.begin(), group.end()) + 1;
    std::vector<std::int64_t> votes(static_cast<std::size_t>(groups) * devices, 0);
    for (std::int32_t node = 0; node < graph.nodes(); ++node) {
        const std::int32_t device = known(*model.nodes[node]);
        if (device < 0 || follows[node] != 0) continue;
        // Operations decide; a Parameter or Result that was placed decides only where no operation does.
        votes[static_cast<std::size_t>(group[node]) * devices + device] +=
            graph.kind[node] == NodeKind::kOp ? graph.nodes() : 1;
    }
    std::vector<std::int32_t> chosen(static_cast<std::size_t>(groups));
    for (std::int32_t g = 0; g < groups; ++g) {
        chosen[g] = most_votes(&votes[static_cast<std::size_t>(g) * devices], devices);
    }
    const auto hand_over = [&](std::int32_t e, bool forward) {
        const std::int32_t source = group[graph.source[e]];
        const std::int32_t target = group[graph.target[e]];
        if (follows[graph.source[e]] != 0 || source == target) return;
        std::int32_t& to = chosen[forward ? target : source];
        if (to < 0) to = chosen[forward ? source : target];
    };
    for (std::int32_t e = 0; e < graph.edges(); ++e) hand_over(e, true);
    for (std::int32_t e = graph.edges() - 1; e >= 0; --e) hand_over(e, false);
    std::vector<std::int32_t> homes;
    for (const std::int32_t g : group) homes.push_back(std::max(chosen[g], 0));
    return homes;
}

// Gives every legality group one device (most of its operations' choice) and repairs what HETERO would refuse.
DeviceOfNode settled(const ov::NodeVector& nodes, const DeviceOfNode& homes, std::int32_t devices) {
    const ModelGraph model(nodes);
    const std::vector<std::int32_t> group = colocation(model);
    const std::int32_t groups = *std::max_element(group.begin(), group.end()) + 1;
    std::vector<std::int64_t> votes(static_cast<std::size_t>(groups) * devices, 0);
    for (std::int32_t node = 0; node < model.graph.nodes(); ++node) {
        votes[static_cast<std::size_t>(group[node]) * devices + homes.at(nodes[node].get())] +=
            model.graph.kind[node] == NodeKind::kOp ? model.graph.nodes() : 1;
    }
    std::vector<std::uint8_t> device;
    for (std::int32_t g = 0; g < groups; ++g) {
        device.push_back(static_cast<std::uint8_t>(most_votes(&votes[static_cast<std::size_t>(g) * devices], devices)));
    }
    device = repair(model, group, std::move(device), devices);
    DeviceOfNode result;
    for (std::size_t node = 0; node < nodes.size(); ++node) result.emplace(nodes[node].get(), device[group[node]]);
    return result;
}

// Friendly names that are taken, and new ones beside them.
class Names {
public:
    explicit Names(const ov::NodeVector& nodes) {
        for (const auto& node : nodes) taken_.insert(node->get_friendly_name());
    }
    std::string free(const std::string& name) {
        for (int number = 1;; ++number) {
            std::string candidate = name + "/copy_" + std::to_string(number);
            if (taken_.insert(candidate).second) return candidate;
        }
    }

private:
    std::unordered_set<std::string> taken_;
};

// HETERO finds nodes by name.
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

// Copies of a node that rests on constants alone and of all that it rests on, in topological order.
ov::NodeVector copy_constants(const std::shared_ptr<ov::Node>& node) {
    ov::NodeVector copies;
    std::unordered_map<const ov::Node*, std::shared_ptr<ov::Node>> copy_of;
    for (const auto& original : ordered({node})) {
        ov::OutputVector inputs;
        for (const auto& value : original->input_values()) {
            inputs.push_back(copy_of.at(value.get_node())->output(value.get_index()));
        }
        copies.push_back(original->copy_with_new_inputs(inputs));
        copies.back()->set_friendly_name(original->get_friendly_name());
        copies.back()->get_rt_info() = original->get_rt_info();
        copy_of.emplace(original.get(), copies.back());
    }
    return copies;
}

ov::NodeVector copy_operation(const std::shared_ptr<ov::Node>& node) {
    const auto copy = node->copy_with_new_inputs(node->input_values());
    copy->set_friendly_name(node->get_friendly_name());
    copy->get_rt_info() = node->get_rt_info();
    return {copy};
}

// Copies followers so that all consumers of each share a home. homes: [nodes] of those that do not follow. Returns the
// home of every node of the changed model.
DeviceOfNode copy_followers(const ModelGraph& model, const Flags& follows, const std::vector<std::int32_t>& homes) {
    const Graph& graph = model.graph;
    const Flags constant = constant_nodes(model);
    Names names(model.nodes);
    std::unordered_map<const ov::Node*, std::int32_t> number;
    for (std::int32_t node = 0; node < graph.nodes(); ++node) number.emplace(model.nodes[node].get(), node);
    // By home, in the order of their first consumer.
    std::vector<std::vector<std::pair<std::int32_t, Inputs>>> consumers(model.nodes.size());
    DeviceOfNode result;

    const auto note_inputs = [&](const std::shared_ptr<ov::Node>& node, std::int32_t home) {
        for (const auto& input : node->inputs()) {
            const std::int32_t source = number.at(input.get_source_output().get_node());
            if (follows[source] == 0) continue;
            auto& lists = consumers[source];
            auto list = std::find_if(lists.begin(), lists.end(), [&](const auto& one) { return one.first == home; });
            if (list == lists.end()) list = lists.insert(lists.end(), {home, {}});
            list->second.push_back(input);
        }
    };

    // Consumers are handled before producers, so that a copy's own inputs are copied in turn.
    for (std::int32_t index = graph.nodes() - 1; index >= 0; --index) {
        const std::shared_ptr<ov::Node>& node = model.nodes[index];
        auto& lists = consumers[index];
        if (follows[index] == 0 || lists.empty()) {
            result[node.get()] = static_cast<std::uint8_t>(homes[index]);
            note_inputs(node, homes[index]);
            continue;
        }
        // The original stays where most of its consumers are.
        std::stable_sort(lists.begin(), lists.end(),
                         [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
        result[node.get()] = static_cast<std::uint8_t>(lists.front().first);
        note_inputs(node, lists.front().first);
        for (std::size_t other = 1; other < lists.size(); ++other) {
            const auto& [home, targets] = lists[other];
            const ov::NodeVector copies = constant[index] != 0 ? copy_constants(node) : copy_operation(node);
            for (const auto& copy : copies) {
                copy->set_friendly_name(names.free(copy->get_friendly_name()));
                result[copy.get()] = static_cast<std::uint8_t>(home);
            }
            for (auto target : targets) {
                target.replace_source_output(copies.back()->output(target.get_source_output().get_index()));
            }
            if (constant[index] == 0) note_inputs(copies.back(), home);
        }
    }
    return result;
}

}  // namespace

DeviceOfNode complete(const std::shared_ptr<ov::Model>& model, const KnownDevice& known, std::int32_t devices) {
    make_names_unique(model->get_ordered_ops());
    DeviceOfNode homes;
    {
        const ModelGraph graph(model->get_ordered_ops());
        const Flags follows = followers(graph);
        homes = copy_followers(graph, follows, homes_of(graph, follows, known, devices));
    }
    return settled(model->get_ordered_ops(), homes, devices);
}

DeviceOfNode complete_as_is(const ov::NodeVector& nodes, const KnownDevice& known, std::int32_t devices) {
    const ModelGraph graph(nodes);
    const Flags follows = followers(graph);
    const std::vector<std::int32_t> homes = homes_of(graph, follows, known, devices);
    DeviceOfNode device;
    // Followers first take the device of a consumer; consumers come later in the order.
    for (std::int32_t node = graph.graph.nodes() - 1; node >= 0; --node) {
        device.emplace(nodes[node].get(), static_cast<std::uint8_t>(homes[node]));
    }
    for (std::int32_t node = graph.graph.nodes() - 1; node >= 0; --node) {
        for (std::int32_t e = graph.graph.input_ptr[node]; e < graph.graph.input_ptr[node + 1]; ++e) {
            const std::int32_t source = graph.graph.source[e];
            if (follows[source] != 0) device[nodes[source].get()] = device.at(nodes[node].get());
        }
    }
    return settled(nodes, device, devices);
}

}  // namespace ov_hsdag
