// R18: someone always gets on, and a run in which nobody does ends with names.

#include <gtest/gtest.h>

#include <algorithm>

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

// Runs each prompt alone, so that the host has it; drops the device cache; adds all of them again.
void replay_together(Engine& engine, const std::vector<RequestSpec>& requests) {
  for (const RequestSpec& request : requests) run_prompt(engine, request.prompt_tokens, request.max_new_tokens);
  engine.evict_device_cache();
  for (const RequestSpec& request : requests) ASSERT_TRUE(engine.add_request(request));
}

TEST(EngineLiveness, TwoLoadsThatShareATightPoolBothFinish) {
  EngineConfig config = offload_config({mamba(16), mamba(16), window(16, 78), mla(16, true)}, 14);
  config.geometry.parallel.dcp = 2;
  config.geometry.parallel.interleave_tokens = 4;
  config.max_batched_tokens = 27;
  config.max_running_requests = 3;
  const auto engine = make_engine(std::move(config));
  ASSERT_NE(engine, nullptr);
  const std::int64_t total_tokens = 2 * (34 + 15);
  replay_together(*engine, {{.prompt_tokens = make_prompt(34, 1), .max_new_tokens = 16},
                            {.prompt_tokens = make_prompt(34, 2), .max_new_tokens = 16}});
  const std::int64_t first_step = engine->stats().steps;
  while (!engine->idle() && engine->stats().steps - first_step <= 3 * total_tokens) ASSERT_TRUE(engine->step().ok());
  EXPECT_TRUE(engine->idle()) << engine->stats().preemptions << " preemptions";
  EXPECT_EQ(engine->take_reports().size(), 2U);
  EXPECT_EQ(engine->stats().bytes_wrong, 0);
}

TEST(EngineLiveness, I1ALoadWaitsUntilItsPrefillAndThoseBeforeItFit) {
  const auto engine = make_engine(offload_config({full(16)}, 2048));
  ASSERT_NE(engine, nullptr);
  const std::vector<std::int32_t> a = make_prompt(25'596, 1);
  const std::vector<std::int32_t> b = make_prompt(19'196, 2);
  const auto head = [](const std::vector<std::int32_t>& prompt, std::int64_t num_tokens) {
    return std::vector<std::int32_t>(prompt.begin(), prompt.begin() + num_tokens);
  };
  run_prompt(*engine, head(a, 512 * 16));
  run_prompt(*engine, head(b, 736 * 16));
  engine->evict_device_cache();
  ASSERT_TRUE(engine->add_request({.prompt_tokens = a}));
  ASSERT_TRUE(engine->add_request({.prompt_tokens = b}));
  ASSERT_TRUE(engine->run_until_idle(10).ok());
  const std::vector<RequestReport> reports = engine->take_reports();
  ASSERT_EQ(reports.size(), 2U);
  EXPECT_EQ(reports[0].host_hit_tokens, 512 * 16);
  EXPECT_EQ(reports[1].host_hit_tokens, 736 * 16);
  EXPECT_EQ(engine->stats().preemptions, 0) << "nothing that was loaded is thrown away";
  EXPECT_EQ(engine->stats().bytes_wrong, 0);
}

TEST(EngineLiveness, I3TwoFullHitsThatFillThePoolBothFinish) {
  const auto engine = make_engine(offload_config({full(16)}, 511));
  ASSERT_NE(engine, nullptr);
  replay_together(*engine, {{.prompt_tokens = make_prompt(4097, 1), .max_new_tokens = 20},
                            {.prompt_tokens = make_prompt(4081, 2), .max_new_tokens = 20}});
  ASSERT_TRUE(engine->run_until_idle(10).ok());
  EXPECT_EQ(engine->take_reports().size(), 2U);
  EXPECT_EQ(engine->stats().preemptions, 0);
  EXPECT_EQ(engine->stats().bytes_wrong, 0);
}

TEST(EngineLiveness, AnOlderRequestIsNeverPreemptedForAYoungerOne) {
  EngineConfig config = offload_config({full(16), window(16, 40)}, 18);
  config.max_batched_tokens = 40;
  const auto engine = make_engine(std::move(config));
  ASSERT_NE(engine, nullptr);
  std::vector<RequestSpec> requests;
  for (std::int32_t i = 1; i <= 4; ++i) requests.push_back({.prompt_tokens = make_prompt(50, i), .max_new_tokens = 60});
  replay_together(*engine, requests);
  bool was_preempted = false;
  while (!engine->idle()) {
    std::vector<RequestId> owners;
    for (std::uint64_t id = 5; id <= 8; ++id) {
      const Request* request = engine->request(RequestId{id});
      if (request != nullptr && !request->tables.empty()) owners.push_back(RequestId{id});
    }
    ASSERT_TRUE(engine->step().ok());
    for (const RequestId id : engine->last_plan().preempted) {
      EXPECT_NE(id, owners.front()) << "request " << id.value() << " is the oldest one that owns blocks";
      was_preempted = true;
    }
  }
  EXPECT_TRUE(was_preempted);
  EXPECT_EQ(engine->take_reports().size(), 4U);
}

// The reports of two requests, which share the engine until both have ended.
struct Pair {
  RequestReport older;
  RequestReport younger;
};
Pair run_pair(EngineImpl& engine, RequestSpec older, RequestSpec younger) {
  EXPECT_TRUE(engine.add_request(std::move(older)));
  EXPECT_TRUE(engine.add_request(std::move(younger)));
  EXPECT_TRUE(engine.run_until_idle(50).ok());
  EXPECT_EQ(engine.stats().bytes_wrong, 0);
  std::vector<RequestReport> reports = engine.take_reports();
  EXPECT_EQ(reports.size(), 2U);
  std::ranges::sort(reports, {}, &RequestReport::id);
  return {reports.front(), reports.back()};
}

TEST(EngineLiveness, ALoadedRequestThatWaitsGivesItsBlocksToAnOlderOneThatRuns) {
  EngineConfig config = offload_config({full(16), mamba(16)}, 12);
  config.max_batched_tokens = 16;  // beside a decode there is no room for a whole chunk: the loaded one waits
  const auto engine = make_engine(std::move(config));
  ASSERT_NE(engine, nullptr);
  run_prompt(*engine, make_prompt(40, 2));
  engine->evict_device_cache();
  const Pair reports = run_pair(*engine, {.prompt_tokens = make_prompt(40, 1), .max_new_tokens = 90},
                                {.prompt_tokens = make_prompt(70, 2)});
  EXPECT_EQ(reports.older.num_preemptions, 0);
  EXPECT_GE(reports.younger.num_preemptions, 1);
}

TEST(EngineLiveness, AnOlderRequestThatRanLaterIsStillTheOlderOne) {
  const auto engine = make_engine(offload_config({full(16)}, 8));
  ASSERT_NE(engine, nullptr);
  run_prompt(*engine, make_prompt(52, 1));
  engine->evict_device_cache();
  const Pair reports = run_pair(*engine, {.prompt_tokens = make_prompt(60, 1), .max_new_tokens = 60},
                                {.prompt_tokens = make_prompt(20, 2), .max_new_tokens = 40});
  EXPECT_EQ(reports.older.host_hit_tokens, 48) << "the younger one ran while this one was loaded";
  EXPECT_EQ(reports.older.num_preemptions, 0);
  EXPECT_GE(reports.younger.num_preemptions, 1);
}

TEST(EngineLiveness, AClaimIsKeptWhereAYoungerRequestHasJustMadeRoom) {
  EngineConfig config = offload_config({full(16)}, 7);
  config.max_batched_tokens = 32;
  const auto engine = make_engine(std::move(config));
  ASSERT_NE(engine, nullptr);
  run_prompt(*engine, make_prompt(52, 1));
  engine->evict_device_cache();
  const Pair reports = run_pair(*engine, {.prompt_tokens = make_prompt(100, 1)},
                                {.prompt_tokens = make_prompt(64, 2), .max_new_tokens = 5});
  EXPECT_EQ(reports.older.host_hit_tokens, 48);
  EXPECT_EQ(reports.older.num_preemptions, 0) << "what was loaded stays";
  EXPECT_EQ(reports.younger.num_preemptions, 1);
}

TEST(EngineLiveness, ARunThatOnlyComputesAgainEndsWithTheNameOfTheRequest) {
  EngineConfig config = device_config({full(16)}, 6);
  config.max_batched_tokens = 32;
  const auto engine = make_engine(std::move(config));
  const Result<RequestId> older = engine->add_request({.prompt_tokens = make_prompt(30, 1), .max_new_tokens = 60});
  ASSERT_TRUE(engine->add_request({.prompt_tokens = make_prompt(30, 2), .max_new_tokens = 40}));
  while (engine->stats().preemptions == 0) ASSERT_TRUE(engine->step().ok());
  ASSERT_TRUE(engine->abort_request(*older).ok());
  engine->evict_device_cache();
  const Status status = engine->run_until_idle(1);
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(status.message().find("request 2 is running"), std::string::npos) << status.message();
  EXPECT_TRUE(engine->run_until_idle().ok());
}

}  // namespace
}  // namespace hostkv::bench::testing
