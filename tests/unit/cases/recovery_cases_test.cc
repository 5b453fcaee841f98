// Field cases G: where a request goes on after a failed load, and what leaves the prefix cache. Cases A8, B4 and B14 as
// recovery sees them.

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/geometry_builders.h"
#include "tests/support/recovery_plans.h"

namespace hostkv::testing {
namespace {

constexpr auto kSync = LoadMode::kSynchronous;

// Numbers first, first + 1, ...
std::vector<std::uint32_t> row(std::uint32_t first, std::size_t count) {
  std::vector<std::uint32_t> numbers(count);
  for (std::size_t i = 0; i < count; ++i) {
    numbers[i] = first + static_cast<std::uint32_t>(i);
  }
  return numbers;
}

TEST(FieldCases, G1AFailureOfOneOfThreeGroupsTouchesItsRequestAlone) {
  const Geometry geometry = resolved({.groups = {full(16), window(16, 64), mamba(64)}, .fine_hits = false});
  const std::vector<HeldTables> requests = {
      {1, 128, {row(1, 8), row(11, 8), {21, 22}}, {{}, {}, {64, 128}}},
      {2, 128, {row(31, 8), row(41, 8), {51, 52}}, {{}, {}, {64, 128}}},
  };
  EXPECT_EQ(text_of(plan_of(geometry, requests, {failed_load(1, 0, 6)})), "1: rewind 64");
  EXPECT_EQ(text_of(plan_of(geometry, requests, {failed_load(1, 1, 17)})), "1: rewind 64");
  EXPECT_EQ(text_of(plan_of(geometry, requests, {failed_load(1, 2, 22)})), "1: rewind 64");
  EXPECT_EQ(text_of(plan_of(geometry, requests, {failed_load(1, 2, 22), failed_load(1, 2, 21)})), "1: rewind 0");
}

// 192: the window is null and there is no state; 128: no state; 64: the window is null.
TEST(FieldCases, G3ARewindIsNotOnlyArithmetic) {
  const Geometry geometry = resolved({.groups = {full(16), window(16, 64), mamba(64)}, .fine_hits = false});
  std::vector<std::uint32_t> windows(12, 0);
  windows.insert(windows.end(), {20, 21, 22, 23});
  const HeldTables held(1, 256, {row(1, 16), windows, {30, 0, 0, 31}}, {{}, {}, {64, 0, 0, 256}});
  EXPECT_EQ(safe_boundary_of(geometry, held, {failed_load(1, 0, 15)}), 0) << "block 14";
  EXPECT_EQ(safe_boundary_of(geometry, held, {}), 256);
}

TEST(FieldCases, G3AWindowThatMovesLeftNeedsBlocksThatAreGone) {
  const Geometry geometry = resolved({.groups = {full(16), window(16, 64)}});
  const HeldTables held(1, 256, {row(1, 16), {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 20, 21, 22, 23}});
  EXPECT_EQ(safe_boundary_of(geometry, held, {failed_load(1, 1, 23)}), 0);
  EXPECT_EQ(safe_boundary_of(geometry, held, {failed_load(1, 0, 16)}), 0);
}

TEST(FieldCases, G3AnOlderStateThatWasRetainedIsGoodEnough) {
  const Geometry geometry = resolved({.groups = {full(64), mamba(64)}, .fine_hits = false});
  const HeldTables held(1, 256, {{1, 2, 3, 4}, {0, 12, 0, 14}}, {{}, {0, 128, 0, 256}});
  EXPECT_EQ(safe_boundary_of(geometry, held, {failed_load(1, 1, 14)}), 128);
  EXPECT_EQ(safe_boundary_of(geometry, held, {failed_load(1, 0, 4)}), 128);
}

TEST(FieldCases, G3WhatADraftGroupDroppedIsNotDroppedAgain) {
  for (const bool drafts : {false, true}) {
    const KvCacheGroup group = drafts ? draft(full(16)) : full(16);
    const Geometry geometry = resolved({.groups = {group}});
    ASSERT_EQ(geometry.drops_unit(GroupIndex{0}), drafts);
    EXPECT_EQ(safe_boundary_of(geometry, {1, 96, {row(1, 6)}}, {failed_load(1, 0, 5)}), 64);
    EXPECT_EQ(safe_boundary_of(geometry, {1, 96, {row(1, 6)}}, {}), 96);
  }
}

TEST(FieldCases, G3BlocksOf16And32And64GoBackToACommonMultiple) {
  const Geometry geometry = resolved({.groups = {full(16), full(32), full(64)}});
  const HeldTables held(1, 256, {row(1, 16), row(21, 8), row(31, 4)});
  const std::vector<FailedLoad> at_token_96 = {failed_load(1, 0, 7), failed_load(1, 1, 24), failed_load(1, 2, 32)};
  for (const FailedLoad& load : at_token_96) {
    EXPECT_EQ(safe_boundary_of(geometry, held, {load}), 64) << "group " << load.group.value();
  }
}

TEST(FieldCases, G4TheSameNumberInAnotherGroupIsAnotherBlock) {
  const Geometry geometry = resolved({.groups = {full(16), window(16, 33)}});
  const std::vector<HeldTables> requests = {{1, 48, {{1, 2, 3}, {5, 6, 7}}}, {2, 48, {{5, 6, 7}, {1, 2, 3}}}};
  EXPECT_EQ(text_of(plan_of(geometry, requests, {failed_load(1, 1, 7)})), "1: rewind 32");
}

TEST(FieldCases, G4WhatTwoRanksReportIsUnited) {
  const Geometry geometry = resolved({.groups = {full(16)}, .parallel = dcp_of(2)});
  const std::vector<HeldTables> requests = {{1, 128, {{1, 2, 3, 4}}}};
  EXPECT_EQ(text_of(plan_of(geometry, requests, {failed_load(1, 0, 4, 0), failed_load(1, 0, 3, 1)})), "1: rewind 64");
}

TEST(FieldCases, G4RanksThatDisagreeAboutTheGroupsStartTheRequestAgain) {
  const Geometry geometry = resolved({.groups = {full(16), window(16, 33)}});
  const std::vector<HeldTables> requests = {{1, 48, {{1, 2, 3}, {5, 6, 7}}}, {2, 48, {{8, 9, 10}, {8, 9, 10}}}};
  EXPECT_EQ(text_of(plan_of(geometry, requests, {failed_load(1, 2, 7)})), "1: rewind 0");
}

TEST(FieldCases, G5AFailureOfOneGroupTakesItsPeersAlong) {
  const Geometry geometry = resolved({.groups = {full(16), window(16, 64), mamba(32)}, .fine_hits = false});
  const HeldTables held(1, 64, {row(1, 4), row(11, 4), {21, 22}}, {{}, {}, {32, 64}});
  const RecoveryPlan plan = plan_of(geometry, {held}, {failed_load(1, 1, 13)});
  ASSERT_EQ(text_of(plan), "1: rewind 32");
  EXPECT_EQ(plan.requests[0].kept, (Ranges{{0, 2}, {0, 2}, {0, 1}})) << "the state after 64 tokens is not used";
}

TEST(FieldCases, G5EachOfFiveGroupsInTurn) {
  const Geometry geometry = resolved(
      {.groups = {mla(256), window(4, 8), window(8, 128), window(64, 128), window(64, 256)}, .fine_hits = false});
  ASSERT_EQ(geometry.hit_alignment_tokens(), 256);
  // Loaded to 1024; the windows at 512 were retained, those at 768 were not.
  HeldTables held(1, 1024, {row(1, 4), row(1, 256), row(1, 128), row(1, 16), row(1, 16)});
  for (std::uint32_t g = 1; g < 5; ++g) {
    const auto span = static_cast<std::size_t>(geometry.span_tokens(GroupIndex{g}));
    std::fill(held.tables[g].begin() + static_cast<std::ptrdiff_t>(512 / span),
              held.tables[g].begin() + static_cast<std::ptrdiff_t>(768 / span), kNullBlock);
  }
  for (std::uint32_t g = 0; g < 5; ++g) {
    const BlockId last = held.tables[g].back();
    EXPECT_EQ(safe_boundary_of(geometry, held, {{RequestId{1}, GroupIndex{g}, last, RankIndex{0}}}), 512)
        << "group " << g;
    const auto end_of_512 = static_cast<std::size_t>(512 / geometry.span_tokens(GroupIndex{g}));
    const BlockId before = held.tables[g][end_of_512 - 1];
    EXPECT_EQ(safe_boundary_of(geometry, held,
                               {{RequestId{1}, GroupIndex{g}, last, RankIndex{0}},
                                {RequestId{1}, GroupIndex{g}, before, RankIndex{1}}}),
              256)
        << "group " << g;
  }
}

TEST(FieldCases, G5ANullBlockThatIsReportedChangesNothing) {
  const Geometry geometry = resolved({.groups = {full(16), window(16, 17)}});
  const std::vector<HeldTables> requests = {{1, 64, {{1, 2, 3, 4}, {0, 0, 0, 9}}, {}, kSync}};
  EXPECT_EQ(text_of(plan_of(geometry, requests, {failed_load(1, 1, 0), failed_load(1, 0, 0)})), "");
}

TEST(FieldCases, G7OneRequestComputesASharedBlockAgainAndTheOtherKeepsItsClaim) {
  const Geometry geometry = resolved({.groups = {full(16)}});
  const std::vector<HeldTables> requests = {{1, 64, {{1, 2, 3, 4, 5}}, {}, kSync},
                                            {2, 64, {{1, 2, 3, 4, 6}}, {}, kSync}};
  EXPECT_EQ(text_of(plan_of(geometry, requests, {failed_load(1, 0, 3)})),
            "1: rewind 32; 2: keep 64; evicted 0/3 0/5 0/6")
      << "until it is computed again nobody else may find it; 1, 2 and 4 are good";
  EXPECT_EQ(text_of(plan_of(geometry, requests, {failed_load(1, 0, 3)}, LoadFailurePolicy::kFail)),
            "1: end 32; 2: end 32; evicted 0/3 0/5 0/6");
}

TEST(FieldCases, G7PolicyFailEvictsWhatFailedAndWhatWasComputedOnItInAllGroupsAndNothingElse) {
  const Geometry geometry =
      resolved({.groups = {mla(256), window(4, 8), window(8, 128), window(64, 128), ring(64)}, .fine_hits = false});
  // Loaded to 512, computed to 520.
  const std::vector<HeldTables> requests = {
      {1, 512, {row(1, 3), row(1000, 130), row(2000, 65), row(3000, 9), {9}}, {}, kSync},
      {2, 256, {row(50, 1), row(1500, 64), row(2500, 32), row(3500, 4), {8}}, {}, kSync}};
  EXPECT_EQ(
      text_of(plan_of(geometry, requests, {failed_load(1, 2, 2063), failed_load(1, 4, 9)}, LoadFailurePolicy::kFail)),
      "1: end 256; evicted 0/3 1/1128 1/1129 2/2063 2/2064 3/3008");
}

TEST(FieldCases, G7NothingIsEvictedOfLoadsThatWereWaitedForAndNoGoodBlock) {
  const Geometry geometry = resolved({.groups = {full(16)}});
  for (const LoadFailurePolicy policy : {LoadFailurePolicy::kRecompute, LoadFailurePolicy::kFail}) {
    const RecoveryPlan waited =
        plan_of(geometry, {{1, 64, {{1, 2, 3, 4}}}, {2, 32, {{1, 2}}, {}, kSync}}, {failed_load(1, 0, 3)}, policy);
    EXPECT_EQ(waited.requests.size(), 1U) << "the other one shares good blocks";
    EXPECT_TRUE(waited.evicted.empty());
    const RecoveryPlan ran = plan_of(geometry, {{1, 64, {{1, 2, 3, 4}}, {}, kSync}, {2, 32, {{1, 2}}, {}, kSync}},
                                     {failed_load(1, 0, 3)}, policy);
    EXPECT_EQ(ran.evicted, blocks({{0, 3}})) << "1 and 2 are shared and good, 4 was loaded well";
  }
}

TEST(FieldCases, A8AShareThatOneRankLostEndsThePrefix) {
  const Geometry geometry = resolved({.groups = {full(16)}, .parallel = dcp_of(4)});
  EXPECT_EQ(safe_boundary_of(geometry, {1, 192, {{1, 2, 3}}}, {failed_load(1, 0, 2, 2)}), 64);
}

TEST(FieldCases, B4AStateBehindTheAttentionThatIsLeftIsOfNoUse) {
  const Geometry geometry = resolved({.groups = {full(256), mamba(256)}, .fine_hits = false});
  const HeldTables held(1, 1024, {{1, 2, 3, 4}, {11, 0, 0, 14}}, {{}, {256, 0, 0, 1024}});
  EXPECT_EQ(safe_boundary_of(geometry, held, {failed_load(1, 0, 3)}), 256)
      << "not 1024, and not 512, which has no state";
}

TEST(FieldCases, B14ARequestGoesOnWithAllGroupsAtOneBoundary) {
  const Geometry geometry = resolved({.groups = {full(64), mamba(64)}, .fine_hits = false});
  const HeldTables held(1, 192, {{1, 2, 3}, {11, 12, 13}}, {{}, {64, 128, 192}});
  const RecoveryPlan plan = plan_of(geometry, {held}, {failed_load(1, 1, 13)});
  ASSERT_EQ(text_of(plan), "1: rewind 128");
  EXPECT_EQ(plan.requests[0].kept, (Ranges{{0, 2}, {1, 2}}));
}

}  // namespace
}  // namespace hostkv::testing
