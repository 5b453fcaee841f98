// Field cases I and V14: whatever copies do, and however tight the pool is, requests end.

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "tests/support/engine_support.h"
#include "tests/support/fault_backend.h"

namespace hostkv::bench::testing {
namespace {

using hostkv::testing::FaultBackend;

// An engine that learns of the end of its copies only when the test lets it; all runs repeat exactly.
struct SlowEngine {
  explicit SlowEngine(EngineConfig config) {
    config.offload = true;
    config.settle_copies = true;
    config.connector.cpu_bytes_to_use_per_rank = host_bytes_for_blocks(config, 2000);
    config.decorate_backend = [this](RankIndex, std::unique_ptr<TransferBackend> inner) {
      auto made = std::make_unique<FaultBackend>(std::move(inner));
      backends.push_back(made.get());
      return made;
    };
    engine = make_engine(std::move(config));
  }
  void hold() {
    for (FaultBackend* backend : backends) backend->hold_results();
  }
  void release() {
    for (FaultBackend* backend : backends) backend->release_results();
  }
  Result<RequestId> add(std::int64_t num_tokens, std::int32_t seed, std::int64_t max_new_tokens = 1) {
    return engine->add_request({.prompt_tokens = make_prompt(num_tokens, seed), .max_new_tokens = max_new_tokens});
  }

  std::vector<FaultBackend*> backends;
  std::unique_ptr<EngineImpl> engine;
};

void expect_quiet(const Engine& engine, std::int64_t num_device_blocks) {
  EXPECT_EQ(engine.stats().bytes_wrong, 0);
  EXPECT_EQ(engine.stats().pinned_device_blocks, 0);
  EXPECT_EQ(engine.stats().free_device_blocks, num_device_blocks);
  EXPECT_TRUE(engine.check_conservation().ok()) << engine.check_conservation().to_string();
}

// 511 blocks of 16, prompts of 4096 and 4080 tokens, three drafts: both are wholly on the host.
TEST(EngineFieldCases, I3FullHitsThatTakeThePoolLeaveRoomForTheirDrafts) {
  EngineConfig config = device_config({full(16)}, 511);
  config.num_speculative_tokens = 3;
  SlowEngine slow(config);
  ASSERT_NE(slow.engine, nullptr);
  run_prompt(*slow.engine, make_prompt(4096, 1));
  run_prompt(*slow.engine, make_prompt(4080, 2));
  slow.engine->evict_device_cache();
  ASSERT_TRUE(slow.add(4096, 1, 20));
  ASSERT_TRUE(slow.add(4080, 2, 20));
  ASSERT_TRUE(slow.engine->run_until_idle(10).ok());
  const auto reports = slow.engine->take_reports();
  ASSERT_EQ(reports.size(), 2U);
  for (const RequestReport& report : reports) {
    EXPECT_GE(report.host_hit_tokens, 4064);
  }
  expect_quiet(*slow.engine, 511);
}

// Sustained traffic on three groups, copies of random length: some request gets on within every 200 steps.
TEST(EngineFieldCases, I4SomebodyAdvancesOnSmallPoolsWithSlowCopies) {
  std::int64_t loaded_blocks = 0;
  for (const std::int64_t num_blocks : {64, 96, 160, 256, 512}) {
    SCOPED_TRACE("HOSTKV_TEST_SEED=" + std::to_string(first_test_seed()) + ", blocks " + std::to_string(num_blocks));
    Random random(first_test_seed() + static_cast<std::uint64_t>(num_blocks));
    EngineConfig config = device_config({full(16), window(16, 64), mamba(32)}, num_blocks);
    config.geometry.fine_hits = false;
    config.max_batched_tokens = 128;
    config.payload_bytes = 2;
    SlowEngine slow(config);
    ASSERT_NE(slow.engine, nullptr);
    std::int64_t num_added = 0;
    std::int64_t num_ended = 0;
    std::int64_t last_progress = 0;
    std::int64_t last_computed = 0;
    for (std::int64_t step = 0; num_ended < 60; ++step) {
      if (num_added < 60 && pick(random, 0, 2) == 0) {
        ASSERT_TRUE(slow.add(pick(random, 1, num_blocks * 3), static_cast<std::int32_t>(pick(random, 1, 6)),
                             pick(random, 1, 20)));
        ++num_added;
      }
      pick(random, 0, 9) < 7 ? slow.hold() : slow.release();
      if (pick(random, 0, 19) == 0) slow.engine->evict_device_cache();
      ASSERT_TRUE(slow.engine->step().ok());
      num_ended += std::ssize(slow.engine->take_reports());
      if (slow.engine->stats().computed_tokens > last_computed || num_ended == num_added) last_progress = step;
      last_computed = slow.engine->stats().computed_tokens;
      ASSERT_LE(step - last_progress, 200);
    }
    slow.release();
    ASSERT_TRUE(slow.engine->run_until_idle(100).ok());
    loaded_blocks += slow.engine->scheduler_metrics().loaded_blocks;
    expect_quiet(*slow.engine, num_blocks);
  }
  EXPECT_GT(loaded_blocks, 0);
}

// Loads that do not end hold up the requests that wait for them, and nobody else.
TEST(EngineFieldCases, I5StepsGoOnWhileCopiesDoNotEnd) {
  SlowEngine slow(device_config({full(16)}, 100));
  ASSERT_NE(slow.engine, nullptr);
  run_prompt(*slow.engine, make_prompt(161, 1));
  slow.engine->evict_device_cache();
  slow.hold();
  const Result<RequestId> waits = slow.add(161, 1);
  ASSERT_TRUE(waits);
  for (std::int32_t i = 2; i < 22; ++i) ASSERT_TRUE(slow.add(20, i, 3));
  std::size_t num_ended = 0;
  for (int step = 0; step < 20; ++step) {
    ASSERT_TRUE(slow.engine->step().ok());
    num_ended += slow.engine->take_reports().size();
  }
  EXPECT_EQ(num_ended, 20U) << "all but the one that is loaded";
  EXPECT_NE(slow.engine->request(*waits), nullptr);
  EXPECT_FALSE(slow.engine->idle());
  slow.release();
  ASSERT_TRUE(slow.engine->run_until_idle(1000).ok());
  const auto reports = slow.engine->take_reports();
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_EQ(reports[0].host_hit_tokens, 160);
  expect_quiet(*slow.engine, 100);
}

// No request is left, and copies still end: the engine keeps asking until nothing is pinned.
TEST(EngineFieldCases, I7CompletionsAreTakenWhenTheEngineIsIdle) {
  SlowEngine slow(device_config({full(16)}, 60));
  ASSERT_NE(slow.engine, nullptr);
  for (std::int32_t user = 1; user <= 40; ++user) {
    if (user == 40) {
      ASSERT_TRUE(slow.engine->run_until_idle(1000).ok());
    }
    slow.hold();
    ASSERT_TRUE(slow.add(100, user));
    while (slow.engine->take_reports().empty()) {
      const EngineStats stats = slow.engine->stats();
      if (stats.free_device_blocks < 7) slow.release();  // pinned by copies that end now
      ASSERT_TRUE(slow.engine->step().ok());
      ASSERT_LT(stats.steps, 100'000);
    }
    if (user == 39) slow.release();
  }
  EXPECT_GT(slow.engine->stats().pinned_device_blocks, 0);
  EXPECT_FALSE(slow.engine->idle()) << "copies are in flight";
  slow.release();
  ASSERT_TRUE(slow.engine->run_until_idle(1000).ok());
  EXPECT_EQ(slow.engine->scheduler_metrics().stored_blocks, 40 * 6);
  slow.engine->evict_device_cache();
  EXPECT_EQ(run_prompt(*slow.engine, make_prompt(100, 40)).host_hit_tokens, 96);
  expect_quiet(*slow.engine, 60);
}

// Abort while the only request's load is in flight: the engine keeps stepping until its blocks are back.
TEST(EngineFieldCases, V14AnAbortDuringALoadGivesAllBlocksBack) {
  SlowEngine slow(device_config({full(16)}, 40));
  ASSERT_NE(slow.engine, nullptr);
  run_prompt(*slow.engine, make_prompt(161));
  slow.engine->evict_device_cache();
  slow.hold();
  const Result<RequestId> id = slow.add(161, 1);
  ASSERT_TRUE(id);
  ASSERT_TRUE(slow.engine->step().ok());
  ASSERT_TRUE(slow.engine->abort_request(*id).ok());
  for (int step = 0; step < 5; ++step) {
    EXPECT_FALSE(slow.engine->idle());
    EXPECT_LT(slow.engine->stats().free_device_blocks, 40);
    ASSERT_TRUE(slow.engine->step().ok());
  }
  slow.release();
  ASSERT_TRUE(slow.engine->run_until_idle(1000).ok());
  expect_quiet(*slow.engine, 40);
  EXPECT_EQ(slow.engine->take_reports().size(), 1U);
  EXPECT_EQ(run_prompt(*slow.engine, make_prompt(161)).host_hit_tokens, 160);
}

}  // namespace
}  // namespace hostkv::bench::testing
