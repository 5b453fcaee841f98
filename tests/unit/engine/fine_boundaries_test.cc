// Hits that end inside blocks: where states are left, what is copied before it is overwritten, what is handed off.

#include <gtest/gtest.h>

#include <tuple>

#include "tests/support/engine_support.h"

namespace hostkv::bench::testing {
namespace {

using HandOffs = std::vector<std::tuple<std::uint32_t, std::int64_t>>;  // group, boundary

// Blocks of 64, hashes of 16: V8.
EngineConfig v8_config() {
  EngineConfig config = device_config({full(64), mamba(64)}, 40);
  config.geometry.hash_block_tokens = 16;
  return config;
}

EngineConfig with_host(EngineConfig config) {
  config.offload = true;
  config.settle_copies = true;
  config.connector.cpu_bytes_to_use_per_rank = host_bytes_for_blocks(config, 60);
  return config;
}

struct Steps {
  std::vector<std::int64_t> ends;
  std::vector<HandOffs> hand_offs;  // of each step
  std::size_t num_copies = 0;
};

Steps run_steps(EngineImpl& engine, std::int64_t prompt_tokens, std::int64_t max_new_tokens) {
  Steps run;
  EXPECT_TRUE(engine.add_request({.prompt_tokens = make_prompt(prompt_tokens), .max_new_tokens = max_new_tokens}));
  while (!engine.idle()) {
    EXPECT_TRUE(engine.step().ok());
    EXPECT_TRUE(engine.check_conservation().ok());
    const StepPlan& plan = engine.last_plan();
    for (const ScheduledRequest& chunk : plan.scheduled) {
      run.ends.push_back(chunk.num_computed_tokens + chunk.num_scheduled_tokens);
    }
    HandOffs& hand_offs = run.hand_offs.emplace_back();
    for (const BoundaryHandOff& entry : plan.hand_offs) {
      hand_offs.emplace_back(entry.group.value(), entry.boundary_tokens);
    }
    run.num_copies += plan.copies.size();
  }
  EXPECT_EQ(engine.stats().bytes_wrong, 0);
  EXPECT_EQ(engine.stats().free_device_blocks, engine.pool().num_usable());
  engine.take_reports();
  return run;
}

TEST(FineBoundaries, V8StopsAtTheTailAndHandsItOffInTheStepThatCopiesIt) {
  const auto engine = make_engine(v8_config());
  ASSERT_TRUE(engine->geometry().fine_hits());
  const Steps run = run_steps(*engine, 150, 1);
  EXPECT_EQ(run.ends, (std::vector<std::int64_t>{128, 144, 150}));
  EXPECT_EQ(run.hand_offs, (std::vector<HandOffs>{{{1, 128}}, {}, {{1, 144}}}));
  EXPECT_EQ(run.num_copies, 1U);
  EXPECT_EQ(run_prompt(*engine, make_prompt(150)).device_hit_tokens, 144);
  EXPECT_EQ(engine->stats().bytes_wrong, 0);
}

TEST(FineBoundaries, APromptOfWholeHashBlocksLosesOne) {
  const auto engine = make_engine(v8_config());
  run_prompt(*engine, make_prompt(160));
  EXPECT_EQ(run_prompt(*engine, make_prompt(160)).device_hit_tokens, 144);
  EXPECT_EQ(run_prompt(*engine, make_prompt(300)).device_hit_tokens, 144);
  EXPECT_EQ(engine->stats().bytes_wrong, 0);
}

TEST(FineBoundaries, TheLastHashServesAnExtensionOnly) {
  EngineConfig config = v8_config();
  config.tail_rule = TailRule::kLastHash;
  const auto engine = make_engine(config);
  run_prompt(*engine, make_prompt(160));
  EXPECT_EQ(run_prompt(*engine, make_prompt(160)).device_hit_tokens, 128);
  EXPECT_EQ(run_prompt(*engine, make_prompt(300)).device_hit_tokens, 160);
  EXPECT_EQ(engine->stats().bytes_wrong, 0);
}

TEST(FineBoundaries, AHalfFilledBlockOfDcpIsFoundAtTheStateBoundary) {
  EngineConfig config = device_config({full(32, true), mamba(32)}, 60);
  config.geometry.parallel.dcp = 2;
  const auto engine = make_engine(config);
  run_prompt(*engine, make_prompt(300));
  EXPECT_EQ(run_prompt(*engine, make_prompt(300)).device_hit_tokens, 288);
  EXPECT_EQ(engine->stats().bytes_wrong, 0);
}

TEST(FineBoundaries, TheSourceOfAHitInsideABlockStaysCached) {
  const auto engine = make_engine(v8_config());
  run_prompt(*engine, make_prompt(150));
  for (int i = 0; i < 3; ++i) {
    std::vector<std::int32_t> prompt = make_prompt(170);
    prompt[150] = i;
    EXPECT_EQ(run_prompt(*engine, prompt).device_hit_tokens, 144) << i;
  }
  EXPECT_EQ(engine->stats().bytes_wrong, 0);
}

TEST(FineBoundaries, ADraftGroupLeavesTheStateOneUnitEarlier) {
  EngineConfig config = v8_config();
  config.geometry.groups[0].eagle = true;
  const auto engine = make_engine(config);
  run_prompt(*engine, make_prompt(150));
  EXPECT_EQ(run_prompt(*engine, make_prompt(150)).device_hit_tokens, 128);
  EXPECT_EQ(engine->stats().bytes_wrong, 0);
}

TEST(FineBoundaries, ACheckpointIsHandedOffFromItsOwnColumnInOneStep) {
  EngineConfig config = v8_config();
  config.prefill_checkpoints = true;
  const auto engine = make_engine(config);
  const Result<RequestId> id = engine->add_request({.prompt_tokens = make_prompt(150), .max_new_tokens = 2});
  ASSERT_TRUE(id);
  ASSERT_TRUE(engine->step().ok());
  const StepPlan& plan = engine->last_plan();
  ASSERT_EQ(plan.scheduled.size(), 1U);
  EXPECT_EQ(plan.scheduled[0].num_scheduled_tokens, 150);
  const std::vector<BlockId>& table = engine->request(*id)->tables[1];
  ASSERT_EQ(table.size(), 3U);
  EXPECT_EQ(table[0], kNullBlock);
  ASSERT_EQ(plan.hand_offs.size(), 1U);
  EXPECT_EQ(plan.hand_offs[0].block, table[1]);
  EXPECT_EQ(plan.hand_offs[0].boundary_tokens, 144);
  ASSERT_TRUE(engine->run_until_idle().ok());
  engine->take_reports();
  EXPECT_EQ(run_prompt(*engine, make_prompt(150)).device_hit_tokens, 144);
  EXPECT_EQ(engine->stats().bytes_wrong, 0);
}

TEST(FineBoundaries, RetentionZeroKeepsOnlyWhereTheSamePromptResumes) {
  EngineConfig config = device_config({full(16), window(16, 40)}, 100);
  config.retention_interval_tokens = 0;
  const auto engine = make_engine(config);
  run_prompt(*engine, make_prompt(300));
  std::vector<std::int32_t> sharing_200 = make_prompt(300);
  for (std::size_t i = 200; i < sharing_200.size(); ++i) sharing_200[i] += 1;
  EXPECT_EQ(run_prompt(*engine, sharing_200).device_hit_tokens, 0) << "no window is kept at 192";
  EXPECT_EQ(run_prompt(*engine, make_prompt(300)).device_hit_tokens, 288);
  EXPECT_EQ(run_prompt(*engine, sharing_200).device_hit_tokens, 288);
  EXPECT_EQ(engine->stats().bytes_wrong, 0);
}

TEST(FineBoundaries, AnIntervalKeepsWindowsBetween) {
  EngineConfig config = device_config({full(16), window(16, 40)}, 100);
  config.retention_interval_tokens = 64;
  const auto engine = make_engine(config);
  run_prompt(*engine, make_prompt(300));
  std::vector<std::int32_t> sharing_200 = make_prompt(300);
  for (std::size_t i = 200; i < sharing_200.size(); ++i) sharing_200[i] += 1;
  EXPECT_EQ(run_prompt(*engine, sharing_200).device_hit_tokens, 192);
}

TEST(FineBoundaries, AReplayFillsRingsAndCountsNothingTwice) {
  EngineConfig config = device_config({full(16), ring(8)}, 40);
  config.replay_tokens = 8;
  const auto engine = make_engine(config);
  run_prompt(*engine, make_prompt(100));
  ASSERT_TRUE(engine->add_request({.prompt_tokens = make_prompt(100)}));
  ASSERT_TRUE(engine->step().ok());
  EXPECT_EQ(engine->last_plan().scheduled.at(0).num_computed_tokens, 88) << "the hit is 96";
  ASSERT_TRUE(engine->run_until_idle().ok());
  const RequestReport report = engine->take_reports().back();
  EXPECT_EQ(report.device_hit_tokens, 96);
  EXPECT_EQ(report.computed_tokens, 4);
  EXPECT_EQ(engine->stats().bytes_wrong, 0);
}

TEST(FineBoundaries, TheHostHitsWhatTheDeviceHits) {
  const auto engine = make_engine(with_host(v8_config()));
  run_prompt(*engine, make_prompt(160));
  engine->evict_device_cache();
  EXPECT_EQ(run_prompt(*engine, make_prompt(160)).host_hit_tokens, 144);
  EXPECT_EQ(engine->stats().bytes_wrong, 0);
}

TEST(FineBoundaries, ARequestThatEndsOnItsTailHandsItOffAtItsEnd) {
  EngineConfig config = v8_config();
  config.tail_rule = TailRule::kLastHash;
  const auto engine = make_engine(with_host(config));
  run_prompt(*engine, make_prompt(160));
  engine->evict_device_cache();
  EXPECT_EQ(run_prompt(*engine, make_prompt(200)).host_hit_tokens, 160);
  EXPECT_EQ(engine->stats().bytes_wrong, 0);
}

TEST(FineBoundaries, ALoadOfFewerTokensEndsWhereTheEngineSays) {
  EngineConfig config = device_config({full(16)}, 40);
  config.cap_external = [](RequestId, std::int64_t, std::int64_t offered) { return offered / 2; };
  const auto engine = make_engine(with_host(config));
  run_prompt(*engine, make_prompt(100));
  engine->evict_device_cache();
  EXPECT_EQ(run_prompt(*engine, make_prompt(100)).host_hit_tokens, 48);
  EXPECT_EQ(engine->stats().bytes_wrong, 0);
}

}  // namespace
}  // namespace hostkv::bench::testing
