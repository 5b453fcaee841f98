#ifndef HOSTKV_TESTS_SUPPORT_ENGINE_SUPPORT_H_
#define HOSTKV_TESTS_SUPPORT_ENGINE_SUPPORT_H_

// Groups, geometries and engines for tests. Failure: a test that hands in something impossible aborts.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bench/engine/engine.h"
#include "bench/engine/engine_impl.h"
#include "hostkv/geometry.h"
#include "tests/support/geometry_builders.h"
#include "tests/support/random.h"

namespace hostkv::bench::testing {

using hostkv::testing::chunked;
using hostkv::testing::full;
using hostkv::testing::mamba;
using hostkv::testing::mla;
using hostkv::testing::pick;
using hostkv::testing::Random;
using hostkv::testing::ring;
using hostkv::testing::test_rounds;
using hostkv::testing::window;

inline EngineConfig device_config(std::vector<KvCacheGroup> groups, std::int64_t num_device_blocks) {
  EngineConfig config;
  config.geometry.groups = std::move(groups);
  config.num_device_blocks = num_device_blocks;
  config.offload = false;
  return config;
}

inline std::unique_ptr<EngineImpl> make_engine(EngineConfig config) {
  Result<std::unique_ptr<Engine>> engine = Engine::create(std::move(config));
  if (!engine) ADD_FAILURE() << engine.error().to_string();
  if (!engine) return nullptr;
  return std::unique_ptr<EngineImpl>(static_cast<EngineImpl*>(engine->release()));
}

inline std::vector<std::int32_t> make_prompt(std::int64_t num_tokens, std::int32_t seed = 1) {
  std::minstd_rand random(static_cast<std::uint32_t>(seed));
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < num_tokens; ++i) tokens.push_back(static_cast<std::int32_t>(random()));
  return tokens;
}

// Runs one request to its end and answers its report.
inline RequestReport run_prompt(Engine& engine, std::vector<std::int32_t> prompt, std::int64_t max_new_tokens = 1) {
  const Result<RequestId> id =
      engine.add_request({.prompt_tokens = std::move(prompt), .max_new_tokens = max_new_tokens});
  if (!id) ADD_FAILURE() << id.error().to_string();
  const Status status = engine.run_until_idle();
  EXPECT_TRUE(status.ok()) << status.to_string();
  const std::vector<RequestReport> reports = engine.take_reports();
  EXPECT_EQ(reports.size(), 1U);
  return reports.empty() ? RequestReport{} : reports.back();
}

// After every step: nothing was lost (R15), and no byte that attention read was wrong.
inline void expect_sound(const Engine& engine) {
  const Status conserved = engine.check_conservation();
  EXPECT_TRUE(conserved.ok()) << conserved.to_string();
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.bytes_wrong, 0);
  if (stats.first_wrong) {
    ADD_FAILURE() << "request " << stats.first_wrong->request.value() << " group " << stats.first_wrong->group.value()
                  << " rank " << stats.first_wrong->rank << " position " << stats.first_wrong->position << ": "
                  << stats.first_wrong->what;
  }
}

// Both schedulings in turn: even seeds run ahead, by one step or by two. Every third one loads in the step.
inline void draw_scheduling(EngineConfig& config, std::uint64_t seed) {
  config.scheduling = seed % 2 == 0 ? Scheduling::kAsync : Scheduling::kSync;
  config.steps_in_flight = seed % 4 == 0 ? 2 : 1;
  config.load_mode = seed % 3 == 0 ? LoadMode::kSynchronous : LoadMode::kAsynchronous;
}

// Now and then the answer ends by itself, which a scheduler that runs ahead learns late.
inline void draw_end(Random& random, RequestSpec& request) {
  if (hostkv::testing::one_in(random, 4)) request.end_after_tokens = pick(random, 1, request.max_new_tokens);
}

// What a request that runs to its end says, as far as it could be seen, and where states of it were handed off.
struct HandedOff {
  std::vector<std::int32_t> tokens;
  std::set<std::int64_t> boundaries;
};
inline HandedOff run_watching_hand_offs(EngineImpl& engine, RequestId id) {
  HandedOff seen;
  while (!engine.idle()) {
    if (const Request* request = engine.request(id)) seen.tokens = request->tokens;
    const Status status = engine.step();
    if (!status.ok()) {
      ADD_FAILURE() << status.to_string();
      break;
    }
    for (const BoundaryHandOff& entry : engine.last_plan().hand_offs) seen.boundaries.insert(entry.boundary_tokens);
  }
  return seen;
}

// Properties try the seeds from here on, one a round.
inline std::uint64_t first_test_seed() {
  return hostkv::testing::number_from_environment("HOSTKV_TEST_SEED", 1);
}

}  // namespace hostkv::bench::testing

#endif  // HOSTKV_TESTS_SUPPORT_ENGINE_SUPPORT_H_
