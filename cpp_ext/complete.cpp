// The steps of completion. Votes elects the device of each group. Unknown groups take the device of neighbours,
// first from producers in ascending order of nodes, then from consumers in descending order.
#include "complete.hpp"

#include <algorithm>
#include <stdexcept>

#include "repair.hpp"

namespace ov_hsdag {
namespace {

// Throws std::invalid_argument unless `device` has a number from `least` to devices - 1 for each node.
void expect_devices(const Legality& legality, std::span<const std::int32_t> device, std::int32_t least,
                    std::int32_t devices) {
    const bool fits =
        devices >= 1 && device.size() == legality.graph().kind.size() &&
        std::all_of(device.begin(), device.end(), [&](std::int32_t one) { return one >= least && one < devices; });
    if (!fits) throw std::invalid_argument("expected a device for each node");
}

// Counts votes of nodes for the devices of their groups, [groups, devices]. Parameters, Constants and Results decide
// only in groups without operations.
class Votes {
public:
    Votes(const Legality& legality, const std::vector<std::int32_t>& group, std::int32_t devices)
        : graph_(legality.graph()), group_(group), devices_(static_cast<std::size_t>(devices)) {
        const std::int32_t groups = group.empty() ? 0 : *std::max_element(group.begin(), group.end()) + 1;
        counts_.assign(static_cast<std::size_t>(groups) * devices_, 0);
    }
    // Adds a node's vote for a device.
    void add(std::int32_t node, std::int32_t device) {
        counts_[static_cast<std::size_t>(group_[node]) * devices_ + static_cast<std::size_t>(device)] +=
            graph_.kind[node] == NodeKind::kOp ? graph_.nodes() : 1;
    }
    // The device with the most votes, the first of equal ones, and -1 without votes. [groups]
    [[nodiscard]] std::vector<std::int32_t> winners() const {
        std::vector<std::int32_t> best;
        for (auto row = counts_.begin(); row != counts_.end(); row += static_cast<std::ptrdiff_t>(devices_)) {
            const auto most = std::max_element(row, row + static_cast<std::ptrdiff_t>(devices_));
            best.push_back(*most == 0 ? -1 : static_cast<std::int32_t>(most - row));
        }
        return best;
    }

private:
    const Graph& graph_;
    const std::vector<std::int32_t>& group_;
    std::size_t devices_;
    std::vector<std::int64_t> counts_;
};

}  // namespace

std::vector<std::int32_t> host_devices(const Legality& legality, std::span<const std::int32_t> known,
                                       std::int32_t devices) {
    expect_devices(legality, known, -1, devices);
    const Graph& graph = legality.graph();
    const Flags& replicable = legality.replicable();
    const std::vector<std::int32_t>& group = legality.hosts();
    Votes votes(legality, group, devices);
    for (std::int32_t node = 0; node < graph.nodes(); ++node) {
        if (known[node] >= 0 && replicable[node] == 0) votes.add(node, known[node]);
    }
    std::vector<std::int32_t> chosen = votes.winners();
    // An unknown node joins the last of its known producers, as the others run before that one; without any, it joins
    // the first of its consumers, as the others run later. So it does not split a submodel.
    std::vector<bool> decided;  // [groups] whether the group has a device before the present walk over the edges
    for (const std::int32_t device : chosen) decided.push_back(device >= 0);
    // Whether edge e connects two groups of hosts, and group g still needs a device.
    const auto unknown = [&](std::int32_t e, std::int32_t g) {
        return replicable[graph.source[e]] == 0 && group[graph.source[e]] != group[graph.target[e]] && !decided[g];
    };
    std::vector<std::int32_t> last(chosen.size(), -1);
    for (std::int32_t e = 0; e < graph.edges(); ++e) {
        const std::int32_t from = chosen[group[graph.source[e]]];
        const std::int32_t target = group[graph.target[e]];
        if (from < 0 || !unknown(e, target) || graph.source[e] <= last[target]) continue;
        last[target] = graph.source[e];
        chosen[target] = from;
    }
    for (std::size_t g = 0; g < chosen.size(); ++g) decided[g] = chosen[g] >= 0;
    for (std::int32_t e = graph.edges() - 1; e >= 0; --e) {
        const std::int32_t to = chosen[group[graph.target[e]]];
        if (to >= 0 && unknown(e, group[graph.source[e]])) chosen[group[graph.source[e]]] = to;
    }
    std::vector<std::int32_t> device;
    for (const std::int32_t g : group) device.push_back(std::max(chosen[g], 0));
    return device;
}

Replication replication(const Legality& legality, std::span<const std::int32_t> home,
                        std::span<const std::uint8_t> copyable) {
    const Graph& graph = legality.graph();
    if (home.size() != graph.kind.size() || (!copyable.empty() && copyable.size() != home.size())) {
        throw std::invalid_argument("expected a home for each node");
    }
    struct Consumers {
        std::int32_t home;
        std::vector<Replica::Input> inputs;
    };
    const Flags& replicable = legality.replicable();
    Replication result{{home.begin(), home.end()}, {}};
    std::vector<std::vector<Consumers>> consumers(home.size());  // by home, in the order of the first consumers

    // Notes that an instance of a node (itself or a replica, see Replica::Input) reads its inputs at a home.
    const auto note_inputs = [&](std::int32_t node, std::int32_t instance, std::int32_t where) {
        for (std::int32_t e = graph.input_ptr[node]; e < graph.input_ptr[node + 1]; ++e) {
            const std::int32_t source = graph.source[e];
            if (replicable[source] == 0) continue;
            auto& lists = consumers[source];
            auto list =
                std::find_if(lists.begin(), lists.end(), [&](const Consumers& one) { return one.home == where; });
            if (list == lists.end()) list = lists.insert(lists.end(), {where, {}});
            list->inputs.emplace_back(instance, e - graph.input_ptr[node]);
        }
    };

    // Consumers are handled before producers, so that a copy's own inputs are copied in turn.
    for (std::int32_t node = graph.nodes() - 1; node >= 0; --node) {
        auto& lists = consumers[node];
        if (!lists.empty()) {
            std::stable_sort(lists.begin(), lists.end(),
                             [](const Consumers& a, const Consumers& b) { return a.inputs.size() > b.inputs.size(); });
            result.home[node] = lists.front().home;
        }
        note_inputs(node, node, result.home[node]);
        if (!copyable.empty() && copyable[node] == 0) continue;
        for (std::size_t other = 1; other < lists.size(); ++other) {
            const auto number = static_cast<std::int32_t>(result.replicas.size());
            result.replicas.push_back({node, lists[other].home, std::move(lists[other].inputs)});
            // Nodes that depend on constants are copied with their inputs, so these get no further consumer.
            if (legality.constant()[node] == 0) note_inputs(node, graph.nodes() + number, result.replicas.back().home);
        }
    }
    return result;
}

std::vector<std::uint8_t> settle(const Legality& legality, std::span<const std::int32_t> device, std::int32_t devices,
                                 SplitRule rule) {
    expect_devices(legality, device, 0, devices);
    const Graph& graph = legality.graph();
    const std::vector<std::int32_t>& group = legality.groups();
    Votes votes(legality, group, devices);
    for (std::int32_t node = 0; node < graph.nodes(); ++node) votes.add(node, device[node]);
    const std::vector<std::int32_t> winners = votes.winners();
    const std::vector<std::uint8_t> everywhere(winners.size() * static_cast<std::size_t>(devices), 1);
    const std::vector<std::uint8_t> repaired =
        repair(graph, group, legality.same_submodel(), {winners.begin(), winners.end()}, everywhere, devices, rule);
    std::vector<std::uint8_t> result;
    for (const std::int32_t g : group) result.push_back(repaired[g]);
    return result;
}

std::vector<std::uint8_t> complete_in_place(const Legality& legality, std::span<const std::int32_t> known,
                                            std::int32_t devices, SplitRule rule) {
    const Graph& graph = legality.graph();
    std::vector<std::int32_t> device = host_devices(legality, known, devices);
    // Replicable producers take the device of their first consumer in the graph; consumers come later in the order.
    for (std::int32_t node = graph.nodes() - 1; node >= 0; --node) {
        for (std::int32_t e = graph.input_ptr[node]; e < graph.input_ptr[node + 1]; ++e) {
            if (legality.replicable()[graph.source[e]] != 0) device[graph.source[e]] = device[node];
        }
    }
    return settle(legality, device, devices, rule);
}

}  // namespace ov_hsdag
