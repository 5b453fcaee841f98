// Models with groups that no lookup can find: what cannot be found is not hit, on the device and on the host.

#include <gtest/gtest.h>

#include "tests/support/engine_support.h"

namespace hostkv::bench::testing {
namespace {

KvCacheGroup uncached(KvCacheGroup group) {
  group.cacheable = false;
  return group;
}

EngineConfig offload_config(std::vector<KvCacheGroup> groups) {
  EngineConfig config = device_config(std::move(groups), 200);
  config.offload = true;
  config.connector.cpu_bytes_to_use_per_rank = host_bytes_for_blocks(config, 200) + 4096;
  return config;
}

// Tokens that a repeated prompt hits: on the device, then on the host.
std::pair<std::int64_t, std::int64_t> hits_of(EngineConfig config) {
  const auto engine = make_engine(std::move(config));
  if (!engine) return {-1, -1};
  run_prompt(*engine, make_prompt(500), 20);
  const std::int64_t on_device = run_prompt(*engine, make_prompt(500), 20).device_hit_tokens;
  engine->evict_device_cache();
  const std::int64_t on_host = run_prompt(*engine, make_prompt(500), 20).host_hit_tokens;
  EXPECT_EQ(engine->stats().bytes_wrong, 0);
  EXPECT_TRUE(engine->check_conservation().ok()) << engine->check_conservation().to_string();
  return {on_device, on_host};
}

using Hits = std::pair<std::int64_t, std::int64_t>;

TEST(UnfindableGroups, AModelWhoseStatesAreKeptNowhereHitsNothing) {
  for (const std::int64_t block : {7, 16, 32}) {
    EXPECT_EQ(hits_of(offload_config({full(16), mamba(block, MambaMode::kNone)})), Hits(0, 0)) << block;
    EXPECT_EQ(hits_of(offload_config({full(16), uncached(mamba(block))})), Hits(0, 0)) << block;
    EXPECT_EQ(hits_of(offload_config({full(16), uncached(mamba(block, MambaMode::kAll))})), Hits(0, 0)) << block;
  }
}

TEST(UnfindableGroups, AModelWithUncachedAttentionHitsNothing) {
  EXPECT_EQ(hits_of(offload_config({full(16), uncached(full(16))})), Hits(0, 0));
  EXPECT_EQ(hits_of(offload_config({full(16), uncached(window(16, 100))})), Hits(0, 0));
  EXPECT_EQ(hits_of(offload_config({full(16), uncached(chunked(16, 64))})), Hits(0, 0));
}

TEST(UnfindableGroups, ARingIsNotMissed) {
  EXPECT_EQ(hits_of(offload_config({full(16), ring(4)})), Hits(496, 496));
}

TEST(UnfindableGroups, StatesCloserThanHashesAreFoundWhereAHashEnds) {
  EXPECT_EQ(hits_of(offload_config({full(32), mamba(16, MambaMode::kAll)})), Hits(480, 480));
}

TEST(UnfindableGroups, AttentionBlocksThatEndAtNoHashAreRefusedByName) {
  for (const bool offload : {false, true}) {
    KvCacheGroup attention = full(16);
    attention.name = "attention";
    EngineConfig config = offload_config({attention, mamba(32, MambaMode::kAll)});
    config.offload = offload;
    const auto engine = Engine::create(std::move(config));
    ASSERT_FALSE(engine);
    EXPECT_EQ(engine.error().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(engine.error().message().find("attention"), std::string::npos) << engine.error().message();
    EXPECT_NE(engine.error().message().find("span 16 is not a multiple of the hash block 32"), std::string::npos)
        << engine.error().message();
  }
}

TEST(UnfindableGroups, AGroupThatStaysOnTheDeviceIsHitThere) {
  KvCacheGroup stays = full(16);
  stays.transferable = false;
  EXPECT_EQ(hits_of(offload_config({full(16), stays})), Hits(496, 0));
}

}  // namespace
}  // namespace hostkv::bench::testing
