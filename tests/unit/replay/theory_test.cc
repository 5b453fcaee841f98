#include "bench/replay/theory.h"

#include <gtest/gtest.h>

namespace hostkv::bench {
namespace {

TEST(SeenBlocks, CountsOnlyTheLeadingBlocksSeenBefore) {
  SeenBlocks seen;
  EXPECT_EQ(seen.visit(std::vector<std::int64_t>{0, 1, 2}), 0);
  EXPECT_EQ(seen.visit(std::vector<std::int64_t>{0, 1, 3}), 2);
  EXPECT_EQ(seen.visit(std::vector<std::int64_t>{0, 1, 3, 4}), 3);
  EXPECT_EQ(seen.visit(std::vector<std::int64_t>{9, 1}), 0);
  EXPECT_EQ(seen.visit(std::vector<std::int64_t>{}), 0);
}

TEST(InfiniteHitRate, IsTheShareOfBlocksThatAnUnlimitedCacheHits) {
  Trace trace;
  EXPECT_EQ(infinite_hit_rate(trace), 0.0);
  trace.requests.resize(2);
  trace.requests[0].block_ids = {0, 1};
  trace.requests[1].block_ids = {0, 2};
  EXPECT_DOUBLE_EQ(infinite_hit_rate(trace), 0.25);
}

}  // namespace
}  // namespace hostkv::bench
