// The parallel loop that all parts of the core use. Work is divided item by item, so that results do not depend on the
// number of threads if items do not depend on each other.
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
// thread gets its own `work` from `make_work(thread)`, which may have state; threads are numbered from 0. A thread that
// has finished an item takes the next one.
//
// An exception of `work` or `make_work` ends the loop: items that have begun are finished, others are left out, and the
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
            // The system gives no more threads, so that the existing ones do all of the work.
        }
        loop(0);
    }
    if (failure) std::rethrow_exception(failure);
}

}  // namespace ov_hsdag
