// Two tiers on the public traces: between what vLLM's own eager connector reached on them and what perfect knowledge
// could reach with the same memory. Bounds: replays of vLLM's code and an exact optimum, counted as hostkv replay
// counts, to four digits.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "bench/replay/replay.h"
#include "bench/replay/trace.h"
#include "tests/support/trace_folder.h"

namespace hostkv::bench {
namespace {

using testing::have_traces;
using testing::trace_folder;

struct Bounds {
  std::int64_t host_blocks = 0;
  double vllm_eager = 0;
  double optimum = 0;
};

constexpr std::int64_t kDeviceBlocks = 5'000;

double four_digits(double rate) {
  return std::round(rate * 1e4) / 1e4;
}

void expect_between(const char* file, const std::vector<Bounds>& cells) {
  const Result<Trace> trace = read_trace((trace_folder() / file).string());
  ASSERT_TRUE(trace) << trace.error().message();
  for (const Bounds& bounds : cells) {
    SCOPED_TRACE(std::string(file) + ", host blocks " + std::to_string(bounds.host_blocks));
    ReplayCell cell;
    cell.trace = &*trace;
    cell.geometry = trace_geometry(*trace, 1, 1);
    cell.device_blocks = kDeviceBlocks;
    cell.host_blocks = bounds.host_blocks;
    const Result<ReplayResult> result = run_replay(cell, [](std::int64_t) {});
    ASSERT_TRUE(result) << result.error().message();
    const double total = four_digits(result->device_hit_rate() + result->host_hit_rate());
    EXPECT_GE(total, bounds.vllm_eager);
    EXPECT_LE(total, bounds.optimum);
    EXPECT_GT(result->host_hit_rate(), 0.0);
    EXPECT_GT(result->bytes_checked, 0);
    EXPECT_EQ(result->bytes_wrong, 0);
  }
}

TEST(TwoTierBounds, ConversationLiesBetweenVllmEagerAndTheOptimum) {
  if (!have_traces()) return;
  expect_between("mooncake_conversation_trace.jsonl",
                 {{5'000, 0.1166, 0.3664}, {10'000, 0.2051, 0.3664}, {30'000, 0.3239, 0.3664}});
}

TEST(TwoTierBounds, SyntheticLiesBetweenVllmEagerAndTheOptimum) {
  if (!have_traces()) return;
  expect_between("mooncake_synthetic_trace.jsonl",
                 {{5'000, 0.2934, 0.6180}, {10'000, 0.4132, 0.6396}, {30'000, 0.6242, 0.6396}});
}

}  // namespace
}  // namespace hostkv::bench
