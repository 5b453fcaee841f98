#include "offload/host_pool.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "base/memory_limit.h"
#include "base/numa.h"

namespace hostkv {
namespace {

// Pages that this process has mapped, from the system.
std::int64_t mapped_bytes_of_process() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t pages = 0;
  statm >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

TEST(HostPool, MapsWhatWasAskedForRoundedUpToOnePage) {  // R17, field case J3
  const std::int64_t page = sysconf(_SC_PAGESIZE);
  for (const std::int64_t asked :
       {std::int64_t{1}, page, page + 1, std::int64_t{3 << 20}, std::int64_t{(33 << 20) + 5}}) {
    SCOPED_TRACE(asked);
    const std::int64_t before = mapped_bytes_of_process();
    const auto pool = HostPool::create({.size_bytes = asked, .numa_node = {}}).value();
    EXPECT_EQ(pool->size_bytes(), asked);
    EXPECT_GE(pool->mapped_bytes(), asked);
    EXPECT_LT(pool->mapped_bytes(), asked + page);
    EXPECT_EQ(pool->mapped_bytes() % page, 0);
    EXPECT_LE(mapped_bytes_of_process() - before, asked + page + (1 << 20)) << "the heap may grow a little meanwhile";
  }
}

TEST(HostPool, GivesItsMemoryBack) {
  constexpr std::int64_t kBytes = std::int64_t{256} << 20;
  const std::int64_t before = mapped_bytes_of_process();
  { const auto pool = HostPool::create({.size_bytes = kBytes, .numa_node = {}}).value(); }
  EXPECT_LT(mapped_bytes_of_process() - before, kBytes);
}

TEST(HostPool, BeginsAtAPageAndIsZeroAndWritableToItsEnd) {
  const auto pool = HostPool::create({.size_bytes = 3 * 4096 + 7, .numa_node = {}}).value();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pool->data()) % 4096, 0U);
  std::byte* const end = pool->data() + pool->size_bytes();
  EXPECT_TRUE(std::all_of(pool->data(), end, [](std::byte b) { return b == std::byte{0}; }));
  std::fill(pool->data(), end, std::byte{0x5A});
  EXPECT_EQ(end[-1], std::byte{0x5A});
}

TEST(HostPool, PrefaultKeepsWhatWasWritten) {
  constexpr std::int64_t kBytes = 83 * 4096 + 123;
  for (const std::int64_t threads : {1, 2, 7, 100}) {
    const auto pool = HostPool::create({.size_bytes = kBytes, .numa_node = {}}).value();
    pool->data()[0] = std::byte{1};
    pool->data()[kBytes - 1] = std::byte{2};
    pool->prefault(threads);
    EXPECT_EQ(pool->data()[0], std::byte{1});
    EXPECT_EQ(pool->data()[kBytes - 1], std::byte{2});
    EXPECT_TRUE(
        std::all_of(pool->data() + 1, pool->data() + kBytes - 1, [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST(HostPool, RefusesSizesThatAreNotPositive) {
  EXPECT_EQ(HostPool::create({.size_bytes = 0, .numa_node = {}}).error().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(HostPool::create({.size_bytes = -5, .numa_node = {}}).error().code(), StatusCode::kInvalidArgument);
}

TEST(HostPool, RefusesMoreThanTheMachineHasAndNamesBothNumbers) {
  for (const std::int64_t asked : {memory_limit_bytes() + 1, std::int64_t{1} << 50, INT64_MAX}) {
    const auto pool = HostPool::create({.size_bytes = asked, .numa_node = {}});
    ASSERT_FALSE(pool.has_value());
    EXPECT_EQ(pool.error().code(), StatusCode::kResourceExhausted);
    EXPECT_NE(pool.error().message().find(std::to_string(asked)), std::string::npos);
    EXPECT_NE(pool.error().message().find(std::to_string(memory_limit_bytes())), std::string::npos);
  }
}

TEST(HostPool, WorksOnEveryNodeAndOnNodesThatDoNotExist) {  // field case J9
  for (const int node : {0, num_numa_nodes() - 1, num_numa_nodes(), 4096, -1}) {
    ::testing::internal::CaptureStderr();
    const auto pool = HostPool::create({.size_bytes = 1 << 16, .numa_node = node});
    const std::string log = ::testing::internal::GetCapturedStderr();
    ASSERT_TRUE(pool.has_value());
    (*pool)->data()[0] = std::byte{1};
    if (node < 0 || node >= num_numa_nodes()) {
      EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
      EXPECT_NE(log.find("warning"), std::string::npos) << log;
      EXPECT_NE(log.find(std::to_string(node)), std::string::npos) << log;
    }
  }
}

}  // namespace
}  // namespace hostkv
