// Drafts: what is scheduled, what is kept of it, and the tables of states that have blocks for them.

#include <gtest/gtest.h>

#include <set>

#include "tests/support/engine_support.h"

namespace hostkv::bench::testing {
namespace {

TEST(Speculative, V12TheTableHasTheBlocksOfDraftsAtItsEnd) {
  EngineConfig config = device_config({full(32), mamba(32)}, 60);
  config.num_speculative_tokens = 2;
  config.max_batched_tokens = 96;
  const auto engine = make_engine(config);
  const Result<RequestId> id = engine->add_request({.prompt_tokens = make_prompt(100), .max_new_tokens = 60});
  ASSERT_TRUE(id);
  while (!engine->idle()) {
    ASSERT_TRUE(engine->step().ok());
    ASSERT_TRUE(engine->check_conservation().ok());
    const Request* request = engine->request(*id);
    if (request == nullptr) break;
    const ScheduledRequest& chunk = engine->last_plan().scheduled.at(0);
    const std::int64_t known_end = chunk.num_computed_tokens + chunk.num_scheduled_tokens;
    const std::vector<BlockId>& table = request->tables[1];
    ASSERT_EQ(std::ssize(table), (known_end + 31) / 32 + 2);
    EXPECT_NE(table[table.size() - 3], kNullBlock);
    std::multiset<BlockId> blocks;
    for (const BlockId block : table) {
      if (block != kNullBlock) blocks.insert(block);
    }
    EXPECT_LE(blocks.size(), 4U);
    EXPECT_EQ(blocks.size(), std::set<BlockId>(blocks.begin(), blocks.end()).size());
  }
  EXPECT_EQ(engine->stats().bytes_wrong, 0);
}

TEST(Speculative, SchedulesKnownTokensAndGoesOnBehindTheAcceptedOnes) {
  EngineConfig config = device_config({full(16)}, 60);
  config.num_speculative_tokens = 3;
  const auto engine = make_engine(config);
  ASSERT_TRUE(engine->add_request({.prompt_tokens = make_prompt(20), .max_new_tokens = 40}));
  ASSERT_TRUE(engine->step().ok());
  std::int64_t last = 19;
  std::int64_t num_steps = 0;
  bool jumps = false;
  while (!engine->idle()) {
    ASSERT_TRUE(engine->step().ok());
    const ScheduledRequest& chunk = engine->last_plan().scheduled.at(0);
    EXPECT_EQ(chunk.num_scheduled_tokens, 1);
    EXPECT_GT(chunk.num_computed_tokens, last);
    jumps = jumps || chunk.num_computed_tokens > last + 1;
    last = chunk.num_computed_tokens;
    ++num_steps;
  }
  EXPECT_TRUE(jumps);
  EXPECT_LT(num_steps, 39);
  EXPECT_EQ(engine->stats().bytes_wrong, 0);
}

TEST(Speculative, AStateThatAcceptedDraftsPassIsHandedOffAndFound) {
  EngineConfig config = device_config({full(32), mamba(32)}, 60);
  config.num_speculative_tokens = 3;
  const auto engine = make_engine(config);
  const Result<RequestId> id = engine->add_request({.prompt_tokens = make_prompt(20), .max_new_tokens = 200});
  ASSERT_TRUE(id);
  auto [tokens, boundaries] = run_watching_hand_offs(*engine, *id);
  EXPECT_EQ(boundaries, (std::set<std::int64_t>{32, 64, 96, 128, 160, 192}));
  engine->take_reports();
  tokens.resize(193);
  EXPECT_EQ(run_prompt(*engine, tokens).device_hit_tokens, 192);
  EXPECT_EQ(engine->stats().bytes_wrong, 0);
}

}  // namespace
}  // namespace hostkv::bench::testing
