// Tests of minimum cuts on random networks, against all cuts by brute force.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "min_cut.hpp"
#include "tests.hpp"

namespace {

using namespace ov_hsdag;

struct Network {
    std::int32_t nodes = 0;
    std::vector<std::int32_t> start, end;
    std::vector<double> capacity;

    // The capacity of the edges from the source's side to the sink's side.
    [[nodiscard]] double cut(const std::vector<std::uint8_t>& sink_side) const {
        double sum = 0;
        for (std::size_t e = 0; e < start.size(); ++e) {
            if (!sink_side[start[e]] && sink_side[end[e]]) sum += capacity[e];
        }
        return sum;
    }
};

Network random_network(std::mt19937& random) {
    Network network;
    network.nodes = 2 + static_cast<std::int32_t>(random() % 7);
    const std::size_t edges = random() % 20;
    for (std::size_t e = 0; e < edges; ++e) {
        network.start.push_back(static_cast<std::int32_t>(random() % network.nodes));
        network.end.push_back(static_cast<std::int32_t>(random() % network.nodes));
        network.capacity.push_back(random() % 4 == 0 ? 0.0 : static_cast<double>(random() % 1000) / 7);
    }
    return network;
}

void test_cuts_of_random_networks_are_minimal() {
    std::mt19937 random(7);
    for (int round = 0; round < 500; ++round) {
        const Network network = random_network(random);
        const auto found = sink_side_of_min_cut(network.nodes, 0, 1, network.start, network.end, network.capacity);
        CHECK(!found[0] && found[1]);
        double best = std::numeric_limits<double>::infinity();
        for (std::uint32_t bits = 0; bits < 1U << network.nodes; ++bits) {
            std::vector<std::uint8_t> side(static_cast<std::size_t>(network.nodes));
            for (std::int32_t n = 0; n < network.nodes; ++n) side[n] = bits >> n & 1;
            if (!side[0] && side[1]) best = std::min(best, network.cut(side));
        }
        CHECK(network.cut(found) <= best * (1 + 1e-9) + 1e-9);
    }
}

void test_the_cut_does_not_depend_on_the_order_of_edges() {
    std::mt19937 random(11);
    for (int round = 0; round < 200; ++round) {
        Network network = random_network(random);
        const auto before = sink_side_of_min_cut(network.nodes, 0, 1, network.start, network.end, network.capacity);
        std::reverse(network.start.begin(), network.start.end());
        std::reverse(network.end.begin(), network.end.end());
        std::reverse(network.capacity.begin(), network.capacity.end());
        CHECK(before == sink_side_of_min_cut(network.nodes, 0, 1, network.start, network.end, network.capacity));
    }
}

template <typename Work>
bool refused(const Work& work) {
    try {
        work();
    } catch (const std::invalid_argument&) {
        return true;
    }
    return false;
}

void test_bad_networks_are_refused() {
    const double infinite = std::numeric_limits<double>::infinity();
    const std::vector<std::int32_t> zero{0}, one{1}, two{2};
    CHECK(refused([&] { sink_side_of_min_cut(2, 0, 0, {}, {}, {}); }));
    CHECK(refused([&] { sink_side_of_min_cut(2, 0, 1, zero, two, std::vector<double>{1}); }));
    CHECK(refused([&] { sink_side_of_min_cut(2, 0, 1, zero, one, std::vector<double>{-1}); }));
    CHECK(refused([&] { sink_side_of_min_cut(2, 0, 1, zero, one, {}); }));
    CHECK(refused([&] { sink_side_of_min_cut(2, 0, 1, zero, one, std::vector<double>{infinite}); }));
}

}  // namespace

void test_min_cut() {
    test_cuts_of_random_networks_are_minimal();
    test_the_cut_does_not_depend_on_the_order_of_edges();
    test_bad_networks_are_refused();
}
