#include "offload/copy_executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "offload/worker_team.h"
#include "tests/support/test_seed.h"

namespace hostkv {
namespace {

TEST(WorkerTeam, DoesEachPieceOnce) {
  for (const std::int64_t threads : {1, 2, 4, 9}) {
    WorkerTeam team(threads);
    for (const std::int64_t pieces : {0, 1, 2, 3, 100}) {
      std::vector<std::atomic<int>> counts(static_cast<std::size_t>(pieces));
      team.run(pieces, [&](std::int64_t piece) { ++counts[static_cast<std::size_t>(piece)]; });
      EXPECT_TRUE(std::all_of(counts.begin(), counts.end(), [](const auto& count) { return count == 1; }));
    }
  }
}

TEST(WorkerTeam, CanRunManyTimes) {
  WorkerTeam team(3);
  std::atomic<int> count{0};
  for (int i = 0; i < 200; ++i) {
    team.run(8, [&](std::int64_t) { ++count; });
    ASSERT_EQ(count, 8 * (i + 1)) << "run() returns after the last piece";
  }
}

class CopyExecutorTest : public ::testing::TestWithParam<std::int64_t> {};

// Spans of random sizes with gaps between their targets: every byte arrives, no byte beside them changes.
TEST_P(CopyExecutorTest, CopiesExactlyTheSpans) {
  const std::uint64_t seed = testing::test_seed(7);
  SCOPED_TRACE("HOSTKV_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  CopyExecutor executor(GetParam());
  const std::uint64_t rounds = testing::test_rounds(20);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    const std::uint64_t max_size = std::uint64_t{1} << (random() % 16);
    const std::size_t num_spans = random() % 30 + 1;
    std::vector<std::byte> source(max_size * 2 * num_spans);
    std::generate(source.begin(), source.end(),
                  [n = random()]() mutable { return static_cast<std::byte>((n += 0x9E3779B97F4A7C15U) >> 56U | 1U); });
    std::vector<std::byte> target(source.size());
    std::vector<std::byte> expected(source.size());
    std::vector<CopySpan> spans;
    for (std::size_t i = 0; i < num_spans; ++i) {
      const std::size_t at = i * max_size * 2 + random() % max_size;
      const std::size_t size = random() % max_size + 1;
      spans.push_back({source.data() + at, target.data() + at, static_cast<std::int64_t>(size)});
      std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(at), size,
                  expected.begin() + static_cast<std::ptrdiff_t>(at));
    }
    executor.copy(spans);
    ASSERT_TRUE(target == expected) << "round " << round << ", " << num_spans << " spans of up to " << max_size;
  }
}

TEST_P(CopyExecutorTest, SharesSizesAroundTheInlineBound) {
  CopyExecutor executor(GetParam());
  for (const std::int64_t size : {CopyExecutor::kInlineBytes - 1, CopyExecutor::kInlineBytes,
                                  CopyExecutor::kInlineBytes + 1, CopyExecutor::kInlineBytes * 3 + 63}) {
    const std::vector<std::byte> source(static_cast<std::size_t>(size), std::byte{0xA5});
    std::vector<std::byte> target(source.size() + 1);
    const CopySpan span{source.data(), target.data(), size};
    executor.copy({&span, 1});
    EXPECT_TRUE(std::equal(source.begin(), source.end(), target.begin()));
    EXPECT_EQ(target.back(), std::byte{0});
  }
}

TEST_P(CopyExecutorTest, CopiesNothingFromNoSpans) {
  CopyExecutor(GetParam()).copy({});
}

INSTANTIATE_TEST_SUITE_P(Threads, CopyExecutorTest, ::testing::Values(1, 2, 4));

}  // namespace
}  // namespace hostkv
