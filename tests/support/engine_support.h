#ifndef HOSTKV_TESTS_SUPPORT_ENGINE_SUPPORT_H_
#define HOSTKV_TESTS_SUPPORT_ENGINE_SUPPORT_H_

// Groups, geometries and engines for tests. Failure: a test that hands in something impossible aborts.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bench/engine/engine.h"
#include "bench/engine/engine_impl.h"
#include "hostkv/geometry.h"

namespace hostkv::bench::testing {

inline KvCacheGroup full_group(std::int64_t block_tokens, bool sharded = false) {
  KvCacheGroup group;
  group.kind = GroupKind::kFullAttention;
  group.block_tokens = block_tokens;
  group.sharded = sharded;
  return group;
}

inline KvCacheGroup mla_group(std::int64_t block_tokens, bool sharded = false) {
  KvCacheGroup group = full_group(block_tokens, sharded);
  group.kind = GroupKind::kMla;
  return group;
}

inline KvCacheGroup window_group(std::int64_t block_tokens, std::int64_t window_tokens) {
  KvCacheGroup group;
  group.kind = GroupKind::kSlidingWindow;
  group.block_tokens = block_tokens;
  group.window_tokens = window_tokens;
  return group;
}

inline KvCacheGroup chunked_group(std::int64_t block_tokens, std::int64_t chunk_tokens) {
  KvCacheGroup group;
  group.kind = GroupKind::kChunkedLocal;
  group.block_tokens = block_tokens;
  group.chunk_tokens = chunk_tokens;
  return group;
}

inline KvCacheGroup mamba_group(std::int64_t block_tokens, MambaMode mode = MambaMode::kAlign) {
  KvCacheGroup group;
  group.kind = GroupKind::kMamba;
  group.block_tokens = block_tokens;
  group.mamba_mode = mode;
  return group;
}

inline KvCacheGroup ring_group(std::int64_t block_tokens) {
  KvCacheGroup group;
  group.kind = GroupKind::kScratch;
  group.block_tokens = block_tokens;
  group.cacheable = false;
  group.transferable = false;
  return group;
}

inline bench::EngineConfig device_config(std::vector<KvCacheGroup> groups, std::int64_t num_device_blocks) {
  bench::EngineConfig config;
  config.geometry.groups = std::move(groups);
  config.num_device_blocks = num_device_blocks;
  config.offload = false;
  return config;
}

inline std::unique_ptr<bench::EngineImpl> make_engine(bench::EngineConfig config) {
  Result<std::unique_ptr<bench::Engine>> engine = bench::Engine::create(std::move(config));
  if (!engine) ADD_FAILURE() << engine.error().to_string();
  if (!engine) return nullptr;
  return std::unique_ptr<bench::EngineImpl>(static_cast<bench::EngineImpl*>(engine->release()));
}

inline std::vector<std::int32_t> make_prompt(std::int64_t num_tokens, std::int32_t seed = 1) {
  std::minstd_rand random(static_cast<std::uint32_t>(seed));
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < num_tokens; ++i) tokens.push_back(static_cast<std::int32_t>(random()));
  return tokens;
}

// Runs one request to its end and answers its report.
inline bench::RequestReport run_prompt(bench::Engine& engine, std::vector<std::int32_t> prompt,
                                       std::int64_t max_new_tokens = 1) {
  const Result<RequestId> id =
      engine.add_request({.prompt_tokens = std::move(prompt), .max_new_tokens = max_new_tokens});
  if (!id) ADD_FAILURE() << id.error().to_string();
  const Status status = engine.run_until_idle();
  EXPECT_TRUE(status.ok()) << status.to_string();
  const std::vector<bench::RequestReport> reports = engine.take_reports();
  EXPECT_EQ(reports.size(), 1U);
  return reports.empty() ? bench::RequestReport{} : reports.back();
}

// For properties: HOSTKV_TEST_SEED and HOSTKV_TEST_ROUNDS, or the given value.
inline std::uint64_t test_number(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

}  // namespace hostkv::bench::testing

#endif  // HOSTKV_TESTS_SUPPORT_ENGINE_SUPPORT_H_
