// Steps that are planned before the results of the steps before them are known: what is planned, what the connector is
// told, and to whom blocks belong meanwhile.

#include <gtest/gtest.h>

#include <set>

#include "tests/support/engine_support.h"
#include "tests/support/stream_gate.h"

namespace hostkv::bench::testing {
namespace {

EngineConfig ahead(EngineConfig config, std::int64_t steps_in_flight = 1) {
  config.scheduling = Scheduling::kAsync;
  config.steps_in_flight = steps_in_flight;
  return config;
}

EngineConfig with_host(EngineConfig config) {
  config.offload = true;
  config.settle_copies = true;
  config.connector.cpu_bytes_to_use_per_rank = host_bytes_for_blocks(config, 200);
  return config;
}

TEST(RunAhead, RefusesMoreStepsInFlightThanTwoByName) {
  for (const std::int64_t steps : {0, 3}) {
    const auto engine = Engine::create(ahead(device_config({full(16)}, 10), steps));
    ASSERT_FALSE(engine);
    EXPECT_NE(engine.error().message().find("steps_in_flight is " + std::to_string(steps)), std::string::npos);
  }
}

TEST(RunAhead, PlansAndLaunchesStepsWhileTheFirstForwardStillStands) {
  for (const std::int64_t steps : {1, 2}) {
    SCOPED_TRACE(steps);
    const auto engine = make_engine(ahead(device_config({full(16)}, 40), steps));
    const Result<RequestId> id = engine->add_request({.prompt_tokens = make_prompt(20), .max_new_tokens = 8});
    ASSERT_TRUE(id);
    {
      const hostkv::testing::StreamGate gate(engine->compute_stream(RankIndex{0}));
      for (std::int64_t i = 0; i < steps; ++i)
        ASSERT_TRUE(engine->step().ok()) << "it waited for its forward, or failed";
      EXPECT_EQ(engine->request(*id)->num_computed_tokens, 0);
      EXPECT_EQ(engine->request(*id)->num_output_tokens(), 0);
      EXPECT_EQ(engine->last_plan().chunks.at(0).begin_tokens, steps == 1 ? 0 : 20);
      EXPECT_EQ(engine->stats().bytes_checked, 0);
    }
    ASSERT_TRUE(engine->step().ok());
    EXPECT_EQ(engine->last_plan().chunks.at(0).begin_tokens, 19 + steps) << "behind tokens that were not known yet";
    EXPECT_EQ(engine->request(*id)->num_computed_tokens, 20);
    EXPECT_EQ(engine->request(*id)->num_output_tokens(), 1);
    ASSERT_TRUE(engine->run_until_idle().ok());
    expect_sound(*engine);
    EXPECT_EQ(engine->stats().bytes_checked, (20 + 26) * 7 / 2 * 8) << "each of 7 decodes has read all rows before it";
  }
}

TEST(RunAhead, TellsTheConnectorOnlyTokensThatItKnows) {
  EngineConfig config = ahead(device_config({full(16)}, 60), 2);
  config.num_speculative_tokens = 3;
  const auto engine = make_engine(config);
  const Result<RequestId> id = engine->add_request({.prompt_tokens = make_prompt(20), .max_new_tokens = 60});
  bool plans_placeholders = false;
  while (engine->request(*id) != nullptr) {
    const std::int64_t known = engine->request(*id)->num_tokens();
    ASSERT_TRUE(engine->step().ok());
    for (std::size_t i = 0; i < engine->last_plan().scheduled.size(); ++i) {
      const ScheduledRequest& told = engine->last_plan().scheduled[i];
      EXPECT_LE(told.num_computed_tokens + told.num_scheduled_tokens, known);
      EXPECT_GE(told.num_scheduled_tokens, 0);
      plans_placeholders = plans_placeholders || engine->last_plan().chunks[i].end_tokens > known;
    }
  }
  EXPECT_TRUE(plans_placeholders);
}

TEST(RunAhead, DraftsInFlightCountAsAcceptedUntilTheirResultsCome) {
  EngineConfig config = ahead(device_config({full(16), mamba(16)}, 60));
  config.num_speculative_tokens = 3;
  const auto engine = make_engine(config);
  const Result<RequestId> id = engine->add_request({.prompt_tokens = make_prompt(20), .max_new_tokens = 100});
  bool was_too_many = false;
  bool was_right = false;
  while (const Request* request = engine->request(*id)) {
    const std::int64_t planned = request->num_planned_tokens;
    EXPECT_GE(planned, request->on_device.num_tokens);
    EXPECT_GE(request->on_device.num_tokens, request->num_computed_tokens);
    was_too_many = was_too_many || planned > request->on_device.num_tokens;
    was_right = was_right || (request->num_output_tokens() > 0 && planned == request->on_device.num_tokens);
    ASSERT_TRUE(engine->step().ok());
    expect_sound(*engine);
  }
  EXPECT_TRUE(was_too_many);
  EXPECT_TRUE(was_right);
}

TEST(RunAhead, AStateThatDraftsInFlightPassIsHandedOffAndFound) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    EngineConfig config = ahead(device_config({full(32), mamba(32)}, 60), seed % 2 == 0 ? 2 : 1);
    config.num_speculative_tokens = 3;
    config.seed = seed;
    const auto engine = make_engine(config);
    const Result<RequestId> id = engine->add_request({.prompt_tokens = make_prompt(20), .max_new_tokens = 200});
    ASSERT_TRUE(id);
    const auto [tokens, boundaries] = run_watching_hand_offs(*engine, *id);
    EXPECT_EQ(boundaries, (std::set<std::int64_t>{32, 64, 96, 128, 160, 192}));
    engine->take_reports();
    for (const std::int64_t boundary : boundaries) {
      const std::vector<std::int32_t> prompt(tokens.begin(), tokens.begin() + boundary + 1);
      EXPECT_EQ(run_prompt(*engine, prompt).device_hit_tokens, boundary);
    }
    expect_sound(*engine);
  }
}

TEST(RunAhead, WhoEndsByItselfKeepsItsBlocksUntilTheStepInFlightHasEnded) {
  const auto engine = make_engine(ahead(device_config({full(16)}, 40)));
  const Result<RequestId> id =
      engine->add_request({.prompt_tokens = make_prompt(20), .max_new_tokens = 50, .end_after_tokens = 3});
  while (engine->request(*id) != nullptr) {
    ASSERT_TRUE(engine->step().ok());
    expect_sound(*engine);
  }
  EXPECT_EQ(engine->last_plan().chunks.size(), 1U) << "it was planned once more before its end was known";
  EXPECT_EQ(engine->stats().computed_tokens, 20 + 2);
  EXPECT_EQ(engine->stats().free_device_blocks, 38);
  EXPECT_FALSE(engine->idle());
  ASSERT_TRUE(engine->step().ok());
  EXPECT_EQ(engine->stats().computed_tokens, 20 + 3) << "its output was dropped";
  EXPECT_EQ(engine->stats().free_device_blocks, 40);
  EXPECT_TRUE(engine->idle());
  EXPECT_EQ(engine->take_reports().size(), 1U);
}

TEST(RunAhead, WhoIsAbortedKeepsItsBlocksUntilTheStepsInFlightHaveEnded) {
  const auto engine = make_engine(ahead(device_config({full(16), mamba(16)}, 40), 2));
  const Result<RequestId> id = engine->add_request({.prompt_tokens = make_prompt(20), .max_new_tokens = 50});
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(engine->step().ok());
  ASSERT_TRUE(engine->abort_request(*id).ok());
  expect_sound(*engine);
  EXPECT_LT(engine->stats().free_device_blocks, 40);
  ASSERT_TRUE(engine->step().ok());
  EXPECT_LT(engine->stats().free_device_blocks, 40) << "the last step that uses them is still in flight";
  ASSERT_TRUE(engine->step().ok());
  EXPECT_EQ(engine->stats().free_device_blocks, 40);
  EXPECT_TRUE(engine->idle());
}

TEST(RunAhead, WhoIsPreemptedInFlightIsComputedAgainAndItsOutputThereIsDropped) {
  EngineConfig config = ahead(device_config({full(16)}, 6));
  config.max_batched_tokens = 32;
  const auto engine = make_engine(config);
  ASSERT_TRUE(engine->add_request({.prompt_tokens = make_prompt(30, 1), .max_new_tokens = 60}));
  const Result<RequestId> younger = engine->add_request({.prompt_tokens = make_prompt(30, 2), .max_new_tokens = 40});
  std::int64_t known = 0;
  while (engine->stats().preemptions == 0) {
    known = engine->request(*younger)->num_tokens();
    ASSERT_TRUE(engine->step().ok());
    expect_sound(*engine);
  }
  EXPECT_EQ(engine->request(*younger)->num_tokens(), known);
  EXPECT_EQ(engine->request(*younger)->num_placeholders, 0);
  EXPECT_LT(engine->pool().num_free(), 6);
  ASSERT_TRUE(engine->run_until_idle().ok());
  EXPECT_EQ(engine->take_reports().size(), 2U);
  expect_sound(*engine);
}

TEST(RunAhead, ResetAnswersFalseWhileAStepInFlightUsesBlocks) {
  const auto engine = make_engine(ahead(device_config({full(16)}, 40)));
  const Result<RequestId> id = engine->add_request({.prompt_tokens = make_prompt(100), .max_new_tokens = 5});
  ASSERT_TRUE(engine->step().ok());
  EXPECT_FALSE(engine->reset_prefix_cache(false)) << "it runs";
  ASSERT_TRUE(engine->abort_request(*id).ok());
  EXPECT_FALSE(engine->reset_prefix_cache(false)) << "its step is in flight";
  ASSERT_TRUE(engine->run_until_idle().ok());
  engine->take_reports();
  EXPECT_TRUE(engine->reset_prefix_cache(false));
  EXPECT_EQ(run_prompt(*engine, make_prompt(100)).device_hit_tokens, 0);
}

TEST(RunAhead, WhatIsStoredAndLoadedIsWhatStepSynchronousSchedulingStoresAndLoads) {
  for (const std::int64_t steps : {0, 1, 2}) {
    SCOPED_TRACE(steps);
    EngineConfig config = with_host(device_config({full(16), mamba(16)}, 60));
    config.max_batched_tokens = 64;
    const auto engine = make_engine(steps == 0 ? config : ahead(config, steps));
    ASSERT_NE(engine, nullptr);
    run_prompt(*engine, make_prompt(300), 40);
    engine->evict_device_cache();
    const RequestReport replay = run_prompt(*engine, make_prompt(300), 40);
    EXPECT_EQ(replay.host_hit_tokens, 288);
    EXPECT_EQ(replay.computed_tokens, 12);
    expect_sound(*engine);
  }
}

TEST(RunAhead, ASettledRunRepeatsExactly) {
  const auto run = [] {
    EngineConfig config = ahead(with_host(device_config({full(16), window(16, 40)}, 30)));
    config.num_speculative_tokens = 2;
    config.max_batched_tokens = 40;
    const auto engine = make_engine(config);
    for (std::int32_t i = 1; i <= 6; ++i) {
      EXPECT_TRUE(engine->add_request({.prompt_tokens = make_prompt(20 * i, i % 3), .max_new_tokens = 30}));
    }
    std::vector<std::int64_t> told;
    while (!engine->idle()) {
      EXPECT_TRUE(engine->step().ok());
      for (const ScheduledRequest& request : engine->last_plan().scheduled) {
        told.push_back(static_cast<std::int64_t>(request.id.value()));
        told.push_back(request.num_computed_tokens);
      }
    }
    expect_sound(*engine);
    return told;
  };
  EXPECT_EQ(run(), run());
}

// What comes back with the keys of before is not stored: the weights may have changed.
TEST(RunAhead, AResetWhileAStepInFlightUsesBlocksTrustsNothingOfTheDevice) {
  EngineConfig config = ahead(with_host(device_config({full(16)}, 12)));
  config.connector.store_mode = StoreMode::kLazy;
  const auto engine = make_engine(config);
  const Result<RequestId> id = engine->add_request({.prompt_tokens = make_prompt(100, 1), .max_new_tokens = 5});
  ASSERT_TRUE(engine->step().ok());
  ASSERT_TRUE(engine->abort_request(*id).ok());
  EXPECT_FALSE(engine->reset_prefix_cache(true));
  ASSERT_TRUE(engine->run_until_idle().ok());
  engine->take_reports();
  run_prompt(*engine, make_prompt(100, 2));
  run_prompt(*engine, make_prompt(100, 3));
  EXPECT_EQ(run_prompt(*engine, make_prompt(100, 1)).host_hit_tokens, 0);
}

// The negative controls.

TEST(RunAhead, BlocksThatAreFreeWhileAStepInFlightUsesThemAreSeen) {
  EngineConfig config = ahead(device_config({full(16)}, 40));
  config.plant = Plant::kFreeInFlight;
  const auto engine = make_engine(config);
  const Result<RequestId> id = engine->add_request({.prompt_tokens = make_prompt(20), .max_new_tokens = 50});
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine->step().ok());
  ASSERT_TRUE(engine->check_conservation().ok());
  ASSERT_TRUE(engine->abort_request(*id).ok());
  const Status status = engine->check_conservation();
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_NE(status.message().find("R13: step 3 is in flight and uses block"), std::string::npos) << status.message();
}

TEST(RunAhead, AStoreThatTrustsDraftsInFlightIsSeenWhenItIsLoaded) {
  for (const Scheduling scheduling : {Scheduling::kSync, Scheduling::kAsync}) {
    for (const Plant plant : {Plant::kNone, Plant::kTrustDrafts}) {
      EngineConfig config = with_host(device_config({full(16)}, 60));
      config.scheduling = scheduling;
      config.num_speculative_tokens = 4;
      config.plant = plant;
      const auto engine = make_engine(config);
      const Result<RequestId> id = engine->add_request({.prompt_tokens = make_prompt(20), .max_new_tokens = 200});
      std::vector<std::int32_t> tokens;
      while (!engine->idle()) {
        if (const Request* request = engine->request(*id)) tokens = request->tokens;
        ASSERT_TRUE(engine->step().ok());
      }
      EXPECT_EQ(engine->stats().bytes_wrong, 0) << "the device itself computes the right rows";
      engine->evict_device_cache();
      engine->take_reports();
      EXPECT_GT(run_prompt(*engine, tokens).host_hit_tokens, 0);
      EXPECT_EQ(engine->stats().bytes_wrong > 0, plant == Plant::kTrustDrafts);
    }
  }
}

}  // namespace
}  // namespace hostkv::bench::testing
