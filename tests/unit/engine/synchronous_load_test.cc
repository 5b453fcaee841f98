// Loads that the step which plans them waits for: the request runs in that step, behind what was loaded.

#include <gtest/gtest.h>

#include "tests/support/engine_support.h"
#include "tests/support/fault_backend.h"

namespace hostkv::bench::testing {
namespace {

using hostkv::testing::FaultBackend;

EngineConfig loads_in_the_step(std::vector<KvCacheGroup> groups, Scheduling scheduling) {
  EngineConfig config = device_config(std::move(groups), 60);
  config.offload = true;
  config.settle_copies = true;
  config.scheduling = scheduling;
  config.load_mode = LoadMode::kSynchronous;
  config.connector.cpu_bytes_to_use_per_rank = host_bytes_for_blocks(config, 200);
  return config;
}

class SynchronousLoad : public ::testing::TestWithParam<Scheduling> {};

TEST_P(SynchronousLoad, TheRequestRunsInTheStepThatPlansItsLoad) {
  const auto engine = make_engine(loads_in_the_step({full(16), mamba(16)}, GetParam()));
  ASSERT_NE(engine, nullptr);
  run_prompt(*engine, make_prompt(300), 20);
  engine->evict_device_cache();
  ASSERT_TRUE(engine->add_request({.prompt_tokens = make_prompt(300), .max_new_tokens = 20}));
  ASSERT_TRUE(engine->step().ok());
  ASSERT_EQ(engine->last_plan().scheduled.size(), 1U);
  EXPECT_EQ(engine->last_plan().scheduled[0].num_computed_tokens, 288);
  EXPECT_EQ(engine->last_plan().scheduled[0].num_scheduled_tokens, 12);
  ASSERT_TRUE(engine->run_until_idle().ok());
  expect_sound(*engine);
  EXPECT_EQ(engine->take_reports().at(0).host_hit_tokens, 288);
}

TEST_P(SynchronousLoad, WhoWasLoadedTakesFromTheBudgetBehindThoseThatRun) {
  EngineConfig config = loads_in_the_step({full(16)}, GetParam());
  config.max_batched_tokens = 40;
  const auto engine = make_engine(config);
  ASSERT_NE(engine, nullptr);
  run_prompt(*engine, make_prompt(100, 1));
  engine->evict_device_cache();
  ASSERT_TRUE(engine->add_request({.prompt_tokens = make_prompt(190, 2)}));
  ASSERT_TRUE(engine->step().ok());
  ASSERT_TRUE(engine->add_request({.prompt_tokens = make_prompt(160, 1)}));
  while (engine->last_plan().scheduled.size() < 2 && !engine->idle()) ASSERT_TRUE(engine->step().ok());
  ASSERT_EQ(engine->last_plan().scheduled.size(), 2U);
  EXPECT_EQ(engine->last_plan().scheduled[1].num_computed_tokens, 96);
  EXPECT_EQ(
      engine->last_plan().scheduled[0].num_scheduled_tokens + engine->last_plan().scheduled[1].num_scheduled_tokens,
      40);
  ASSERT_TRUE(engine->run_until_idle().ok());
  expect_sound(*engine);
}

TEST_P(SynchronousLoad, ALoadThatFailsLeavesItsRequestOutOfTheStep) {
  FaultBackend* faults = nullptr;
  EngineConfig config = loads_in_the_step({full(16), mamba(16)}, GetParam());
  config.decorate_backend = [&faults](RankIndex, std::unique_ptr<TransferBackend> inner) {
    auto backend = std::make_unique<FaultBackend>(std::move(inner));
    faults = backend.get();
    return backend;
  };
  const auto engine = make_engine(config);
  ASSERT_NE(engine, nullptr);
  run_prompt(*engine, make_prompt(300), 20);
  engine->evict_device_cache();
  faults->fail_next_submit(StatusCode::kDeviceError);
  const Result<RequestId> id = engine->add_request({.prompt_tokens = make_prompt(300), .max_new_tokens = 20});
  ASSERT_TRUE(engine->step().ok());
  EXPECT_TRUE(engine->last_plan().scheduled.empty());
  EXPECT_EQ(engine->request(*id)->state, RequestState::kWaiting);
  EXPECT_TRUE(engine->request(*id)->tables.empty());
  expect_sound(*engine);
  ASSERT_TRUE(engine->run_until_idle().ok());
  expect_sound(*engine);
  const RequestReport report = engine->take_reports().at(0);
  EXPECT_EQ(report.failed_loads, 1);
  EXPECT_EQ(report.host_hit_tokens + report.computed_tokens, 300);
}

// The negative control: the forward reads what was to be loaded.
TEST_P(SynchronousLoad, AForwardThatDoesNotWaitForTheLoadIsSeen) {
  EngineConfig config = loads_in_the_step({full(16), mamba(16)}, GetParam());
  config.plant = Plant::kLoadBeforeLanded;
  const auto engine = make_engine(config);
  ASSERT_NE(engine, nullptr);
  run_prompt(*engine, make_prompt(300));
  engine->evict_device_cache();
  EXPECT_GT(run_prompt(*engine, make_prompt(300)).host_hit_tokens, 0);
  EXPECT_GT(engine->stats().bytes_wrong, 0);
}

// What the older one's chunk of the same step fills has its keys already, but not its bytes: the younger one's load,
// which the forward waits for, must not copy it on the device. (Its own hit ends at 0: no window is kept at 96.)
TEST_P(SynchronousLoad, BlocksThatTheSameStepFillsAreNoSourceOfItsLoad) {
  EngineConfig config = loads_in_the_step({full(16), window(16, 20)}, GetParam());
  config.retention_interval_tokens = 0;
  const auto engine = make_engine(config);
  ASSERT_NE(engine, nullptr);
  run_prompt(*engine, make_prompt(100));
  engine->evict_device_cache();
  std::vector<std::int32_t> older = make_prompt(100);
  older.resize(180, 7);
  std::vector<std::int32_t> younger = make_prompt(100);
  younger.resize(120, 8);
  ASSERT_TRUE(engine->add_request({.prompt_tokens = older, .max_new_tokens = 3, .skip_reading_cache = true}));
  ASSERT_TRUE(engine->add_request({.prompt_tokens = younger, .max_new_tokens = 3}));
  ASSERT_TRUE(engine->step().ok());
  ASSERT_EQ(engine->last_plan().scheduled.size(), 2U);
  EXPECT_EQ(engine->last_plan().scheduled[1].num_computed_tokens, 96);
  ASSERT_TRUE(engine->run_until_idle().ok());
  expect_sound(*engine);
  EXPECT_EQ(engine->take_reports().size(), 2U);
}

INSTANTIATE_TEST_SUITE_P(Schedulings, SynchronousLoad, ::testing::Values(Scheduling::kSync, Scheduling::kAsync),
                         [](const auto& of) { return of.param == Scheduling::kSync ? "sync" : "async"; });

}  // namespace
}  // namespace hostkv::bench::testing
