// Lets HETERO call a replacement of ov::Model::clone, which completes the clone. The replacement is written into
// HETERO's table of imported functions (platform.hpp).
#include "hetero_copy.hpp"

#include <algorithm>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <vector>

#include "complete_model.hpp"
#include "environment.hpp"
#include "openvino/core/model.hpp"
#include "openvino/core/version.hpp"
#include "openvino/runtime/core.hpp"
#include "placed_result.hpp"
#include "platform.hpp"
#include "reading.hpp"
#include "stored_placement.hpp"

namespace ov_hsdag {
namespace {

constexpr const char* kHeteroLibrary = "openvino_hetero_plugin";

// The mangled name of `ov::Model::clone() const` in the C++ ABI of Linux (Itanium).
constexpr const char* kCloneSymbol = "_ZNK2ov5Model5cloneEv";

// The reading of a model's Results; null if none of them belongs to one.
std::shared_ptr<const Reading> reading_of(const ov::Model& model) {
    for (const auto& result : model.get_results()) {
        const auto* placed = PlacedResult::of(*result);
        if (placed != nullptr && placed->reading) return placed->reading;
    }
    return nullptr;
}

// Whether all friendly names are different, by which HETERO finds the devices of nodes.
bool has_unique_names(const ov::NodeVector& nodes) {
    std::unordered_set<std::string> names;
    return std::all_of(nodes.begin(), nodes.end(),
                       [&](const auto& node) { return names.insert(node->get_friendly_name()).second; });
}

// The placement of a model: that of its reading, or that stored in it if `reading` is null. Devices that programs have
// set on its nodes are added at the end of its list. Throws std::invalid_argument if there are too many devices.
StoredPlacement placement_of(const Reading* reading, const ov::Model& model, const ov::NodeVector& nodes) {
    StoredPlacement placement;
    if (reading != nullptr) {
        placement = reading->placement;
    } else {  // the program has removed all outputs that were read
        try {
            placement = on_devices_here(StoredPlacement::of(model));
        } catch (const std::exception&) {
            placement = {};  // only the affinities of the nodes are known
        }
    }
    for (const auto& node : nodes) {
        if (has_affinity(*node) && !placement.has(affinity_of(*node))) placement.devices.push_back(affinity_of(*node));
    }
    if (placement.devices.size() > kMostDevices) throw std::invalid_argument("its nodes name too many devices");
    return placement;
}

// Gives a device to every node of a copy that HETERO made for itself. It leaves the copy as it is if no node has an
// affinity, or all have one and these are known to be legal.
void complete_copy(const std::shared_ptr<ov::Model>& copy) {
    const ov::NodeVector nodes = copy->get_ordered_ops();
    const auto placed = std::count_if(nodes.begin(), nodes.end(), [](const auto& node) { return has_affinity(*node); });
    if (placed == 0) return;  // no placement, or the program removed it
    const auto reading = reading_of(*copy);
    const bool is_ours = reading != nullptr || StoredPlacement::is_in(*copy);
    const bool is_complete = static_cast<std::size_t>(placed) == nodes.size();
    const bool is_settled = !is_ours || (reading != nullptr && reading->settled && has_unique_names(nodes));
    if (is_complete && is_settled) return;
    if (!is_ours) say_once("some nodes of a model have affinities and others have none: these follow their neighbours");
    placement_of(reading.get(), *copy, nodes).apply(copy);
}

// The function that HETERO calls instead of ov::Model::clone. A call is the same for both, as the object of a member
// function is its first argument.
std::shared_ptr<ov::Model> clone_for_hetero(const ov::Model* model) {
    std::shared_ptr<ov::Model> copy = model->clone();
    if (disabled()) return copy;
    try {
        complete_copy(copy);
    } catch (const std::exception& error) {
        say_once(std::string("nodes that were added to a placed model get no device: ") + error.what());
    }
    return copy;
}

// Loads HETERO and lets it call clone_for_hetero.
void redirect_hetero() {
    ov::Core core;
    core.get_versions("HETERO");  // loads the plugin
    const std::string openvino = library_of(reinterpret_cast<const void*>(&ov::get_openvino_version));
    std::string reason;
    const void* clone = find_function(openvino, kCloneSymbol, reason);
    if (clone != nullptr) {
        redirect_import(kHeteroLibrary, kCloneSymbol, clone, reinterpret_cast<const void*>(&clone_for_hetero));
    }
}

}  // namespace

void complete_copies_of_hetero() noexcept {
    static std::once_flag once;
    try {
        std::call_once(once, &redirect_hetero);
    } catch (const std::exception&) {  // without HETERO nothing reads affinities
    }
}

}  // namespace ov_hsdag
