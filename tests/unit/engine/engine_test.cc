// The engine on the device alone.

#include "bench/engine/engine.h"

#include <gtest/gtest.h>

#include "tests/support/engine_support.h"

namespace hostkv::bench::testing {
namespace {

TEST(Engine, RefusesValuesOutOfRangeByName) {
  const auto refusal = [](auto change) {
    EngineConfig config = device_config({full(16)}, 10);
    change(config);
    const auto engine = Engine::create(std::move(config));
    return engine ? std::string("accepted") : engine.error().to_string();
  };
  EXPECT_NE(refusal([](EngineConfig& c) { c.num_device_blocks = 0; }).find("num_device_blocks is 0"),
            std::string::npos);
  EXPECT_NE(refusal([](EngineConfig& c) { c.payload_bytes = 5000; }).find("payload_bytes is 5000"), std::string::npos);
  EXPECT_NE(refusal([](EngineConfig& c) { c.max_batched_tokens = 0; }).find("max_batched_tokens"), std::string::npos);
  EXPECT_NE(refusal([](EngineConfig& c) { c.geometry.groups.clear(); }).find("kInvalidArgument"), std::string::npos);
}

TEST(Engine, RefusesMoreDeviceMemoryThanThereIsAndNamesTheBytes) {
  for (const auto& [num_blocks, block_tokens] :
       {std::pair{std::int64_t{1} << 24, std::int64_t{16}}, std::pair{std::int64_t{1} << 31, std::int64_t{1} << 28}}) {
    EngineConfig config = device_config({full(block_tokens)}, num_blocks);
    config.payload_bytes = 4096;
    const auto engine = Engine::create(std::move(config));
    ASSERT_FALSE(engine);
    EXPECT_EQ(engine.error().code(), StatusCode::kResourceExhausted);
    EXPECT_NE(engine.error().message().find("num_device_blocks " + std::to_string(num_blocks)), std::string::npos);
    EXPECT_NE(engine.error().message().find(" bytes on each of 1 ranks"), std::string::npos)
        << engine.error().message();
  }
}

TEST(Engine, RefusesARequestThatCanNeverRun) {
  const auto engine = make_engine(device_config({full(16)}, 4));
  EXPECT_TRUE(engine->add_request({.prompt_tokens = make_prompt(64)}));
  const auto too_long = engine->add_request({.prompt_tokens = make_prompt(65)});
  ASSERT_FALSE(too_long);
  EXPECT_NE(too_long.error().message().find("up to 5 device blocks"), std::string::npos) << too_long.error().message();
  EXPECT_FALSE(engine->add_request({.prompt_tokens = {}}));
  EXPECT_FALSE(engine->add_request({.prompt_tokens = {1}, .max_new_tokens = 0}));
}

TEST(Engine, V1HitsWhatItComputedBefore) {
  const auto engine = make_engine(device_config({full(16)}, 20));
  const RequestReport cold = run_prompt(*engine, make_prompt(100));
  EXPECT_EQ(cold.device_hit_tokens, 0);
  EXPECT_EQ(cold.computed_tokens, 100);
  const RequestReport hot = run_prompt(*engine, make_prompt(100));
  EXPECT_EQ(hot.device_hit_tokens, 96);
  EXPECT_EQ(hot.computed_tokens, 4);
  EXPECT_EQ(engine->stats().computed_tokens, 104);
  engine->evict_device_cache();
  EXPECT_EQ(run_prompt(*engine, make_prompt(100)).device_hit_tokens, 0);
  EXPECT_EQ(engine->stats().bytes_wrong, 0);
}

TEST(Engine, HitsTheOutputOfAnEarlierRequest) {
  const auto engine = make_engine(device_config({full(16)}, 20));
  const Result<RequestId> id = engine->add_request({.prompt_tokens = make_prompt(30), .max_new_tokens = 35});
  std::vector<std::int32_t> tokens;
  while (engine->request(*id) != nullptr) {
    tokens = engine->request(*id)->tokens;
    ASSERT_TRUE(engine->step().ok());
  }
  ASSERT_EQ(tokens.size(), 64U);
  EXPECT_EQ(engine->take_reports().size(), 1U);
  tokens.insert(tokens.end(), 10, 1);
  EXPECT_EQ(run_prompt(*engine, tokens).device_hit_tokens, 64);
  EXPECT_EQ(engine->stats().bytes_wrong, 0);
}

TEST(Engine, ComputesAPromptInChunksUnderTheBudget) {
  EngineConfig config = device_config({full(16)}, 20);
  config.max_batched_tokens = 32;
  const auto engine = make_engine(config);
  ASSERT_TRUE(engine->add_request({.prompt_tokens = make_prompt(100), .max_new_tokens = 2}));
  std::vector<std::int64_t> chunks;
  while (!engine->idle()) {
    ASSERT_TRUE(engine->step().ok());
    chunks.push_back(engine->last_plan().scheduled[0].num_scheduled_tokens);
  }
  EXPECT_EQ(chunks, (std::vector<std::int64_t>{32, 32, 32, 4, 1}));
}

TEST(Engine, RunsDecodesBeforeNewPrompts) {
  EngineConfig config = device_config({full(16)}, 20);
  config.max_batched_tokens = 32;
  const auto engine = make_engine(config);
  ASSERT_TRUE(engine->add_request({.prompt_tokens = make_prompt(20, 1), .max_new_tokens = 5}));
  ASSERT_TRUE(engine->step().ok());
  ASSERT_TRUE(engine->add_request({.prompt_tokens = make_prompt(100, 2), .max_new_tokens = 1}));
  ASSERT_TRUE(engine->step().ok());
  const std::vector<ScheduledRequest>& scheduled = engine->last_plan().scheduled;
  ASSERT_EQ(scheduled.size(), 2U);
  EXPECT_EQ(scheduled[0].num_scheduled_tokens, 1);
  EXPECT_EQ(scheduled[1].num_scheduled_tokens, 31);
}

struct ChunkCase {
  std::int64_t prompt_tokens;
  std::int64_t budget_tokens;
  std::vector<std::int64_t> ends;
};

TEST(Engine, ChunksEndWhereAStateCanBeKept) {
  const std::vector<ChunkCase> cases{
      {100, 96, {96, 100}},                      // V11
      {150, 8192, {128, 150}},                   // the last boundary of the prompt
      {150, 100, {96, 128, 150}},                // chunks are floored to the boundary
      {128, 8192, {96, 128}},                    // the prompt ends on it: where the same prompt resumes is before
      {100, 20, {20, 32, 52, 64, 84, 96, 100}},  // a block does not fit in a step
  };
  for (const ChunkCase& c : cases) {
    EngineConfig config = device_config({full(32), mamba(32)}, 20);
    config.max_batched_tokens = c.budget_tokens;
    const auto engine = make_engine(config);
    ASSERT_TRUE(engine->add_request({.prompt_tokens = make_prompt(c.prompt_tokens)}));
    std::vector<std::int64_t> ends;
    while (!engine->idle()) {
      ASSERT_TRUE(engine->step().ok());
      const ScheduledRequest& chunk = engine->last_plan().scheduled.at(0);
      ends.push_back(chunk.num_computed_tokens + chunk.num_scheduled_tokens);
    }
    EXPECT_EQ(ends, c.ends) << "prompt " << c.prompt_tokens << ", budget " << c.budget_tokens;
    EXPECT_EQ(engine->stats().bytes_wrong, 0);
  }
}

TEST(Engine, V11HandsOffEveryStateThatEndsOnABoundary) {
  EngineConfig config = device_config({mamba(32)}, 10);
  config.max_batched_tokens = 96;
  const auto engine = make_engine(config);
  ASSERT_TRUE(engine->add_request({.prompt_tokens = make_prompt(100), .max_new_tokens = 40}));
  std::vector<std::int64_t> boundaries;
  while (!engine->idle()) {
    ASSERT_TRUE(engine->step().ok());
    for (const BoundaryHandOff& entry : engine->last_plan().hand_offs) {
      EXPECT_NE(entry.block, kNullBlock);
      boundaries.push_back(entry.boundary_tokens);
    }
  }
  EXPECT_EQ(boundaries, (std::vector<std::int64_t>{96, 128}));
  EXPECT_EQ(engine->stats().bytes_wrong, 0);
}

TEST(Engine, V5HitsTheLongestRetainedState) {
  const auto engine = make_engine(device_config({full(32), mamba(32)}, 30));
  run_prompt(*engine, make_prompt(160));
  EXPECT_EQ(run_prompt(*engine, make_prompt(160)).device_hit_tokens, 128) << "its last token must be computed";
  EXPECT_EQ(run_prompt(*engine, make_prompt(161)).device_hit_tokens, 160);
}

TEST(Engine, LeavesAStateAtTheJunctionForTheNextSharer) {
  const auto engine = make_engine(device_config({full(32), mamba(32)}, 40));
  const auto sharing_96 = [](std::int32_t tail) {
    std::vector<std::int32_t> prompt = make_prompt(200);
    for (std::size_t i = 100; i < prompt.size(); ++i) prompt[i] += tail;
    return prompt;
  };
  run_prompt(*engine, sharing_96(0));
  EXPECT_EQ(run_prompt(*engine, sharing_96(1)).device_hit_tokens, 0);
  EXPECT_EQ(run_prompt(*engine, sharing_96(2)).device_hit_tokens, 96);
  EXPECT_EQ(engine->stats().bytes_wrong, 0);
}

TEST(Engine, V9HitsOnSchedulerBlocksUnderDcp) {
  EngineConfig config = device_config({full(16, true), mamba(16)}, 30);
  config.geometry.parallel.dcp = 4;
  const auto engine = make_engine(config);
  EXPECT_EQ(engine->geometry().scheduler_block_tokens(), 64);
  run_prompt(*engine, make_prompt(130));
  EXPECT_EQ(run_prompt(*engine, make_prompt(140)).device_hit_tokens, 128);
  EXPECT_EQ(engine->stats().bytes_wrong, 0);
}

TEST(Engine, PostponesAHitOnAStateOfTheSamePass) {
  const auto engine = make_engine(device_config({full(32), mamba(32)}, 30));
  ASSERT_TRUE(engine->add_request({.prompt_tokens = make_prompt(65), .max_new_tokens = 2}));
  ASSERT_TRUE(engine->add_request({.prompt_tokens = make_prompt(70), .max_new_tokens = 2}));
  ASSERT_TRUE(engine->step().ok());
  EXPECT_EQ(engine->last_plan().scheduled.size(), 1U);
  ASSERT_TRUE(engine->step().ok());
  EXPECT_EQ(engine->last_plan().scheduled.size(), 2U);
  ASSERT_TRUE(engine->run_until_idle().ok());
  EXPECT_EQ(engine->take_reports().back().device_hit_tokens, 64);
}

TEST(Engine, SharesAttentionBlocksOfTheSamePass) {
  const auto engine = make_engine(device_config({full(16)}, 20));
  ASSERT_TRUE(engine->add_request({.prompt_tokens = make_prompt(64), .max_new_tokens = 1}));
  ASSERT_TRUE(engine->add_request({.prompt_tokens = make_prompt(70), .max_new_tokens = 1}));
  ASSERT_TRUE(engine->step().ok());
  EXPECT_EQ(engine->last_plan().scheduled.size(), 2U);
  EXPECT_EQ(engine->take_reports().back().device_hit_tokens, 64);
  EXPECT_EQ(engine->stats().bytes_wrong, 0);
}

TEST(Engine, PreemptsTheLastRequestAndFinishesIt) {
  const auto engine = make_engine(device_config({full(16)}, 6));
  ASSERT_TRUE(engine->add_request({.prompt_tokens = make_prompt(30, 1), .max_new_tokens = 40}));
  ASSERT_TRUE(engine->add_request({.prompt_tokens = make_prompt(30, 2), .max_new_tokens = 40}));
  bool was_preempted = false;
  while (!engine->idle()) {
    ASSERT_TRUE(engine->step().ok());
    ASSERT_TRUE(engine->check_conservation().ok());
    for (const RequestId id : engine->last_plan().preempted) EXPECT_EQ(id, RequestId{2});
    was_preempted = was_preempted || !engine->last_plan().preempted.empty();
  }
  EXPECT_TRUE(was_preempted);
  const std::vector<RequestReport> reports = engine->take_reports();
  ASSERT_EQ(reports.size(), 2U);
  EXPECT_GE(reports[1].num_preemptions, 1);
  EXPECT_EQ(reports[1].computed_tokens, 30);
  EXPECT_EQ(engine->stats().bytes_wrong, 0);
  EXPECT_EQ(engine->stats().free_device_blocks, 6);
}

TEST(Engine, AbortIsLegalInEveryStateAndTwice) {
  const auto engine = make_engine(device_config({full(16)}, 20));
  const Result<RequestId> waiting = engine->add_request({.prompt_tokens = make_prompt(30, 1)});
  EXPECT_TRUE(engine->abort_request(*waiting).ok());
  EXPECT_TRUE(engine->abort_request(*waiting).ok());
  const Result<RequestId> running = engine->add_request({.prompt_tokens = make_prompt(30, 1), .max_new_tokens = 9});
  ASSERT_TRUE(engine->step().ok());
  EXPECT_TRUE(engine->abort_request(*running).ok());
  EXPECT_EQ(engine->abort_request(RequestId{77}).code(), StatusCode::kNotFound);
  EXPECT_TRUE(engine->idle());
  EXPECT_EQ(engine->stats().free_device_blocks, 20);
  for (const RequestReport& report : engine->take_reports()) EXPECT_TRUE(report.aborted);
}

TEST(Engine, ResetsOnlyWhenNoBlockIsOwned) {
  const auto engine = make_engine(device_config({full(16)}, 20));
  const Result<RequestId> id = engine->add_request({.prompt_tokens = make_prompt(40), .max_new_tokens = 9});
  ASSERT_TRUE(engine->step().ok());
  EXPECT_FALSE(engine->reset_prefix_cache(true));
  ASSERT_TRUE(engine->abort_request(*id).ok());
  EXPECT_EQ(engine->take_reports().size(), 1U);
  EXPECT_TRUE(engine->reset_prefix_cache(true));
  EXPECT_EQ(run_prompt(*engine, make_prompt(40)).device_hit_tokens, 0);
}

TEST(Engine, DoesNotReadTheCacheForARequestThatSkipsIt) {
  const auto engine = make_engine(device_config({full(16)}, 20));
  run_prompt(*engine, make_prompt(40));
  ASSERT_TRUE(engine->add_request({.prompt_tokens = make_prompt(40), .skip_reading_cache = true}));
  ASSERT_TRUE(engine->run_until_idle().ok());
  EXPECT_EQ(engine->take_reports().back().device_hit_tokens, 0);
}

TEST(Engine, GivesTheSameOutputForTheSamePrompt) {
  const auto outputs = [](std::int64_t budget) {
    EngineConfig config = device_config({full(16)}, 20);
    config.max_batched_tokens = budget;
    const auto engine = make_engine(config);
    const Result<RequestId> id = engine->add_request({.prompt_tokens = make_prompt(40), .max_new_tokens = 20});
    std::vector<std::int32_t> tokens;
    while (engine->request(*id) != nullptr) {
      tokens = engine->request(*id)->tokens;
      EXPECT_TRUE(engine->step().ok());
    }
    return tokens;
  };
  EXPECT_EQ(outputs(8192), outputs(16));
}

}  // namespace
}  // namespace hostkv::bench::testing
