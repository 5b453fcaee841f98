// E2 over whole replays: lazy stores leave the device what it hits without a host, and never cost more than they bring.

#include <gtest/gtest.h>

#include <string>

#include "bench/replay/replay.h"
#include "bench/replay/workload.h"

namespace hostkv::bench {
namespace {

ReplayResult replayed(const Trace& trace, std::int64_t device_blocks, std::int64_t host_blocks, StoreMode mode) {
  ReplayCell cell;
  cell.trace = &trace;
  cell.geometry = trace_geometry(trace, 1, 1);
  cell.device_blocks = device_blocks;
  cell.host_blocks = host_blocks;
  cell.connector.store_mode = mode;
  const Result<ReplayResult> result = run_replay(cell, [](std::int64_t) {});
  EXPECT_TRUE(result) << result.error().message();
  return result.value_or(ReplayResult{});
}

TEST(LazyReplay, LeavesTheDeviceItsHitsOnPoolsOfAnySize) {
  const Result<Trace> trace = make_workload("chat", 1, kDefaultWorkloadRequests);
  ASSERT_TRUE(trace) << trace.error().message();
  for (const std::int64_t device_blocks : {200, 1000}) {
    const ReplayResult alone = replayed(*trace, device_blocks, 0, StoreMode::kEager);
    ASSERT_GT(alone.device_hit_rate(), 0.1);
    for (const std::int64_t host_blocks : {10, 4000}) {
      SCOPED_TRACE("device " + std::to_string(device_blocks) + ", host " + std::to_string(host_blocks));
      const ReplayResult lazy = replayed(*trace, device_blocks, host_blocks, StoreMode::kLazy);
      EXPECT_NEAR(lazy.device_hit_rate(), alone.device_hit_rate(), 1e-3);
      EXPECT_GE(lazy.host_hit_rate(), host_blocks > 1000 ? 0.2 : 0.0);
      EXPECT_EQ(lazy.bytes_wrong, 0);
    }
  }
}

}  // namespace
}  // namespace hostkv::bench
