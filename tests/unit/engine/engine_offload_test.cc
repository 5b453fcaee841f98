// The engine with its connector: what is evicted from the device comes back from the host, and planted faults are seen.

#include <gtest/gtest.h>

#include "bench/engine/connector_link.h"
#include "tests/support/engine_support.h"

namespace hostkv::bench::testing {
namespace {

EngineConfig kimi_like(std::int64_t interleave_tokens) {
  EngineConfig config = device_config({mla(12, true), mamba(96)}, 40);
  config.geometry.parallel.dcp = 8;
  config.geometry.parallel.interleave_tokens = interleave_tokens;
  config.max_batched_tokens = 256;
  config.offload = true;
  config.connector.cpu_bytes_to_use_per_rank = host_bytes_for_blocks(config, 100);
  return config;
}

EngineConfig window_like() {
  EngineConfig config = device_config({full(16), window(16, 40)}, 40);
  config.offload = true;
  config.connector.cpu_bytes_to_use_per_rank = host_bytes_for_blocks(config, 100);
  return config;
}

TEST(EngineOffload, LoadsFromTheHostWhatTheDeviceHasDropped) {
  for (const std::int64_t interleave : {1, 4, 12}) {
    SCOPED_TRACE("interleave " + std::to_string(interleave));
    const auto engine = make_engine(kimi_like(interleave));
    ASSERT_NE(engine, nullptr);
    EXPECT_EQ(run_prompt(*engine, make_prompt(1000)).computed_tokens, 1000);
    EXPECT_EQ(run_prompt(*engine, make_prompt(1000)).device_hit_tokens, 960);
    engine->evict_device_cache();
    const RequestReport replay = run_prompt(*engine, make_prompt(1000));
    EXPECT_EQ(replay.device_hit_tokens, 0);
    EXPECT_EQ(replay.host_hit_tokens, 960);
    EXPECT_EQ(replay.computed_tokens, 40);
    EXPECT_EQ(engine->stats().bytes_wrong, 0);
    EXPECT_EQ(engine->stats().pinned_device_blocks, 0);
    EXPECT_TRUE(engine->check_conservation().ok()) << engine->check_conservation().to_string();
  }
}

TEST(EngineOffload, ContinuesFromALocalHitWithTheHost) {
  const auto engine = make_engine(window_like());
  ASSERT_NE(engine, nullptr);
  run_prompt(*engine, make_prompt(300));
  engine->evict_device_cache();
  run_prompt(*engine, make_prompt(100));
  const RequestReport replay = run_prompt(*engine, make_prompt(300));
  EXPECT_EQ(replay.device_hit_tokens, 96);
  EXPECT_EQ(replay.host_hit_tokens, 192);
  EXPECT_EQ(engine->stats().bytes_wrong, 0);
}

TEST(EngineOffload, AbortWhileLoadingLeaksNothing) {
  const auto engine = make_engine(window_like());
  ASSERT_NE(engine, nullptr);
  run_prompt(*engine, make_prompt(300));
  engine->evict_device_cache();
  const Result<RequestId> id = engine->add_request({.prompt_tokens = make_prompt(300)});
  ASSERT_TRUE(engine->step().ok());
  ASSERT_TRUE(engine->abort_request(*id).ok());
  EXPECT_TRUE(engine->check_conservation().ok());
  ASSERT_TRUE(engine->run_until_idle().ok());
  EXPECT_EQ(engine->stats().free_device_blocks, 40);
  EXPECT_EQ(engine->stats().pinned_device_blocks, 0);
}

TEST(EngineOffload, ResetForgetsTheHostToo) {
  const auto engine = make_engine(window_like());
  ASSERT_NE(engine, nullptr);
  run_prompt(*engine, make_prompt(300));
  EXPECT_TRUE(engine->reset_prefix_cache(true));
  const RequestReport replay = run_prompt(*engine, make_prompt(300));
  EXPECT_EQ(replay.device_hit_tokens, 0);
  EXPECT_EQ(replay.host_hit_tokens, 0);
}

class PlantedFault : public ::testing::TestWithParam<Plant> {};

TEST_P(PlantedFault, IsSeenAfterColdEvictReplay) {
  for (EngineConfig config : {kimi_like(1), kimi_like(4), window_like()}) {
    config.plant = GetParam();
    const auto engine = make_engine(config);
    ASSERT_NE(engine, nullptr);
    run_prompt(*engine, make_prompt(300));
    EXPECT_EQ(engine->stats().bytes_wrong, 0);
    engine->evict_device_cache();
    EXPECT_GT(run_prompt(*engine, make_prompt(300)).host_hit_tokens, 0);
    EXPECT_GT(engine->stats().bytes_wrong, 0);
    ASSERT_TRUE(engine->stats().first_wrong);
    EXPECT_EQ(engine->stats().first_wrong->rank, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Plants, PlantedFault,
                         ::testing::Values(Plant::kCorruptByte, Plant::kSwapBlocks, Plant::kStoreBeforeCompute,
                                           Plant::kLoadBeforeLanded));

// R8: the request goes on in the block of such a state. It may be a source again once nobody owns it.
TEST(EngineOffload, AStateInsideABlockIsNoSourceOfACopyWhileItsRequestRuns) {
  GeometrySpec spec;
  spec.groups = {full(16), mamba(16)};
  spec.hash_block_tokens = 4;
  const Geometry geometry = hostkv::testing::resolved(spec);
  BlockPool pool(8);
  const RequestMap requests;
  ConnectorBlocks blocks(geometry, pool, requests);
  std::vector<BlockId> owned;
  pool.allocate(2, owned);
  const PrefixHash inner{1, 2};
  const PrefixHash whole{3, 4};
  pool.insert(CacheKey{inner, GroupIndex{1}}, owned[0], false);
  pool.insert(CacheKey{whole, GroupIndex{1}}, owned[1], true);
  const auto found = [&](const PrefixHash& hash) {
    BlockId block = kNullBlock;
    blocks.find_cached(GroupIndex{1}, std::as_bytes(std::span(&hash, 1)), sizeof(hash), std::span(&block, 1));
    return block;
  };
  EXPECT_EQ(found(inner), kNullBlock);
  EXPECT_EQ(found(whole), owned[1]);
  pool.free(owned);
  EXPECT_EQ(found(inner), owned[0]);
}

}  // namespace
}  // namespace hostkv::bench::testing
