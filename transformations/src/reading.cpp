// Follows a model while it is read. Each thread keeps the readings of its latest models; tags connect outputs with
// their reading. Nodes get affinities by name at first, and legal ones when all outputs have been read.
#include "reading.hpp"

#include <algorithm>
#include <charconv>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "environment.hpp"
#include "hetero_copy.hpp"
#include "model_graph.hpp"
#include "openvino/op/parameter.hpp"
#include "openvino/op/result.hpp"
#include "openvino/op/sink.hpp"
#include "openvino/runtime/core.hpp"

namespace ov_hsdag {
namespace {

// The parsed tag "ov_hsdag:<version>:<id>:<number>/<count>:<placement>"; all tags but one have no placement.
struct Tag {
    int version = 0;
    std::string id;
    std::size_t number = 0;
    std::size_t count = 0;
    std::string_view placement;
};

constexpr std::string_view kPrefix = "ov_hsdag:";

// Removes the text up to and including the character `end`, and returns it without that character. Throws
// std::invalid_argument if the character does not occur.
std::string_view take_until(std::string_view& text, char end) {
    const std::size_t at = text.find(end);
    if (at == std::string_view::npos) throw std::invalid_argument("its tag is incomplete");
    const std::string_view part = text.substr(0, at);
    text.remove_prefix(at + 1);
    return part;
}

// The number that the whole text is. Throws std::invalid_argument if it is none.
template <typename T>
T number_in(std::string_view text) {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) throw std::invalid_argument("its tag has no number");
    return value;
}

// Parses a tag, which begins with kPrefix. Throws std::invalid_argument if it is incomplete or has a newer version.
Tag parse_tag(std::string_view text) {
    Tag tag;
    text.remove_prefix(kPrefix.size());
    tag.version = number_in<int>(take_until(text, ':'));
    tag.id = take_until(text, ':');
    tag.number = number_in<std::size_t>(take_until(text, '/'));
    tag.count = number_in<std::size_t>(take_until(text, ':'));
    tag.placement = text;
    if (tag.version > kVersion) {
        throw std::invalid_argument("it has version " + std::to_string(tag.version) + ", this library reads up to " +
                                    std::to_string(kVersion));
    }
    return tag;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

// Whether OpenVINO has a device on this machine. The program's Core is not known here, so that devices that a program
// registers must be named in the environment. named: the devices of OV_HSDAG_DEVICE, which count as available unless
// they are GPUs or NPUs. Answers are cached.
bool is_here(const std::string& device, const std::vector<std::string>& named) {
    static std::mutex mutex;
    static std::map<std::string, bool> answers;
    const std::string kind = device.substr(0, device.find('.'));
    const bool may_lack = kind == "GPU" || kind == "NPU";
    if (device == "CPU" || (!may_lack && contains(named, device)) || contains(virtual_devices(), device)) return true;
    const std::lock_guard lock(mutex);
    const auto found = answers.find(device);
    if (found != answers.end()) return found->second;
    bool here = true;
    try {
        ov::Core().get_property(device, ov::device::full_name);
    } catch (const std::exception&) {
        here = false;
    }
    answers[device] = here;
    return here;
}

// All nodes that are connected with these, in the order of Model::get_ordered_ops. A repair begins with the first ones,
// so that the order must be the same as in Python.
ov::NodeVector connected(const ov::NodeVector& start) {
    std::unordered_set<const ov::Node*> seen;
    ov::NodeVector stack = start;
    ov::NodeVector results, sinks, parameters;
    while (!stack.empty()) {
        const std::shared_ptr<ov::Node> node = stack.back();
        stack.pop_back();
        if (!seen.insert(node.get()).second) continue;
        for (const auto& output : node->outputs()) {
            for (const auto& input : output.get_target_inputs()) {
                stack.push_back(input.get_node()->shared_from_this());
            }
        }
        for (const auto& value : node->input_values()) stack.push_back(value.get_node_shared_ptr());
        if (ov::is_type<ov::op::v0::Result>(node)) results.push_back(node);
        if (ov::is_type<ov::op::Sink>(node)) sinks.push_back(node);
        if (ov::is_type<ov::op::v0::Parameter>(node)) parameters.push_back(node);
    }
    ov::NodeVector roots;
    for (ov::NodeVector* kind : {&results, &sinks, &parameters}) {
        // Sorted in the order of their creation, which is that of the file.
        std::sort(kind->begin(), kind->end(),
                  [](const auto& a, const auto& b) { return a->get_instance_id() < b->get_instance_id(); });
        roots.insert(roots.end(), kind->begin(), kind->end());
    }
    return ordered(roots);
}

// Gives a device to an output and to all nodes above it without one: by name, else from producers, else from consumers.
void assign(const std::shared_ptr<ov::Node>& output, const StoredPlacement& placement) {
    ov::NodeVector fresh;
    std::vector<std::pair<std::shared_ptr<ov::Node>, std::size_t>> stack{{output, 0}};
    std::unordered_set<const ov::Node*> seen{output.get()};
    while (!stack.empty()) {
        auto& [node, port] = stack.back();
        if (port == node->get_input_size()) {
            fresh.push_back(node);
            stack.pop_back();
            continue;
        }
        const auto source = node->get_input_node_shared_ptr(port++);
        if (!has_affinity(*source) && seen.insert(source.get()).second) stack.emplace_back(source, 0);
    }
    const auto set = [&](ov::Node& node, const std::string& device) { node.get_rt_info()[kAffinity] = device; };
    const auto take_from = [&](ov::Node& node, const ov::Node& other) {
        if (has_affinity(node) || !has_affinity(other)) return;
        set(node, affinity_of(other));
    };
    for (const auto& node : fresh) {
        const auto found = placement.numbers.find(node->get_friendly_name());
        if (found != placement.numbers.end()) set(*node, placement.devices[found->second]);
    }
    for (const auto& node : fresh) {
        for (const auto& value : node->input_values()) take_from(*node, *value.get_node());
    }
    for (auto node = fresh.rbegin(); node != fresh.rend(); ++node) {
        for (const auto& port : (*node)->outputs()) {
            for (const auto& input : port.get_target_inputs()) take_from(**node, *input.get_node());
        }
        if (!has_affinity(**node)) set(**node, placement.devices.front());
    }
}

// The outputs of a model that still exist: those of the placed model by number, then the others.
ov::NodeVector outputs_of(const Reading& reading) {
    ov::NodeVector outputs;
    for (const auto& [number, output] : reading.outputs) outputs.push_back(output.lock());
    for (const auto& output : reading.others) outputs.push_back(output.lock());
    outputs.erase(std::remove(outputs.begin(), outputs.end(), nullptr), outputs.end());
    return outputs;
}

// A hash of the shapes of all tensors above the outputs.
std::size_t shapes_above(const ov::NodeVector& outputs) {
    std::size_t sum = 0;
    std::unordered_set<const ov::Node*> seen;
    std::vector<const ov::Node*> stack;
    for (const auto& output : outputs) stack.push_back(output.get());
    while (!stack.empty()) {
        const ov::Node* node = stack.back();
        stack.pop_back();
        if (!seen.insert(node).second) continue;
        std::size_t one = node->get_instance_id();  // so that two nodes that swap their shapes change the hash
        const auto add = [&one](std::int64_t value) { one = one * 1099511628211U + static_cast<std::size_t>(value); };
        for (std::size_t port = 0; port < node->get_output_size(); ++port) {
            const ov::PartialShape& shape = node->get_output_partial_shape(port);
            add(shape.rank().is_static() ? shape.rank().get_length() : -1);
            if (shape.rank().is_dynamic()) continue;
            for (const ov::Dimension& dimension : shape) {
                add(dimension.get_min_length());
                add(dimension.get_max_length());
            }
        }
        sum += one;
        for (std::size_t port = 0; port < node->get_input_size(); ++port)
            stack.push_back(node->get_input_node_ptr(port));
    }
    return sum;
}

// Makes the affinities of a whole model legal, as Placement.apply in Python does.
void settle(Reading& reading) {
    const ov::NodeVector outputs = outputs_of(reading);
    const auto by_name = [&](const ov::Node& node) -> std::int32_t {
        const auto found = reading.placement.numbers.find(node.get_friendly_name());
        return found == reading.placement.numbers.end() ? -1 : found->second;
    };
    const auto& devices = reading.placement.devices;
    const ov::NodeVector nodes = connected(outputs);
    const DeviceOfNode device = complete_as_is(nodes, by_name, static_cast<std::int32_t>(devices.size()));
    for (const auto& node : nodes) node->get_rt_info()[kAffinity] = devices[device.at(node.get())];
    reading.settled = true;
    reading.shapes = shapes_above(outputs);
}

// Makes affinities legal again for a model whose shapes have changed; a program may have set some of them itself.
void settle_again(Reading& reading, const PlacedResult& result) {
    const ov::NodeVector outputs = outputs_of(reading);
    const bool is_copy =
        std::none_of(outputs.begin(), outputs.end(), [&](const auto& output) { return output.get() == &result; });
    if (is_copy || !reading.settled || reading.placement.devices.empty()) return;
    const std::size_t shapes = shapes_above(outputs);
    if (shapes == reading.shapes) return;
    reading.shapes = shapes;
    const ov::NodeVector nodes = connected(outputs);
    const auto placed = std::count_if(nodes.begin(), nodes.end(), [](const auto& node) { return has_affinity(*node); });
    if (placed == 0) return;
    // Transformations infer shapes while the model has both old and new nodes, for which the rules would be wrong. The
    // copy is made legal later.
    if (static_cast<std::size_t>(placed) < nodes.size()) {
        reading.settled = false;
        return;
    }
    const auto& devices = reading.placement.devices;
    const DeviceOfNode device =
        complete_as_is(nodes, reading.placement.known(), static_cast<std::int32_t>(devices.size()));
    for (const auto& node : nodes) node->get_rt_info()[kAffinity] = devices[device.at(node.get())];
}

// The models that this thread is reading, or has read most recently.
std::vector<std::shared_ptr<Reading>>& readings() {
    constexpr std::size_t kMost = 8;
    thread_local std::vector<std::shared_ptr<Reading>> recent;
    const auto is_gone = [](const std::shared_ptr<Reading>& reading) {
        return std::all_of(reading->outputs.begin(), reading->outputs.end(),
                           [](const auto& output) { return output.second.expired(); });
    };
    recent.erase(std::remove_if(recent.begin(), recent.end(), is_gone), recent.end());
    if (recent.size() > kMost) recent.erase(recent.begin());
    return recent;
}

// The Parameters without a tag that this thread has read most recently. Most will have consumers; those whose consumers
// were removed after the model was placed cannot be reached from any output.
std::vector<std::weak_ptr<ov::Node>>& loose_parameters() {
    constexpr std::size_t kMost = 4096;
    thread_local std::vector<std::weak_ptr<ov::Node>> loose;
    if (loose.size() > kMost) loose.clear();
    return loose;
}

// Gives loose Parameters that have no consumers their device of the placement, by name, and clears the list.
void assign_loose_parameters(const StoredPlacement& placement) {
    for (const auto& weak : loose_parameters()) {
        const auto node = weak.lock();
        if (!node || has_affinity(*node) || !node->get_output_target_inputs(0).empty()) continue;
        const auto found = placement.numbers.find(node->get_friendly_name());
        if (found != placement.numbers.end()) node->get_rt_info()[kAffinity] = placement.devices[found->second];
    }
    loose_parameters().clear();
}

// Applies a placement to the nodes that have been read so far. node: the output that was read last.
void follow(Reading& reading, const std::shared_ptr<ov::Node>& node) {
    if (node->get_input_size() > 0) assign_loose_parameters(reading.placement);
    if (reading.outputs.size() == reading.count) {
        settle(reading);
        return;
    }
    for (const auto& [number, output] : reading.outputs) {
        const auto pending = output.lock();
        // A Parameter gets its name only after this call.
        const bool unnamed = pending == node && node->get_input_size() == 0;
        if (pending && !unnamed && !has_affinity(*pending)) assign(pending, reading.placement);
    }
}

// Removes the placement and all affinities of a model, as HETERO refuses one that is partly placed. node: an output of
// the model.
void forget(Reading& reading, const std::shared_ptr<ov::Node>& node) {
    reading.placement = {};
    for (const auto& one : connected({node})) one->get_rt_info().erase(kAffinity);
    for (const auto& [number, output] : reading.outputs) {
        const auto other = output.lock();
        if (!other) continue;
        for (const auto& one : connected({other})) one->get_rt_info().erase(kAffinity);
    }
}

// Processes an output of a placed model: finds or begins its reading, reads the placement if the tag has it, and gives
// devices to nodes. If an error occurs, removes all affinities and throws it again.
void note_tagged(const std::shared_ptr<ov::Node>& node, const Tag& tag) {
    auto& recent = readings();
    auto found = std::find_if(recent.begin(), recent.end(), [&](const auto& reading) {
        return reading->id == tag.id && !reading->settled && reading->outputs.count(tag.number) == 0;
    });
    if (found == recent.end()) {
        found = recent.insert(recent.end(), std::make_shared<Reading>());
        (*found)->id = tag.id;
        (*found)->count = tag.count;
    }
    Reading& reading = **found;
    reading.outputs[tag.number] = node;
    if (auto* result = PlacedResult::of(*node)) result->reading = *found;
    try {
        if (!tag.placement.empty()) {
            reading.came = true;
            complete_copies_of_hetero();
            reading.placement = on_devices_here(StoredPlacement::of_tag(tag.placement));
        }
        if (!reading.placement.devices.empty()) follow(reading, node);
    } catch (const std::exception&) {
        forget(reading, node);
        throw;
    }
}

// Processes an output that the model did not have when it was placed.
void note_untagged(const std::shared_ptr<ov::Node>& node) {
    if (node->get_input_size() == 0) {
        loose_parameters().push_back(node);
        return;
    }
    auto& recent = readings();
    if (recent.empty() || recent.back()->placement.devices.empty()) return;
    const ov::NodeVector above = ordered({node});
    if (std::none_of(above.begin(), above.end(), [](const auto& one) { return has_affinity(*one); })) return;
    Reading& reading = *recent.back();
    reading.others.push_back(node);
    if (auto* result = PlacedResult::of(*node)) result->reading = recent.back();
    try {
        if (reading.settled) {
            settle(reading);
        } else {
            assign(node, reading.placement);
        }
    } catch (const std::exception&) {
        forget(reading, node);
        throw;
    }
}

// Pairs of a node and its copy.
using Twins = std::vector<std::pair<const ov::Node*, ov::Node*>>;

// The pairs of nodes above a Result and its copy; empty if it is not a copy.
Twins twins_above(const ov::Node& original, const ov::Node& copy) {
    Twins twins{{original.get_input_node_ptr(0), copy.get_input_node_ptr(0)}};
    std::unordered_set<const ov::Node*> seen{twins.front().second};
    for (std::size_t at = 0; at < twins.size(); ++at) {
        const auto [one, other] = twins[at];
        if (one == other || one->get_type_info() != other->get_type_info() ||
            one->get_input_size() != other->get_input_size()) {
            return {};
        }
        for (std::size_t port = 0; port < one->get_input_size(); ++port) {
            ov::Node* source = other->get_input_node_ptr(port);
            if (seen.insert(source).second) twins.emplace_back(one->get_input_node_ptr(port), source);
        }
    }
    return twins;
}

// The reading of the Results among the nodes; null if none of them belongs to one.
std::shared_ptr<const Reading> reading_of(const ov::NodeVector& nodes) {
    for (const auto& node : nodes) {
        const auto* result = PlacedResult::of(*node);
        if (result != nullptr && result->reading) return result->reading;
    }
    return nullptr;
}

// Does the work of complete_copies, which catches its exceptions.
void complete_copied_nodes(const PlacedResult& original, const ov::Node& copy) {
    const Twins twins = twins_above(original, copy);
    if (!twins.empty() && original.reading && !original.reading->came) {
        say_once(
            "a model is read without its placement: the output that carried it was removed; place the model again");
        return;
    }
    const bool unsettled = original.reading && !original.reading->settled;
    const bool missing =
        std::any_of(twins.begin(), twins.end(), [](const auto& twin) { return !has_affinity(*twin.second); });
    if (twins.empty() || !(missing || unsettled)) return;
    const ov::NodeVector nodes = connected({std::const_pointer_cast<ov::Node>(original.shared_from_this())});
    const auto reading = original.reading ? original.reading : reading_of(nodes);
    // If no node has an affinity any more, the program has removed them.
    if (!reading || std::none_of(nodes.begin(), nodes.end(), [](const auto& node) { return has_affinity(*node); })) {
        return;
    }
    const auto& devices = reading->placement.devices;
    if (devices.empty()) return;
    const auto count = static_cast<std::int32_t>(devices.size());
    // The program has set affinities with a device that the placement lacks, as ov_hsdag::compile_model does.
    const auto set = [&](ov::Node& node, std::uint8_t device) {
        const bool ours = has_affinity(node) && contains(devices, affinity_of(node));
        if (!has_affinity(node) || (unsettled && ours)) node.get_rt_info()[kAffinity] = devices[device];
    };
    if (twins.size() + 1 < nodes.size()) {  // there are other Results, or states
        const DeviceOfNode device = complete_as_is(nodes, reading->placement.known(), count);
        for (const auto& [one, other] : twins) set(*other, device.at(one));
        return;
    }
    // The copy is complete, so that constants that layers share can be copied in it.
    std::unordered_set<const ov::Node*> cloned;
    for (const auto& [one, other] : twins) cloned.insert(other);
    const auto result = std::const_pointer_cast<ov::Node>(copy.shared_from_this());
    const DeviceOfNode device = complete_above(result, reading->placement.known(), count);
    for (const auto& node : ordered({result})) {
        if (cloned.count(node.get()) != 0)
            set(*node, device.at(node.get()));
        else
            node->get_rt_info()[kAffinity] = devices[device.at(node.get())];
    }
}

}  // namespace

// HETERO accepts affinities whatever its list of devices is, and its list is known only after the model has been read.
// So the list is the placement's, or that in the environment.
StoredPlacement on_devices_here(const StoredPlacement& placement) {
    const std::vector<std::string> named = devices_for_reading();
    std::vector<std::string> here;
    for (const std::string& device : named.empty() ? placement.devices : named) {
        if (is_here(device, named)) here.push_back(device);
    }
    if (here.empty()) {
        throw std::invalid_argument(
            "none of its devices is known here (devices that a program registers itself have "
            "to be named: OV_HSDAG_DEVICE=HETERO:" +
            joined(placement.devices, ",") + ")");
    }
    StoredPlacement mapped = placement.map_to(here);
    if (named.empty()) {
        say_once("placements are followed on " + joined(here, ", ") +
                 ", in C++ whatever devices HETERO is given; OV_HSDAG_DEVICE=HETERO:… changes that");
    }
    return mapped;
}

void complete_copies(const PlacedResult& original, const ov::Node& copy) noexcept {
    try {
        complete_copied_nodes(original, copy);
    } catch (const std::exception& error) {
        say_once(std::string("nodes that were added to a placed model get no device: ") + error.what());
    }
}

void note_shapes(const PlacedResult& result) noexcept {
    try {
        settle_again(*result.reading, result);
    } catch (const std::exception& error) {
        say_once(std::string("a placed model that was reshaped keeps its devices as they are: ") + error.what());
    }
}

void note_output(const std::shared_ptr<ov::Node>& node, const std::string& tag) noexcept {
    if (disabled()) return;
    try {
        if (tag.compare(0, kPrefix.size(), kPrefix) == 0) {
            note_tagged(node, parse_tag(tag));
        } else {
            note_untagged(node);
        }
    } catch (const std::exception& error) {
        say_once(std::string("a model is read without its placement: ") + error.what());
    }
}

}  // namespace ov_hsdag
