#include "bench/engine/kv_cache_manager.h"

#include <gtest/gtest.h>

#include "tests/support/engine_support.h"

namespace hostkv::bench::testing {
namespace {

// Which entries of a table are real blocks: "..A" reads null, null, block.
std::string shape(const std::vector<BlockId>& table) {
  std::string text;
  for (const BlockId block : table) text += block == kNullBlock ? '.' : 'x';
  return text;
}

struct Tables {
  explicit Tables(std::vector<KvCacheGroup> groups, std::int64_t num_blocks = 100)
      : pool(num_blocks), geometry(resolve(std::move(groups))), manager(geometry, config, pool) {
    request.tokens = make_prompt(200);
    request.num_prompt_tokens = 200;
    extend_prefix_hashes(request.tokens, geometry.hash_block_tokens(), request.hashes);
  }
  static Geometry resolve(std::vector<KvCacheGroup> groups) {
    GeometrySpec spec;
    spec.groups = std::move(groups);
    spec.fine_hits = false;
    return *Geometry::resolve(spec);
  }
  bool admit(std::int64_t end_tokens) {
    PrefixHit none;
    none.groups.resize(geometry.num_groups());
    return manager.admit(request, none, 0, {end_tokens, 0, 0}, {}, nullptr);
  }
  bool load(std::int64_t boundary_tokens, std::vector<FailedBlock>& targets) {
    PrefixHit none;
    none.groups.resize(geometry.num_groups());
    return manager.admit(request, none, boundary_tokens, {boundary_tokens, 0, 0}, {}, &targets);
  }
  // The chunk up to here has run; the next one ends at `end_tokens`.
  bool go_on(std::int64_t computed_tokens, std::int64_t end_tokens) {
    request.num_computed_tokens = computed_tokens;
    request.state_column = request.running_column;
    return manager.grow(request, {end_tokens, 0, 0});
  }

  EngineConfig config;
  BlockPool pool;
  Geometry geometry;
  KvCacheManager manager;
  Request request;
};

TEST(KvCacheManager, V11KeepsTheStateBeforeTheChunkAndTheOneBehind) {
  Tables t({mamba(32)});
  ASSERT_TRUE(t.admit(96));
  EXPECT_EQ(shape(t.request.tables[0]), "..x");
  const BlockId a = t.request.tables[0][2];
  ASSERT_TRUE(t.go_on(96, 100));
  EXPECT_EQ(shape(t.request.tables[0]), "..xx");
  EXPECT_EQ(t.request.tables[0][2], a);
  const BlockId b = t.request.tables[0][3];
  ASSERT_TRUE(t.go_on(100, 101));
  EXPECT_EQ(shape(t.request.tables[0]), "...x") << "the state at 96 is not read any more";
  EXPECT_EQ(t.request.tables[0][3], b) << "decoding goes on in the same block";
  ASSERT_TRUE(t.go_on(128, 129));
  EXPECT_EQ(shape(t.request.tables[0]), "...xx");
}

TEST(KvCacheManager, ReleasesBlocksThatLeaveTheWindow) {
  Tables t({window(16, 40)});
  ASSERT_TRUE(t.admit(64));
  EXPECT_EQ(shape(t.request.tables[0]), "xxxx");
  ASSERT_TRUE(t.go_on(64, 100));
  EXPECT_EQ(shape(t.request.tables[0]), ".xxxxxx") << "skipped(64) = 25";
  ASSERT_TRUE(t.go_on(100, 101));
  EXPECT_EQ(shape(t.request.tables[0]), "...xxxx");
  EXPECT_EQ(t.pool.num_free(), 96);
}

TEST(KvCacheManager, ReleasesBlocksOfEarlierChunks) {
  Tables t({chunked(16, 32)});
  ASSERT_TRUE(t.admit(48));
  ASSERT_TRUE(t.go_on(48, 64));
  EXPECT_EQ(shape(t.request.tables[0]), "..xx");
  ASSERT_TRUE(t.go_on(64, 65));
  EXPECT_EQ(shape(t.request.tables[0]), "....x");
}

TEST(KvCacheManager, ADenseStateTableIsAppendOnly) {
  Tables t({mamba(32, MambaMode::kAll)});
  ASSERT_TRUE(t.admit(96));
  ASSERT_TRUE(t.go_on(96, 100));
  EXPECT_EQ(shape(t.request.tables[0]), "xxxx");
}

TEST(KvCacheManager, ScratchAndMambaNoneHoldOneBlock) {
  Tables t({ring(16), mamba(16, MambaMode::kNone)});
  ASSERT_TRUE(t.admit(96));
  ASSERT_TRUE(t.go_on(96, 150));
  EXPECT_EQ(shape(t.request.tables[0]), "x");
  EXPECT_EQ(shape(t.request.tables[1]), "x");
}

TEST(KvCacheManager, V6ALoadHasOneStateTargetAndEveryAttentionBlock) {
  Tables t({full(32), mamba(32)});
  std::vector<FailedBlock> targets;
  ASSERT_TRUE(t.load(128, targets));
  EXPECT_EQ(shape(t.request.tables[0]), "xxxx");
  EXPECT_EQ(shape(t.request.tables[1]), "...x");
  EXPECT_EQ(targets.size(), 5U);
}

TEST(KvCacheManager, V7ALoadBehindALocalHitTargetsOnlyWhatIsMissing) {
  Tables t({full(32), mamba(32)});
  ASSERT_TRUE(t.admit(64));
  t.manager.cache_blocks(t.request, 64);
  t.manager.free(t.request);
  const PrefixHit hit = find_longest_prefix(t.geometry, t.pool, t.request);
  ASSERT_EQ(hit.boundary_tokens, 64);
  std::vector<FailedBlock> targets;
  ASSERT_TRUE(t.manager.admit(t.request, hit, 64, {128, 0, 0}, {}, &targets));
  EXPECT_EQ(shape(t.request.tables[0]), "xxxx");
  EXPECT_EQ(shape(t.request.tables[1]), "...x") << "the local state at 64 is not in the table";
  ASSERT_EQ(targets.size(), 3U);
  EXPECT_EQ(targets[0].block, t.request.tables[0][2]);
  EXPECT_EQ(targets[1].block, t.request.tables[0][3]);
  EXPECT_EQ(targets[2].block, t.request.tables[1][3]);
}

TEST(KvCacheManager, ChangesNothingWhenTheBlocksDoNotSuffice) {
  Tables t({full(16), window(16, 40)}, 7);
  EXPECT_FALSE(t.admit(64));
  EXPECT_EQ(t.pool.num_free(), 7);
  EXPECT_TRUE(t.request.tables.empty());
}

TEST(KvCacheManager, CountsWhatEveryGroupStillHasToGet) {
  Tables t({full(16), window(16, 40), chunked(16, 32), mamba(16), ring(16)});
  ASSERT_TRUE(t.admit(16));
  // To 96 tokens in chunks of 16: 5 more of full attention, 4 of the window (the 40 behind and the chunk, and one for
  // the cut), 3 of the chunk (32 and 16, and one), the state behind, and the ring's one block is there.
  EXPECT_EQ(t.manager.blocks_to_get(t.request, 96, 16), 5 + 4 + 3 + 1);
  t.request.num_computed_tokens = 16;
  ASSERT_TRUE(t.go_on(16, 96));
  EXPECT_EQ(t.manager.blocks_to_get(t.request, 96, 16), 0);
}

TEST(KvCacheManager, AnAdmissionLeavesItsReserveFree) {
  const auto is_admitted = [](std::int64_t num_blocks, const BlockReserve& reserve) {
    Tables t({full(16), mamba(16)}, num_blocks);
    PrefixHit none;
    none.groups.resize(2);
    return t.manager.admit(t.request, none, 32, {32, 0, 0}, reserve, nullptr);
  };
  // 2 blocks and the state are loaded; 64 tokens need 2 blocks more and the state behind.
  EXPECT_TRUE(is_admitted(3, {}));
  EXPECT_TRUE(is_admitted(6, {.for_others = 0, .own_end_tokens = 64, .chunk_tokens = 32}));
  EXPECT_FALSE(is_admitted(5, {.for_others = 0, .own_end_tokens = 64, .chunk_tokens = 32}));
  EXPECT_TRUE(is_admitted(8, {.for_others = 2, .own_end_tokens = 64, .chunk_tokens = 32}));
  EXPECT_FALSE(is_admitted(7, {.for_others = 2, .own_end_tokens = 64, .chunk_tokens = 32}));
}

TEST(KvCacheManager, FreesTheTailOfARequestFirst) {
  Tables t({full(16)}, 4);
  ASSERT_TRUE(t.admit(48));
  t.manager.cache_blocks(t.request, 48);
  t.manager.free(t.request);
  std::vector<BlockId> order;
  t.pool.allocate(4, order);
  EXPECT_EQ(order, (std::vector<BlockId>{BlockId{4}, BlockId{3}, BlockId{2}, BlockId{1}}));
}

TEST(KvCacheManager, OnlyTheStateAtTheEndOfAChunkIsFindable) {
  Tables t({mamba(32)});
  ASSERT_TRUE(t.admit(96));
  t.manager.cache_blocks(t.request, 96);
  EXPECT_EQ(t.pool.num_cached(), 1);
  ASSERT_TRUE(t.go_on(96, 100));
  t.manager.cache_blocks(t.request, 100);
  EXPECT_EQ(t.pool.num_cached(), 1);
}

}  // namespace
}  // namespace hostkv::bench::testing
