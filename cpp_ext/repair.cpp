// Repairs one fault per round: splits the placement, finds a submodel that is wrong, and moves its groups to a
// neighbour's device. If this does not end, all groups go to one device.
#include "repair.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

namespace ov_hsdag {
namespace {

// Repairs one placement of groups. node_device_ has the devices of nodes in the present round.
class Repairer {
public:
    Repairer(const Graph& graph, std::span<const std::int32_t> group, const Pairs& same_submodel,
             std::span<const std::uint8_t> supported, std::int32_t devices)
        : graph_(graph),
          group_(group),
          same_submodel_(same_submodel),
          supported_(supported),
          devices_(devices),
          node_device_(group.size()) {}

    // Moves submodels until nothing is wrong, at most as often as there are groups. Returns the device of each group.
    std::vector<std::uint8_t> run(std::vector<std::uint8_t> device, SplitRule rule) {
        Splitter splitter(graph_, rule);
        for (std::size_t round = 0; round < device.size(); ++round) {
            for (std::size_t node = 0; node < group_.size(); ++node) node_device_[node] = device[group_[node]];
            const Split& split = splitter.split(node_device_.data());
            const Wrong wrong = find_wrong(split);
            if (!wrong.found) return device;
            if (!move(split.submodel, wrong.submodel, device)) break;
        }
        for (std::int32_t one = 0; one < devices_; ++one) {
            bool runs_all = true;
            for (std::size_t g = 0; runs_all && g < device.size(); ++g) runs_all = is_supported(g, one);
            if (runs_all) return std::vector<std::uint8_t>(device.size(), static_cast<std::uint8_t>(one));
        }
        return device;
    }

private:
    struct Wrong {
        bool found = false;
        std::int32_t submodel = -1;  // the submodel to move; -1 also for nodes in no submodel
    };

    [[nodiscard]] bool is_supported(std::size_t group, std::int32_t device) const {
        return supported_[group * static_cast<std::size_t>(devices_) + static_cast<std::size_t>(device)] != 0;
    }

    // The key of the smallest value; `sizes` is not empty.
    static std::int32_t smallest(const std::map<std::int32_t, std::int32_t>& sizes) {
        return std::min_element(sizes.begin(), sizes.end(),
                                [](const auto& a, const auto& b) { return a.second < b.second; })
            ->first;
    }

    // Finds a fault of a split and the submodel to move. If a submodel is trivial, it is this one. If a pair is
    // separated, it is the smallest one on another device that feeds the submodel of its second node. If submodels wait
    // for each other, it is the smallest one on a cycle.
    [[nodiscard]] Wrong find_wrong(const Split& split) const {
        const std::vector<std::int32_t>& submodel = split.submodel;
        const auto trivial = std::find_if(submodel.begin(), submodel.end(),
                                          [&](std::int32_t id) { return id >= 0 && split.trivial[id] != 0; });
        if (trivial != submodel.end()) return {true, *trivial};
        const auto separated = std::find_if(same_submodel_.begin(), same_submodel_.end(), [&](const auto& pair) {
            return submodel[pair.first] != submodel[pair.second];
        });
        std::map<std::int32_t, std::int32_t> sizes;
        if (separated != same_submodel_.end()) {
            // Submodels on other devices that feed one end of the pair cause the split; the smallest of them moves.
            const std::int32_t end = submodel[separated->second];
            std::set<std::int32_t> feeders;
            for (std::int32_t e = 0; e < graph_.edges(); ++e) {
                const std::int32_t source = graph_.source[e];
                const std::int32_t target = graph_.target[e];
                if (submodel[target] == end && node_device_[source] != node_device_[target]) {
                    feeders.insert(submodel[source]);
                }
            }
            for (const std::int32_t id : submodel) {
                if (feeders.count(id) != 0) ++sizes[id];
            }
            return {true, sizes.empty() ? end : smallest(sizes)};
        }
        if (split.sortable) return {};
        for (std::size_t node = 0; node < submodel.size(); ++node) {
            if (split.cyclic[node] != 0) ++sizes[submodel[node]];
        }
        return {true, smallest(sizes)};
    }

    // Moves the groups of a submodel to the device of most of its neighbours; false if no device supports them.
    [[nodiscard]] bool move(const std::vector<std::int32_t>& submodel, std::int32_t moving,
                            std::vector<std::uint8_t>& device) const {
        const auto inside = [&](std::int32_t node) { return submodel[node] == moving; };
        std::vector<std::int64_t> votes(static_cast<std::size_t>(devices_), 0);
        for (std::int32_t e = 0; e < graph_.edges(); ++e) {
            const std::int32_t source = graph_.source[e];
            const std::int32_t target = graph_.target[e];
            if (inside(source) != inside(target)) ++votes[node_device_[inside(source) ? target : source]];
        }
        std::set<std::int32_t> moved;
        for (std::int32_t node = 0; node < graph_.nodes(); ++node) {
            if (inside(node)) moved.insert(group_[node]);
        }
        votes[device[*moved.begin()]] = -1;
        for (std::int32_t one = 0; one < devices_; ++one) {
            for (const std::int32_t g : moved) {
                if (!is_supported(static_cast<std::size_t>(g), one)) votes[one] = -1;
            }
        }
        const auto best = std::max_element(votes.begin(), votes.end());
        if (*best < 0) return false;
        for (const std::int32_t g : moved) device[g] = static_cast<std::uint8_t>(best - votes.begin());
        return true;
    }

    const Graph& graph_;
    std::span<const std::int32_t> group_;
    const Pairs& same_submodel_;
    std::span<const std::uint8_t> supported_;
    std::int32_t devices_;
    std::vector<std::uint8_t> node_device_;
};

}  // namespace

std::vector<std::uint8_t> repair(const Graph& graph, std::span<const std::int32_t> group, const Pairs& same_submodel,
                                 std::vector<std::uint8_t> device, std::span<const std::uint8_t> supported,
                                 std::int32_t devices, SplitRule rule) {
    const auto fits = [](std::int32_t number, std::size_t end) {
        return number >= 0 && static_cast<std::size_t>(number) < end;
    };
    bool good = devices >= 1 && group.size() == graph.kind.size() &&
                supported.size() == device.size() * static_cast<std::size_t>(devices);
    for (const std::int32_t g : group) good = good && fits(g, device.size());
    for (const std::uint8_t d : device) good = good && d < devices;
    for (const auto& [a, b] : same_submodel) good = good && fits(a, group.size()) && fits(b, group.size());
    if (!good) throw std::invalid_argument("expected groups, pairs and devices of the graph");
    return Repairer(graph, group, same_submodel, supported, devices).run(std::move(device), rule);
}

}  // namespace ov_hsdag
