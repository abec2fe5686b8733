// The one loop over threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace ov_hsdag {

// Calls `work(item)` once for each item from 0 to items - 1, on the calling thread and up to threads - 1 others. Each
// thread gets its `work`, and with it the state that calls on one thread share, from `make_work(thread)`, thread being
// a number from 0. Threads take the next item when they have finished one.
//
// What `work` or `make_work` throws ends the loop: items that have begun are finished, others are left out, and the
// first exception is thrown again here. An exception that left a std::jthread would end the process instead.
template <typename MakeWork>
void parallel_for(std::size_t items, std::size_t threads, const MakeWork& make_work) {
    if (items == 0) return;
    std::atomic<std::size_t> next{0};
    std::mutex failing;
    std::exception_ptr failure;
    const auto loop = [&](std::size_t thread) noexcept {
        try {
            auto work = make_work(thread);
            for (std::size_t item = next++; item < items; item = next++) work(item);
        } catch (...) {
            const std::scoped_lock lock(failing);
            if (!failure) failure = std::current_exception();
            next = items;
        }
    };
    {
        std::vector<std::jthread> pool;
        const std::size_t workers = std::clamp<std::size_t>(threads, 1, items);
        pool.reserve(workers - 1);
        try {
            for (std::size_t thread = 1; thread < workers; ++thread) pool.emplace_back(loop, thread);
        } catch (const std::system_error&) {
            // The system gives no more threads: those that there are do all of the work.
        }
        loop(0);
    }
    if (failure) std::rethrow_exception(failure);
}

}  // namespace ov_hsdag
