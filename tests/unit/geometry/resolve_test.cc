#include <gtest/gtest.h>

#include "tests/support/geometry_builders.h"

namespace hostkv::testing {
namespace {

constexpr GroupIndex kG0{0};
constexpr GroupIndex kG1{1};
constexpr GroupIndex kG2{2};
constexpr GroupIndex kG3{3};

// Field case A1.
TEST(Resolve, MultipliesOnlyShardedBlocksByDcp) {
  const Geometry g = resolved({.groups = {full(16), mamba(16)}, .parallel = dcp_of(2)});
  EXPECT_EQ(g.span_tokens(kG0), 32);
  EXPECT_EQ(g.span_tokens(kG1), 16);
  EXPECT_EQ(g.scheduler_block_tokens(), 32);
  EXPECT_EQ(g.hash_block_tokens(), 16);
  EXPECT_EQ(g.blocks_of_tokens(kG0, 0, 64), (BlockIndexRange{0, 2}));
  EXPECT_EQ(g.blocks_of_tokens(kG1, 0, 64), (BlockIndexRange{0, 4}));
}

// Field case A3: a container of two layers is one group of attention.
TEST(Resolve, TakesTheShardedSpanAsHashOfASingleGroup) {
  const Geometry g = resolved({.groups = {full(64)}, .parallel = dcp_of(2)});
  EXPECT_EQ(g.span_tokens(kG0), 128);
  EXPECT_EQ(g.hash_block_tokens(), 128);
  EXPECT_FALSE(g.fine_hits());
}

TEST(Resolve, KeepsAReplicatedDraftGroupAtItsBlock) {
  const Geometry g = resolved({.groups = {full(16), draft(full(16, false))}, .parallel = dcp_of(4)});
  EXPECT_EQ(g.span_tokens(kG0), 64);
  EXPECT_EQ(g.span_tokens(kG1), 16);
}

// Field case A5.
TEST(Resolve, LetsACoarseCallerFloorAndAFineOneRoundBlocksUp) {
  GeometrySpec spec{.groups = {mamba(1536), full(1536)}, .parallel = dcp_of(8)};
  const Geometry fine = resolved(spec);
  EXPECT_EQ(fine.hit_alignment_tokens(), 1536);
  EXPECT_EQ(64512 / fine.hit_alignment_tokens() * fine.hit_alignment_tokens(), 64512);
  EXPECT_EQ(fine.needs(kG1, 64512), (BlockIndexRange{0, 6}));
  spec.fine_hits = false;
  const Geometry coarse = resolved(spec);
  EXPECT_EQ(coarse.hit_alignment_tokens(), 12288);
  EXPECT_EQ(64512 / coarse.hit_alignment_tokens() * coarse.hit_alignment_tokens(), 61440);
  EXPECT_FALSE(coarse.lookup_need(kG1, 64512).has_value());
}

// Field case A6 and its correction: an equal state block is fine only with DCP.
TEST(Resolve, NeedsALargerStateBlockForFineHitsWithoutDcp) {
  EXPECT_FALSE(resolved({.groups = {full(64), mamba(16)}, .hash_block_tokens = 16}).fine_hits());
  EXPECT_TRUE(resolved({.groups = {full(64), mamba(32)}, .hash_block_tokens = 16}).fine_hits());
  EXPECT_TRUE(resolved({.groups = {full(16), mamba(16)}, .parallel = dcp_of(4), .hash_block_tokens = 16}).fine_hits());
}

// Field case A7.
TEST(RequiredInterleave, StaysAsRequestedUnlessAConnectorNeedsTheBlock) {
  const ConnectorCapabilities local{};
  const ConnectorCapabilities aligned{.needs_block_interleave = true};
  EXPECT_EQ(required_interleave_tokens(1, 64, {local}), 1);
  EXPECT_EQ(required_interleave_tokens(1, 64, {aligned}), 64);
  EXPECT_EQ(required_interleave_tokens(1, 64, {local, local}), 1);
  EXPECT_EQ(required_interleave_tokens(1, 64, {local, aligned}), 64);
  EXPECT_EQ(required_interleave_tokens(8, 64, {}), 8);
}

// Field case A10.
TEST(Resolve, LeavesScratchGroupsOutOfEverythingButTheSchedulerBlock) {
  const Geometry g = resolved({.groups = {full(3584), ring(4), mamba(3584), full(64)}, .hash_block_tokens = 64});
  EXPECT_EQ(g.scheduler_block_tokens(), 3584);
  EXPECT_EQ(g.hash_block_tokens(), 64);
  EXPECT_TRUE(g.offloadable(kG0));
  EXPECT_FALSE(g.offloadable(kG1));
  EXPECT_EQ(g.blocks_of_tokens(kG0, 0, 7168).end_block, 2);
  EXPECT_TRUE(g.needs(kG1, 7168).empty());
  EXPECT_TRUE(g.lookup_need(kG1, 7168)->blocks.empty());
  EXPECT_EQ(g.blocks_of_tokens(kG2, 0, 7168).end_block, 2);
  EXPECT_EQ(g.blocks_of_tokens(kG3, 0, 7168).end_block, 112);
  EXPECT_EQ(resolved({.groups = {full(16), ring(6), window(16, 64)}}).scheduler_block_tokens(), 48);
}

// Field case A12.
TEST(Resolve, ChecksTheHashAgainstCacheableGroupsOnly) {
  std::vector<KvCacheGroup> groups(7, full(32));
  groups.push_back(full(64));
  groups.push_back(ring(8));
  EXPECT_EQ(refusal_of({.groups = groups, .hash_block_tokens = 32}), "");
  groups.back() = window(8, 64);
  EXPECT_EQ(refusal_of({.groups = groups, .hash_block_tokens = 32}),
            "group 8 (sliding_window): block_tokens 8 is not a multiple of the hash block 32; make it a multiple of "
            "32");
}

// Field case A19.
TEST(Resolve, ShowsTheSmallestPrefixThatCanBeReused) {
  const Geometry g = resolved({.groups = {window(128, 256), mla(4096), window(32, 64), window(2, 4), window(8, 128)}});
  EXPECT_EQ(g.min_reusable_tokens(), 4096);
  EXPECT_EQ(2048 / g.hit_alignment_tokens() * g.hit_alignment_tokens(), 0);
  EXPECT_EQ(8200 / g.hit_alignment_tokens() * g.hit_alignment_tokens(), 8192);
}

// Field case A21.
TEST(Resolve, HitsUnderDcpEqualThoseWithoutUpToCoarserRounding) {
  for (const std::int64_t dcp : {1, 2, 4, 8}) {
    const Geometry g = resolved({.groups = {full(16)}, .parallel = dcp_of(dcp)});
    std::vector<std::int64_t> blocks;
    for (std::int64_t i = 0; i < 16000 / (16 * dcp); ++i) {
      blocks.push_back(i);
    }
    EXPECT_EQ(longest_hit(g, {block_keys(g.span_tokens(kG0), blocks)}, 16040), 16000) << "dcp " << dcp;
  }
}

// Field case A22: each pair of sizes is either taken, with KV not claimed by PCP ranks, or refused by name.
TEST(Resolve, RefusesByNameOrTakesEachPairOfDcpAndPcp) {
  for (const std::int64_t dcp : {1, 2, 4}) {
    for (const std::int64_t pcp : {1, 2, 4}) {
      const bool allowed = dcp == 1 || dcp == pcp || dcp == 4 * pcp || (pcp == 1 && 4 % dcp == 0);
      GeometrySpec spec{.groups = {full(16)}, .parallel = {.tp = 4, .dcp = dcp, .pcp = pcp}};
      const std::string refusal = refusal_of(spec);
      if (allowed) {
        EXPECT_EQ(resolved(spec).span_tokens(kG0), 16 * dcp);
      } else {
        EXPECT_NE(refusal.find("dcp " + std::to_string(dcp)), std::string::npos) << refusal;
        EXPECT_NE(refusal.find("pcp " + std::to_string(pcp)), std::string::npos) << refusal;
      }
    }
  }
}

// Field case A24.
TEST(Resolve, CountsSlotsOfAPrefixPerGroup) {
  const Geometry g = resolved({.groups = {full(1536), mamba(1536)}, .parallel = dcp_of(8)});
  EXPECT_EQ(g.blocks_of_tokens(kG0, 0, 24576).end_block, 2);
  EXPECT_EQ(g.blocks_of_tokens(kG1, 0, 24576).end_block, 16);
}

TEST(Resolve, TakesTheSchedulerBlockAsHashWhenNobodyLooksUp) {
  GeometrySpec spec{.groups = {full(16), mamba(64)}, .hash_block_tokens = 16, .prefix_caching = false};
  spec.connector = false;
  EXPECT_EQ(resolved(spec).hash_block_tokens(), 64);
}

TEST(Resolve, TakesTheSchedulerBlockAsHashForStatesOutsideAlignMode) {
  const Geometry g = resolved({.groups = {full(16), mamba(64, MambaMode::kAll)}});
  EXPECT_EQ(g.hash_block_tokens(), 64);
  EXPECT_EQ(g.hit_alignment_tokens(), 64);
  EXPECT_TRUE(g.offloadable(kG1));
}

TEST(Resolve, OffersNothingOfAStateThatIsUpdatedInPlace) {
  const Geometry g = resolved({.groups = {full(16), mamba(64, MambaMode::kNone)}});
  EXPECT_FALSE(g.offloadable(kG1));
  EXPECT_FALSE(g.lookup_need(kG1, 64).has_value());
  EXPECT_TRUE(g.lookup_need(kG1, 0)->blocks.empty());
}

TEST(Resolve, NeverOffloadsAGroupThatTheEngineKeeps) {
  KvCacheGroup kept = full(16);
  kept.transferable = false;
  const Geometry g = resolved({.groups = {full(16), kept}});
  EXPECT_TRUE(g.offloadable(kG0));
  EXPECT_FALSE(g.offloadable(kG1));
}

TEST(Resolve, DropsInEveryGroupThatIsLookedUpWithADraftGroup) {
  KvCacheGroup named = full(16);
  named.name = "target";
  const Geometry g = resolved({.groups = {named, draft(full(16)), full(32), window(16, 32)}});
  EXPECT_TRUE(g.drops_unit(kG0));
  EXPECT_TRUE(g.drops_unit(kG1));
  EXPECT_FALSE(g.drops_unit(kG2));
  EXPECT_FALSE(g.drops_unit(kG3));
}

TEST(Resolve, TrustsFineHitsThatAreAskedForWhereHitsCanEndInsideBlocks) {
  const Geometry g = resolved({.groups = {full(64), full(16)}, .fine_hits = true});
  EXPECT_TRUE(g.fine_hits());
  EXPECT_EQ(g.hit_alignment_tokens(), 16);
}

TEST(GroupKind, NamesAreThoseOfVectorsAndReadBack) {
  for (const auto kind : {GroupKind::kFullAttention, GroupKind::kMla, GroupKind::kSlidingWindow,
                          GroupKind::kChunkedLocal, GroupKind::kMamba, GroupKind::kScratch}) {
    EXPECT_EQ(group_kind_from_name(group_kind_name(kind)), kind);
  }
  EXPECT_EQ(group_kind_name(GroupKind::kScratch), "ring");
  EXPECT_EQ(group_kind_from_name("scratch"), std::nullopt);
  EXPECT_EQ(group_kind_name(static_cast<GroupKind>(77)), "unknown");
}

// R23.
TEST(Fingerprint, IsEqualForEqualSpecsAndBlindToNamesAndWaysOfAsking) {
  GeometrySpec spec{.groups = {full(16), mamba(64)}};
  const std::uint64_t fingerprint = resolved(spec).fingerprint();
  EXPECT_EQ(resolved(spec).fingerprint(), fingerprint);
  spec.groups[0].name = "layers";
  spec.hash_block_tokens = 16;
  EXPECT_EQ(resolved(spec).fingerprint(), fingerprint);
}

TEST(Fingerprint, ChangesWithEveryFieldThatBytesDependOn) {
  const GeometrySpec base{.groups = {full(16), window(16, 32)}, .parallel = {.tp = 8, .dcp = 2}};
  std::vector<GeometrySpec> changed(13, base);
  changed[0].groups[0].kind = GroupKind::kMla;
  changed[1].groups[0].block_tokens = 32;
  changed[2].groups[0].sharded = false;
  changed[3].groups[0].page_bytes = 4096;
  changed[4].groups[1].window_tokens = 33;
  changed[5].groups[1].extra_retained_tokens = 1;
  changed[6].groups[0].tokens_per_entry = 2;
  changed[7].parallel.tp = 16;
  changed[8].parallel.pp = 2;
  changed[9].parallel.dcp = 4;
  changed[10].parallel.interleave_tokens = 2;
  changed[11].hash_block_tokens = 8;
  changed[12].groups.push_back(full(16));
  std::set<std::uint64_t> seen{resolved(base).fingerprint()};
  for (std::size_t i = 0; i < changed.size(); ++i) {
    EXPECT_TRUE(seen.insert(resolved(changed[i]).fingerprint()).second) << "change " << i;
  }
}

TEST(Fingerprint, IsTheSameOnEveryMachine) {
  EXPECT_EQ(resolved({.groups = {full(16)}}).fingerprint(), 48784302715650884U);
}

}  // namespace
}  // namespace hostkv::testing
