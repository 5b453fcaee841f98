#include "offload/host_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/memory_limit.h"
#include "base/numa.h"

namespace hostkv {
namespace {

constexpr std::int64_t kHugePageBytes = 2 * 1024 * 1024;

std::int64_t page_bytes() {
  static const std::int64_t size = sysconf(_SC_PAGESIZE);
  return size;
}

void touch_pages(std::byte* begin, std::byte* end) {
  for (std::byte* page = begin; page < end; page += page_bytes()) {
    // A write that changes nothing, even if somebody else writes there now.
    std::atomic_ref<unsigned char>(reinterpret_cast<unsigned char&>(*page)).fetch_or(0, std::memory_order_relaxed);
  }
}

Status too_big(std::int64_t size_bytes, const std::string& why) {
  return {StatusCode::kResourceExhausted,
          "a host pool of " + std::to_string(size_bytes) + " bytes was asked for; this process may have " +
              std::to_string(memory_limit_bytes()) + " bytes" + why + " (lower cpu_bytes_to_use)"};
}

}  // namespace

Result<std::unique_ptr<HostPool>> HostPool::create(const HostPoolOptions& options) {
  if (options.size_bytes <= 0) {
    return error(StatusCode::kInvalidArgument,
                 "host pool size_bytes is " + std::to_string(options.size_bytes) + "; it must be > 0");
  }
  if (options.size_bytes > memory_limit_bytes()) {
    return error(too_big(options.size_bytes, ""));
  }
  const std::int64_t mapped_bytes = (options.size_bytes + page_bytes() - 1) / page_bytes() * page_bytes();
  const auto length = static_cast<std::size_t>(mapped_bytes);
  void* const memory = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    const int code = errno;
    return error(too_big(options.size_bytes,
                         std::string("; mmap: ") + std::strerror(code) + " (errno " + std::to_string(code) + ")"));
  }
  std::unique_ptr<HostPool> pool(new HostPool(static_cast<std::byte*>(memory), options.size_bytes, mapped_bytes));
  if (mapped_bytes >= kHugePageBytes) {
    madvise(memory, length, MADV_HUGEPAGE);  // a wish: without huge pages the pool works as well, with more page walks
  }
  if (options.numa_node.has_value()) {
    const Status bound = bind_memory_to_numa_node(memory, mapped_bytes, *options.numa_node);
    if (!bound.ok()) {
      log_line(LogLevel::kWarning, "op=host_pool_bind status=" + bound.to_string());
    }
  }
  return pool;
}

HostPool::~HostPool() {
  munmap(data_, static_cast<std::size_t>(mapped_bytes_));
}

void HostPool::prefault(std::int64_t num_threads) {
  const std::int64_t num_pages = mapped_bytes_ / page_bytes();
  const std::int64_t pages_per_thread = (num_pages + num_threads - 1) / num_threads;
  std::vector<std::thread> threads;
  for (std::int64_t first = 0; first < num_pages; first += pages_per_thread) {
    const std::int64_t end = std::min(num_pages, first + pages_per_thread);
    threads.emplace_back(touch_pages, data_ + first * page_bytes(), data_ + end * page_bytes());
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace hostkv
