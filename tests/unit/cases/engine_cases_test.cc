// Field cases that need whole runs: every byte is checked before it is read, and every run must have hit.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/support/engine_support.h"

namespace hostkv::bench::testing {
namespace {

EngineConfig offload_config(std::vector<KvCacheGroup> groups, std::int64_t num_device_blocks) {
  EngineConfig config = device_config(std::move(groups), num_device_blocks);
  config.offload = true;
  config.settle_copies = true;
  config.connector.cpu_bytes_to_use_per_rank = host_bytes_for_blocks(config, 2000);
  return config;
}

EngineConfig with_hash(EngineConfig config, std::int64_t hash_block_tokens) {
  config.geometry.hash_block_tokens = hash_block_tokens;
  return config;
}

// `shared` tokens of one text, then others.
std::vector<std::int32_t> sharing(std::int64_t shared, std::int64_t num_tokens, std::int32_t seed) {
  std::vector<std::int32_t> tokens = make_prompt(shared, 1);
  const std::vector<std::int32_t> rest = make_prompt(num_tokens - shared, seed);
  tokens.insert(tokens.end(), rest.begin(), rest.end());
  return tokens;
}

void expect_right(const Engine& engine) {
  EXPECT_EQ(engine.stats().bytes_wrong, 0);
  EXPECT_GT(engine.stats().bytes_checked, 0);
  EXPECT_EQ(engine.stats().pinned_device_blocks, 0);
  EXPECT_TRUE(engine.check_conservation().ok()) << engine.check_conservation().to_string();
}

// 256 tokens are loaded and 44 computed, the request waits meanwhile; where hits end on hash blocks 288 and 12.
TEST(EngineFieldCases, B3AHybridModelComputesWhatItsLoadLeft) {
  for (const bool fine : {false, true}) {
    EngineConfig config = with_hash(offload_config({full(16), mamba(64)}, 100), 16);
    config.connector.boundaries = fine ? Boundaries::kFine : Boundaries::kCoarse;
    const auto engine = make_engine(config);
    ASSERT_NE(engine, nullptr);
    run_prompt(*engine, make_prompt(300));
    engine->evict_device_cache();
    const Result<RequestId> id = engine->add_request({.prompt_tokens = make_prompt(300)});
    ASSERT_TRUE(id);
    ASSERT_TRUE(engine->step().ok());
    EXPECT_TRUE(engine->last_plan().scheduled.empty()) << "its tokens are on their way";
    ASSERT_TRUE(engine->run_until_idle(10).ok());
    const auto reports = engine->take_reports();
    ASSERT_EQ(reports.size(), 1U);
    EXPECT_EQ(reports[0].host_hit_tokens, fine ? 288 : 256);
    EXPECT_EQ(reports[0].computed_tokens, fine ? 12 : 44);
    expect_right(*engine);
  }
}

// Cold, from the device, from the host, and from the device after the host: one prompt, a multiple of the state block.
TEST(EngineFieldCases, B18FourLegsOfOnePromptReadTheSameBytesAndAllButTheFirstHit) {
  for (const bool checkpoints : {false, true}) {
    EngineConfig config = with_hash(offload_config({full(64), mamba(64)}, 60), 16);
    config.prefill_checkpoints = checkpoints;
    const auto engine = make_engine(config);
    ASSERT_NE(engine, nullptr);
    const auto prompt = make_prompt(640);
    const RequestReport cold = run_prompt(*engine, prompt, 5);
    EXPECT_EQ(cold.device_hit_tokens + cold.host_hit_tokens, 0);
    const RequestReport device = run_prompt(*engine, prompt, 5);
    EXPECT_EQ(device.device_hit_tokens, 624);
    engine->evict_device_cache();
    const RequestReport host = run_prompt(*engine, prompt, 5);
    EXPECT_EQ(host.device_hit_tokens, 0);
    EXPECT_EQ(host.host_hit_tokens, 624);
    const RequestReport after = run_prompt(*engine, prompt, 5);
    EXPECT_EQ(after.device_hit_tokens, 624);
    expect_right(*engine);
  }
}

// A partly filled block of X must not serve Y behind the 384 tokens that they share.
TEST(EngineFieldCases, B20WhatDiffersInsideABlockIsComputedAgain) {
  EngineConfig config = with_hash(offload_config({full(256), mamba(256)}, 60), 64);
  config.max_batched_tokens = 256;  // leaves a state at 256, beside that of the tail
  const auto engine = make_engine(config);
  ASSERT_NE(engine, nullptr);
  run_prompt(*engine, sharing(384, 512, 2));
  engine->evict_device_cache();
  const RequestReport y = run_prompt(*engine, sharing(384, 512, 3));
  EXPECT_EQ(y.host_hit_tokens, 256);
  const RequestReport third = run_prompt(*engine, sharing(384, 512, 4));
  EXPECT_LE(third.host_hit_tokens + third.device_hit_tokens, 384);
  expect_right(*engine);
}

// Drafts: candidate states that were rejected are neither kept nor stored; a preempted request goes on from its own.
TEST(EngineFieldCases, B22APreemptedRequestWithDraftsGoesOnFromTheStateOfItsAcceptedTokens) {
  EngineConfig config = with_hash(offload_config({full(16), mamba(32)}, 24), 16);
  config.num_speculative_tokens = 3;
  config.max_batched_tokens = 48;
  const auto engine = make_engine(config);
  ASSERT_NE(engine, nullptr);
  for (std::int32_t i = 1; i <= 3; ++i) {
    ASSERT_TRUE(engine->add_request({.prompt_tokens = make_prompt(60, i), .max_new_tokens = 80}));
  }
  ASSERT_TRUE(engine->run_until_idle(100).ok());
  EXPECT_EQ(engine->take_reports().size(), 3U);
  EXPECT_GT(engine->stats().preemptions, 0);
  EXPECT_GT(engine->scheduler_metrics().loaded_blocks, 0);
  expect_right(*engine);
}

// Drafts on, a host hit, then many decode steps whose rows and blocks others have used before.
TEST(EngineFieldCases, B7AHostHitWithDraftsIsRightToTheLastToken) {
  EngineConfig config = with_hash(offload_config({full(16), mamba(64)}, 200), 16);
  config.num_speculative_tokens = 4;
  const auto engine = make_engine(config);
  ASSERT_NE(engine, nullptr);
  run_prompt(*engine, make_prompt(300), 40);
  engine->evict_device_cache();
  ASSERT_TRUE(engine->add_request({.prompt_tokens = make_prompt(90, 7), .max_new_tokens = 3}));
  ASSERT_TRUE(engine->add_request({.prompt_tokens = make_prompt(300), .max_new_tokens = 40}));
  ASSERT_TRUE(engine->run_until_idle(100).ok());
  const auto reports = engine->take_reports();
  ASSERT_EQ(reports.size(), 2U);
  EXPECT_EQ(reports[1].host_hit_tokens, 288);
  expect_right(*engine);
}

// Block, prompt, what the second and, from the host, the third run hit.
TEST(EngineFieldCases, B10WithADraftGroupTheFirstRepeatHits) {
  struct Case {
    std::int64_t block, tokens, usable;
  };
  for (const auto& [block, tokens, usable] : {Case{1600, 11'910, 9600}, Case{2304, 8901, 4608}}) {
    EngineConfig config = offload_config({hostkv::testing::draft(full(block)), mamba(block)}, 60);
    config.retention_interval_tokens = 0;
    config.payload_bytes = 1;
    const auto engine = make_engine(config);
    ASSERT_NE(engine, nullptr);
    run_prompt(*engine, make_prompt(tokens));
    EXPECT_EQ(run_prompt(*engine, make_prompt(tokens)).device_hit_tokens, usable);
    engine->evict_device_cache();
    EXPECT_EQ(run_prompt(*engine, make_prompt(tokens)).host_hit_tokens, usable);
    expect_right(*engine);
  }
}

// One window's blocks are charged for a load of 640 tokens, so it fits a pool that the prefix would not.
TEST(EngineFieldCases, C7ALoadOfALongPrefixFitsWhereItsWindowFits) {
  EngineConfig config = offload_config({window(16, 64)}, 12);
  config.max_batched_tokens = 64;
  const auto engine = make_engine(config);
  ASSERT_NE(engine, nullptr);
  run_prompt(*engine, make_prompt(641));
  engine->evict_device_cache();
  EXPECT_EQ(run_prompt(*engine, make_prompt(641)).host_hit_tokens, 640);
  EXPECT_EQ(engine->scheduler_metrics().loaded_blocks, 4);
  expect_right(*engine);
}

TEST(EngineFieldCases, D4AChunkedPromptIsOnTheHostWholeWhenItsRequestEnds) {
  EngineConfig config = offload_config({full(16)}, 100);
  config.max_batched_tokens = 128;
  const auto engine = make_engine(config);
  ASSERT_NE(engine, nullptr);
  run_prompt(*engine, make_prompt(1000), 4);
  EXPECT_EQ(engine->scheduler_metrics().stored_blocks, 62);
  engine->evict_device_cache();
  EXPECT_EQ(run_prompt(*engine, make_prompt(1000)).host_hit_tokens, 992);
  expect_right(*engine);
}

// [a, b, c, end] leaves no block, [a, b, c, d, end] one: the last token was never written.
TEST(EngineFieldCases, D7TheSampledTokenIsNotStored) {
  for (const auto& [prompt_tokens, stored] : {std::pair{3, 0}, {4, 1}}) {
    const auto engine = make_engine(offload_config({full(4)}, 20));
    ASSERT_NE(engine, nullptr);
    run_prompt(*engine, make_prompt(prompt_tokens), 1);
    EXPECT_EQ(engine->scheduler_metrics().stored_blocks, stored);
  }
}

// First in, first out through a pool of 64 blocks in lazy mode; then all of it once more.
TEST(EngineFieldCases, E4LazyStoresSaveMostOfWhatTheDeviceEvicts) {
  EngineConfig config = offload_config({full(16)}, 64);
  config.connector.store_mode = StoreMode::kLazy;
  const auto engine = make_engine(config);
  ASSERT_NE(engine, nullptr);
  constexpr std::int32_t kPrompts = 60;
  for (std::int32_t i = 1; i <= kPrompts; ++i) run_prompt(*engine, make_prompt(161, i));
  const std::int64_t num_evicted = kPrompts * 10 - 64;
  EXPECT_GE(engine->scheduler_metrics().stored_blocks, num_evicted * 8 / 10);
  std::int64_t hit_tokens = 0;
  for (std::int32_t i = 1; i <= kPrompts; ++i) {
    const RequestReport report = run_prompt(*engine, make_prompt(161, i));
    hit_tokens += report.device_hit_tokens + report.host_hit_tokens;
  }
  EXPECT_GE(hit_tokens, num_evicted * 16 * 8 / 10);
  expect_right(*engine);
}

// 50 requests that share 10,000 tokens on the host: how many of them are copied, and how long the convoy is.
TEST(EngineFieldCases, F9SharersOfALoadDoNotQueueUpBehindIt) {
  EngineConfig config = offload_config({full(16)}, 4000);
  config.payload_bytes = 1;
  const auto engine = make_engine(config);
  ASSERT_NE(engine, nullptr);
  run_prompt(*engine, make_prompt(10'000));
  engine->evict_device_cache();
  for (std::int32_t i = 0; i < 50; ++i) {
    ASSERT_TRUE(engine->add_request({.prompt_tokens = sharing(10'000, 10'020, 100 + i)}));
  }
  const std::int64_t first_step = engine->stats().steps;
  ASSERT_TRUE(engine->run_until_idle(100).ok());
  RecordProperty("steps", std::to_string(engine->stats().steps - first_step));
  RecordProperty("loaded_blocks", std::to_string(engine->scheduler_metrics().loaded_blocks));
  const auto reports = engine->take_reports();
  ASSERT_EQ(reports.size(), 50U);
  for (const RequestReport& report : reports) {
    EXPECT_EQ(report.device_hit_tokens + report.host_hit_tokens, 10'000);
  }
  EXPECT_LE(engine->stats().steps - first_step, 100) << "two a request at most: nobody waits for all the others";
  expect_right(*engine);
}

// 100 hits of 256 tokens are 25,600 tokens that are not computed.
TEST(EngineFieldCases, K12SavedTokensAreTokensThatAreNotComputed) {
  const auto computed = [](bool offload, std::int64_t& hit_tokens) {
    EngineConfig config = offload_config({full(16)}, 100);
    config.offload = offload;
    const auto engine = make_engine(config);
    EXPECT_NE(engine, nullptr);
    for (std::int32_t i = 0; i <= 100; ++i) {
      hit_tokens += run_prompt(*engine, sharing(256, 300, 50 + i)).host_hit_tokens;
      engine->evict_device_cache();
    }
    EXPECT_EQ(engine->stats().bytes_wrong, 0);
    EXPECT_EQ(engine->stats().bytes_checked > 0, offload) << "a run without hits reads nothing that was there before";
    return engine->stats().computed_tokens;
  };
  std::int64_t hit_tokens = 0;
  const std::int64_t without = computed(false, hit_tokens);
  EXPECT_EQ(hit_tokens, 0);
  const std::int64_t with = computed(true, hit_tokens);
  EXPECT_EQ(hit_tokens, 25'600);
  EXPECT_EQ(without - with, 25'600);
}

// h = 16, blocks of 64: the prompt of 150 leaves its state at 144, with and without checkpoints.
TEST(EngineFieldCases, V8TheTailOfAPromptIsHitOnTheHostAsOnTheDevice) {
  for (const bool checkpoints : {false, true}) {
    EngineConfig config = with_hash(offload_config({full(64), mamba(64)}, 60), 16);
    config.prefill_checkpoints = checkpoints;
    const auto engine = make_engine(config);
    ASSERT_NE(engine, nullptr);
    run_prompt(*engine, make_prompt(150), 3);
    EXPECT_EQ(run_prompt(*engine, sharing(150, 200, 9)).device_hit_tokens, 144);
    engine->evict_device_cache();
    EXPECT_EQ(run_prompt(*engine, sharing(150, 200, 10)).host_hit_tokens, 144) << "checkpoints " << checkpoints;
    expect_right(*engine);
  }
}

// Prompt 160, h = 16: the tail is at 144, for an identical prompt and for a longer one.
TEST(EngineFieldCases, V8APromptThatIsAMultipleOfTheHashBlockLosesNothing) {
  const auto engine = make_engine(with_hash(offload_config({full(64), mamba(64)}, 60), 16));
  ASSERT_NE(engine, nullptr);
  run_prompt(*engine, make_prompt(160), 2);
  engine->evict_device_cache();
  EXPECT_EQ(run_prompt(*engine, make_prompt(160)).host_hit_tokens, 144);
  engine->evict_device_cache();
  EXPECT_EQ(run_prompt(*engine, sharing(160, 200, 5)).host_hit_tokens, 144);
  expect_right(*engine);
}

// A state at 288, in the middle of a block of 64 tokens over 2 ranks.
TEST(EngineFieldCases, V9AHalfFilledBlockIsStoredAndLoadedOnEveryRank) {
  for (const std::int64_t interleave : {1, 4, 32}) {
    EngineConfig config = offload_config({full(32, true), mamba(32)}, 60);
    config.geometry.parallel = {.tp = 2, .dcp = 2, .interleave_tokens = interleave};
    const auto engine = make_engine(config);
    ASSERT_NE(engine, nullptr);
    run_prompt(*engine, make_prompt(300));
    EXPECT_EQ(run_prompt(*engine, make_prompt(300)).device_hit_tokens, 288);
    engine->evict_device_cache();
    EXPECT_EQ(run_prompt(*engine, make_prompt(300)).host_hit_tokens, 288) << "interleave " << interleave;
    expect_right(*engine);
  }
}

// Two drafts, blocks of 32: the table has its speculative slots, no block twice, and what is stored is right.
TEST(EngineFieldCases, V12SpeculativeSlotsMoveAndNoBlockIsInATableTwice) {
  EngineConfig config = offload_config({full(32), mamba(32)}, 60);
  config.num_speculative_tokens = 2;
  config.max_batched_tokens = 96;
  const auto engine = make_engine(config);
  ASSERT_NE(engine, nullptr);
  const Result<RequestId> id = engine->add_request({.prompt_tokens = make_prompt(100), .max_new_tokens = 60});
  ASSERT_TRUE(id);
  std::int64_t num_tables = 0;
  while (engine->request(*id) != nullptr) {
    ASSERT_TRUE(engine->step().ok());
    if (engine->request(*id) == nullptr || engine->request(*id)->tables.empty()) continue;
    std::vector<BlockId> blocks = engine->request(*id)->tables[1];
    std::erase(blocks, kNullBlock);
    const std::size_t num_blocks = blocks.size();
    EXPECT_GE(num_blocks, 1U);
    EXPECT_LE(num_blocks, 2U + 2U);
    std::ranges::sort(blocks);
    blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
    EXPECT_EQ(blocks.size(), num_blocks);
    ++num_tables;
  }
  EXPECT_GT(num_tables, 10);
  ASSERT_TRUE(engine->run_until_idle(10).ok());
  engine->take_reports();
  engine->evict_device_cache();
  EXPECT_EQ(run_prompt(*engine, make_prompt(100)).host_hit_tokens, 96);
  expect_right(*engine);
}

}  // namespace
}  // namespace hostkv::bench::testing
