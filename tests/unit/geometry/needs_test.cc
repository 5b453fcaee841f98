// The worked examples V1 to V9 and rules of needs and lookups. The lookup that drives them is the plain one of
// geometry_builders.h: every candidate from the top, every key asked for.

#include <gtest/gtest.h>

#include "tests/support/geometry_builders.h"

namespace hostkv::testing {
namespace {

constexpr GroupIndex kG0{0};
constexpr GroupIndex kG1{1};

TEST(WorkedExampleV1, FullAttentionLeavesTheLastTokenToCompute) {
  const Geometry g = resolved({.groups = {full(16)}});
  const CachedKeys cached{block_keys(16, {0, 1, 2, 3, 4, 5})};
  EXPECT_EQ(longest_hit(g, cached, 99), 96);
  EXPECT_EQ(longest_hit(g, cached, 95), 80);
  EXPECT_EQ(longest_hit(g, cached, 96), 96);
  EXPECT_EQ(g.needs(kG0, 96), (BlockIndexRange{0, 6}));
  EXPECT_EQ(g.skipped_tokens(kG0, 96), 0);
}

TEST(WorkedExampleV2, ADraftGroupDropsOneBlock) {
  const Geometry g = resolved({.groups = {draft(full(16))}});
  EXPECT_EQ(longest_hit(g, {block_keys(16, {0, 1, 2, 3, 4, 5})}, 99), 80);
  EXPECT_EQ(g.needs(kG0, 80), (BlockIndexRange{0, 5}));
}

TEST(WorkedExampleV3, AWindowNeedsARowOfBlocksOrTheBeginning) {
  const Geometry g = resolved({.groups = {window(16, 40)}});
  EXPECT_EQ(g.lookup_run_blocks(kG0), 3);
  EXPECT_EQ(longest_hit(g, {block_keys(16, {3, 4, 5})}, 99), 96);
  EXPECT_EQ(longest_hit(g, {block_keys(16, {0, 1})}, 99), 32);
  EXPECT_EQ(longest_hit(g, {block_keys(16, {1, 2})}, 99), 0);
  EXPECT_EQ(g.skipped_tokens(kG0, 96), 57);
  EXPECT_EQ(g.needs(kG0, 96), (BlockIndexRange{3, 6}));
}

// R2.
TEST(WorkedExampleV4, FullAttentionIsCutToWhatTheWindowHas) {
  const Geometry g = resolved({.groups = {full(16), window(16, 40)}});
  EXPECT_EQ(longest_hit(g, {block_keys(16, {0, 1, 2, 3, 4, 5}), block_keys(16, {1, 2, 3})}, 99), 64);
}

TEST(WorkedExampleV5, AHitEndsWhereAStateIs) {
  const Geometry g = resolved({.groups = {full(32), mamba(32)}, .hash_block_tokens = 32});
  const std::set<std::int64_t> attention = block_keys(32, {0, 1, 2, 3, 4});
  EXPECT_EQ(longest_hit(g, {attention, {64, 128}}, 159), 128);
  EXPECT_EQ(longest_hit(g, {attention, {64}}, 159), 64);
  EXPECT_EQ(g.lookup_need(kG1, 128)->blocks, (BlockIndexRange{3, 4}));
}

TEST(WorkedExampleV6, AnExternalLoadHasOneStateAsTarget) {
  const Geometry g = resolved({.groups = {full(32), mamba(32)}, .hash_block_tokens = 32});
  EXPECT_EQ(g.needs(kG0, 128), (BlockIndexRange{0, 4}));
  EXPECT_EQ(g.needs(kG1, 128), (BlockIndexRange{3, 4}));
}

TEST(WorkedExampleV7, ALoadBehindALocalHitBeginsAtItsBlock) {
  const Geometry g = resolved({.groups = {full(32), mamba(32)}, .hash_block_tokens = 32});
  EXPECT_EQ(g.blocks_of_tokens(kG0, 64, 128), (BlockIndexRange{2, 4}));
  EXPECT_EQ(g.needs(kG1, 128), (BlockIndexRange{3, 4}));
}

TEST(WorkedExampleV8, AFineHitEndsInsideBlocks) {
  const Geometry g = resolved({.groups = {full(64), mamba(64)}, .hash_block_tokens = 16});
  EXPECT_EQ(longest_hit(g, {{64, 128, 144}, {128, 144}}, 149), 144);
  EXPECT_EQ(longest_hit(g, {{64, 128}, {128, 144}}, 149), 128);
  EXPECT_EQ(g.needs(kG0, 144), (BlockIndexRange{0, 3}));
  EXPECT_EQ(g.needs(kG1, 144), (BlockIndexRange{2, 3}));
}

TEST(WorkedExampleV9, UnderDcpTheLastAttentionBlockMayBePartlyFilled) {
  const Geometry g = resolved({.groups = {full(16), mamba(16)}, .parallel = dcp_of(4), .hash_block_tokens = 16});
  EXPECT_EQ(g.scheduler_block_tokens(), 64);
  EXPECT_EQ(longest_hit(g, {{64, 80}, {64, 80}}, 95), 80);
  EXPECT_EQ(longest_hit(g, {{64}, {64, 80}}, 95), 64);
  EXPECT_EQ(g.needs(kG0, 80), (BlockIndexRange{0, 2}));
  EXPECT_EQ(g.needs(kG1, 80), (BlockIndexRange{4, 5}));
  EXPECT_EQ(g.needs(kG1, 64), (BlockIndexRange{3, 4}));
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(g.local_length_tokens(kG0, 80, rank) - 16, 4) << "rank " << rank;
  }
}

// Field case A6.
TEST(Lookup, ServesASharedTailInsideABlockOnlyWithFineHits) {
  const Geometry coarse = resolved({.groups = {full(64), mamba(16)}, .hash_block_tokens = 16});
  const std::set<std::int64_t> states = block_keys(16, {0, 1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_EQ(longest_hit(coarse, {{64, 128, 144}, states}, 183), 128);
  const Geometry fine = resolved({.groups = {full(16), mamba(16)}, .parallel = dcp_of(4), .hash_block_tokens = 16});
  EXPECT_EQ(longest_hit(fine, {{64, 128, 144}, states}, 183), 144);
  EXPECT_EQ(fine.needs(kG0, 144), (BlockIndexRange{0, 3}));
}

// Field case A8.
TEST(Lookup, CountsOnlySpansOfWhichEveryRankHoldsItsShard) {
  const Geometry g = resolved({.groups = {full(16)}, .parallel = dcp_of(4)});
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(g.local_length_tokens(kG0, 200, rank), 50);
    EXPECT_EQ(g.local_length_tokens(kG0, 192, rank), 48);
  }
  EXPECT_EQ(longest_hit(g, {block_keys(64, {0, 1, 2})}, 199), 192);
  EXPECT_EQ(longest_hit(g, {block_keys(64, {0, 2})}, 199), 64);
}

TEST(Needs, AreEmptyAtZeroForEveryKind) {
  for (const KvCacheGroup& group : {full(16), mla(16), window(16, 40), chunked(16, 64), mamba(16)}) {
    const Geometry g = resolved({.groups = {group}});
    EXPECT_TRUE(g.needs(kG0, 0).empty());
    EXPECT_EQ(g.skipped_tokens(kG0, 0), 0);
    ASSERT_TRUE(g.lookup_need(kG0, 0).has_value());
    EXPECT_TRUE(g.lookup_need(kG0, 0)->blocks.empty());
    EXPECT_EQ(g.lookup_need(kG0, 0)->tail_boundary_tokens, 0);
  }
}

TEST(Needs, OfAWindowKeepMoreThanALookupWantsWhereTheEngineRetainsMore) {
  const Geometry g = resolved({.groups = {window(64, 321, 8)}});
  EXPECT_EQ(g.needs(kG0, 704), (BlockIndexRange{5, 11}));
  EXPECT_EQ(g.lookup_need(kG0, 704)->blocks, (BlockIndexRange{6, 11}));
}

TEST(Needs, AreEmptyWhereNothingBehindTheBoundaryIsRead) {
  const Geometry one = resolved({.groups = {window(16, 1)}});
  EXPECT_TRUE(one.needs(kG0, 10).empty());
  EXPECT_TRUE(one.needs(kG0, 64).empty());
  EXPECT_EQ(one.lookup_run_blocks(kG0), 0);
  EXPECT_TRUE(one.lookup_need(kG0, 64)->blocks.empty());
  const Geometry chunks = resolved({.groups = {chunked(64, 192)}});
  EXPECT_EQ(chunks.needs(kG0, 576), (BlockIndexRange{9, 9}));
}

TEST(LookupNeed, ReachesOneHashBlockBehindAFineBoundaryInADraftGroup) {
  const Geometry g =
      resolved({.groups = {draft(mla(384)), mamba(3072)}, .parallel = dcp_of(8), .hash_block_tokens = 384});
  const auto need = g.lookup_need(kG0, 3072);
  ASSERT_TRUE(need.has_value());
  EXPECT_EQ(need->blocks, (BlockIndexRange{0, 2}));
  EXPECT_EQ(need->tail_boundary_tokens, 3456);
  EXPECT_EQ(g.lookup_need(kG1, 3072)->tail_boundary_tokens, 3072);
}

TEST(LookupNeed, AnswersNothingBetweenTwoAlignedBoundaries) {
  const Geometry g = resolved({.groups = {full(64), window(16, 40)}});
  EXPECT_FALSE(g.lookup_need(kG0, 80).has_value());
  EXPECT_TRUE(g.lookup_need(kG0, 128).has_value());
  EXPECT_FALSE(g.lookup_need(kG0, std::int64_t{1} << 62).has_value());
}

TEST(BlocksOfTokens, RoundsTheBeginDownAndTheEndUp) {
  const Geometry g = resolved({.groups = {full(16)}});
  EXPECT_EQ(g.blocks_of_tokens(kG0, 15, 17), (BlockIndexRange{0, 2}));
  EXPECT_EQ(g.blocks_of_tokens(kG0, 16, 17), (BlockIndexRange{1, 2}));
  EXPECT_TRUE(g.blocks_of_tokens(kG0, 20, 20).empty());
}

}  // namespace
}  // namespace hostkv::testing
