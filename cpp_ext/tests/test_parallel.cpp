// Tests of parallel_for: each item is worked on once, and exceptions reach the caller.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "parallel.hpp"
#include "tests.hpp"

namespace {

using namespace ov_hsdag;

void test_each_item_is_worked_on_once() {
    for (const std::size_t threads : {std::size_t{0}, std::size_t{1}, std::size_t{3}, std::size_t{50}}) {
        std::vector<int> seen(17, 0);
        std::atomic<std::size_t> made{0};
        parallel_for(seen.size(), threads, [&](std::size_t thread) {
            CHECK(thread < std::max<std::size_t>(threads, 1));
            ++made;
            return [&](std::size_t item) { ++seen[item]; };
        });
        for (const int times : seen) CHECK(times == 1);
        CHECK(made <= std::min<std::size_t>(std::max<std::size_t>(threads, 1), seen.size()));
    }
    parallel_for(0, 4, [](std::size_t) { return [](std::size_t) { CHECK(false); }; });
}

// An exception that is not caught on the thread that throws it would end the process.
void test_exceptions_of_threads_reach_the_caller() {
    const std::thread::id caller = std::this_thread::get_id();
    constexpr std::size_t kItems = 1000;
    std::atomic<bool> thrown{false};
    std::atomic<std::size_t> begun{0};
    std::string message;
    try {
        parallel_for(kItems, 2, [&](std::size_t) {
            return [&](std::size_t) {
                ++begun;
                if (std::this_thread::get_id() != caller) {
                    thrown = true;
                    throw std::runtime_error("a thread failed");
                }
                // The caller leaves at least one item to the other thread.
                while (!thrown) std::this_thread::yield();
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            };
        });
    } catch (const std::runtime_error& error) {
        message = error.what();
    }
    CHECK(message == "a thread failed");
    CHECK(begun < kItems);
}

void test_exceptions_of_the_caller_and_of_states_reach_the_caller() {
    const auto message_of = [](const auto& make_work) {
        try {
            parallel_for(8, 3, make_work);
        } catch (const std::runtime_error& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    const auto failing_work = [](std::size_t) { return [](std::size_t) { throw std::runtime_error("work"); }; };
    CHECK(message_of(failing_work) == "work");
    const auto failing_state = [](std::size_t thread) {
        if (thread == 0) throw std::runtime_error("state");
        return [](std::size_t) {};
    };
    CHECK(message_of(failing_state) == "state");
}

}  // namespace

void test_parallel() {
    test_each_item_is_worked_on_once();
    test_exceptions_of_threads_reach_the_caller();
    test_exceptions_of_the_caller_and_of_states_reach_the_caller();
}
