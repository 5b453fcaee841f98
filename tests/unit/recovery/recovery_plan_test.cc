// What becomes of one request, and what leaves the prefix cache.

#include <gtest/gtest.h>

#include "tests/support/geometry_builders.h"
#include "tests/support/recovery_plans.h"

namespace hostkv::testing {
namespace {

constexpr auto kSync = LoadMode::kSynchronous;

Geometry hybrid() {
  return resolved({.groups = {full(16), window(16, 33), mamba(16)}, .fine_hits = false});
}
// Loaded up to 64, computed up to 80: block 5 of each group, and its state after 80 tokens.
HeldTables hybrid_request(LoadMode mode) {
  return {
      1, 64, {{11, 12, 13, 14, 15}, {21, 22, 23, 24, 25}, {0, 32, 33, 34, 35}}, {{}, {}, {0, 32, 48, 64, 80}}, mode};
}

TEST(RecoveryPlan, IsEmptyWhereNothingFailed) {
  const RecoveryPlan plan = plan_of(hybrid(), {hybrid_request(kSync)}, {});
  EXPECT_TRUE(plan.requests.empty());
  EXPECT_TRUE(plan.evicted.empty());
}

TEST(RecoveryPlan, RewindsAWaitingRequestAndKeepsWhatItsBoundaryNeeds) {
  const RecoveryPlan plan = plan_of(hybrid(), {hybrid_request(LoadMode::kAsynchronous)}, {failed_load(1, 0, 14)});
  ASSERT_EQ(plan.requests.size(), 1U);
  EXPECT_EQ(plan.requests[0].action, RecoveryAction::kRewind);
  EXPECT_EQ(plan.requests[0].resume_tokens, 48);
  EXPECT_EQ(plan.requests[0].kept, (Ranges{{0, 3}, {1, 3}, {2, 3}}));
  EXPECT_TRUE(plan.evicted.empty()) << "its targets were never in the prefix cache";
}

TEST(RecoveryPlan, PreemptsARunningHybridAndEvictsWhatItComputedOnTheFailedLoad) {
  const RecoveryPlan plan = plan_of(hybrid(), {hybrid_request(kSync)}, {failed_load(1, 1, 23)});
  ASSERT_EQ(plan.requests.size(), 1U);
  EXPECT_EQ(plan.requests[0].action, RecoveryAction::kPreempt);
  EXPECT_EQ(plan.requests[0].resume_tokens, 32) << "its window reads blocks 0 and 1";
  EXPECT_EQ(plan.requests[0].kept, Ranges(3));
  EXPECT_EQ(plan.evicted, blocks({{0, 15}, {1, 23}, {1, 25}, {2, 35}}));
}

TEST(RecoveryPlan, RewindsARunningRequestOfOneGroupOfFullAttentionInPlace) {
  for (const KvCacheGroup& group : {full(16), mla(16)}) {
    const RecoveryPlan plan =
        plan_of(resolved({.groups = {group}}), {{1, 64, {{1, 2, 3, 4, 5}}, {}, kSync}}, {failed_load(1, 0, 3)});
    EXPECT_EQ(text_of(plan), "1: rewind 32; evicted 0/3 0/5");
    EXPECT_EQ(plan.requests[0].kept, (Ranges{{0, 2}}));
  }
}

// Even alone: a step in flight has nulled what its window left behind.
TEST(RecoveryPlan, PreemptsARunningRequestOfOneWindowOrState) {
  EXPECT_EQ(text_of(plan_of(resolved({.groups = {window(16, 33)}}), {{1, 64, {{1, 2, 3, 4}}, {}, kSync}},
                            {failed_load(1, 0, 4)})),
            "1: preempt 48; evicted 0/4");
  EXPECT_EQ(text_of(plan_of(resolved({.groups = {mamba(16)}}), {{1, 64, {{0, 2, 0, 4}}, {{0, 32, 0, 64}}, kSync}},
                            {failed_load(1, 0, 4)})),
            "1: preempt 32; evicted 0/4");
}

TEST(RecoveryPlan, AScratchGroupBesideFullAttentionMakesAHybrid) {
  const RecoveryPlan plan =
      plan_of(resolved({.groups = {full(16), ring(16)}}), {{1, 64, {{1, 2, 3, 4}, {9}}, {}, kSync}},
              {failed_load(1, 0, 3), failed_load(1, 1, 9)});
  EXPECT_EQ(text_of(plan), "1: preempt 32; evicted 0/3") << "and what it holds is never evicted";
}

// The engine still holds it, so the request is touched; nothing that it needs is lost.
TEST(RecoveryPlan, AFailedBlockThatNothingReadsCostsTheUnalignedRestOnly) {
  const Geometry geometry = hybrid();
  HeldTables held = hybrid_request(LoadMode::kAsynchronous);
  held.settled_tokens = 70;
  EXPECT_EQ(text_of(plan_of(geometry, {held}, {failed_load(1, 1, 21)})), "1: rewind 64") << "fallen out of the window";
  EXPECT_EQ(text_of(plan_of(geometry, {held}, {failed_load(1, 2, 35)})), "1: rewind 64") << "a state of later tokens";
}

TEST(RecoveryPlan, OfABlockWithTokensOnBothSidesTheWholeBlockIsEvicted) {
  const Geometry geometry = resolved({.groups = {full(64), mamba(64)}, .hash_block_tokens = 16, .fine_hits = true});
  // Loaded up to 80 = 64 + 16, computed up to 100: block 2 is filled from two sides.
  const HeldTables held(1, 80, {{1, 2}, {7, 8}}, {{}, {64, 80}}, kSync);
  EXPECT_EQ(text_of(plan_of(geometry, {held}, {failed_load(1, 1, 8)})), "1: preempt 64; evicted 0/2 1/8");
}

TEST(RecoveryPlan, AFailureIsTheSameHoweverOftenAndInWhichOrderItIsTold) {
  const HeldTables held(1, 64, {{1, 2, 3, 4, 5}}, {}, kSync);
  const Geometry geometry = resolved({.groups = {full(16)}, .parallel = dcp_of(1)});
  const std::string once = text_of(plan_of(geometry, {held}, {failed_load(1, 0, 3, 0), failed_load(1, 0, 2, 1)}));
  EXPECT_EQ(once, "1: rewind 16; evicted 0/2 0/3 0/5");
  EXPECT_EQ(text_of(plan_of(
                geometry, {held},
                {failed_load(1, 0, 2, 1), failed_load(1, 0, 3, 0), failed_load(1, 0, 3, 0), failed_load(1, 0, 3, 1)})),
            once);
}

// A load of a request that has ended meanwhile, on a block that another has found in the cache.
TEST(RecoveryPlan, AFailureOfAnUnknownRequestTouchesWhoHoldsTheBlock) {
  const Geometry geometry = resolved({.groups = {full(16)}});
  const HeldTables waits(1, 64, {{1, 2, 3, 4}});
  EXPECT_EQ(text_of(plan_of(geometry, {waits}, {failed_load(8, 0, 2)})), "1: rewind 16; evicted 0/2");
  EXPECT_EQ(text_of(plan_of(geometry, {waits}, {failed_load(8, 0, 5)})), "") << "a block in no table";
}

TEST(RecoveryPlan, WhereRanksDisagreeAboutTheShapeTheRequestResumesAtNothing) {
  const Geometry geometry = resolved({.groups = {full(16)}});
  HeldTables held(1, 64, {{1, 2, 3, 4}});
  EXPECT_EQ(text_of(plan_of(geometry, {held}, {failed_load(1, 3, 2)})), "1: rewind 0");
  held.mode = kSync;
  EXPECT_EQ(text_of(plan_of(resolved({.groups = {full(16), window(16, 32)}}),
                            {{1, 32, {{1, 2}, {5, 6}}, {}, kSync}, {2, 48, {{1, 2, 9}, {0, 6, 7}}, {}, kSync}},
                            {failed_load(1, 2, 2)})),
            "1: preempt 0; 2: preempt 0; evicted 0/1 0/2 1/5 1/6")
      << "any of its blocks may be the one";
  EXPECT_EQ(text_of(plan_of(geometry, {held}, {failed_load(9, 3, 2)})), "") << "of nobody";
}

TEST(RecoveryPlan, EndsWhoLostSomethingWhereThePolicySaysSo) {
  EXPECT_EQ(
      text_of(plan_of(hybrid(), {hybrid_request(LoadMode::kAsynchronous), {2, 16, {{41}, {42}, {43}}, {{}, {}, {16}}}},
                      {failed_load(1, 0, 14)}, LoadFailurePolicy::kFail)),
      "1: end 48");
}

TEST(RecoveryPlan, RefusesOneRequestTwiceAndBrokenViews) {
  RecoveryPlanner planner(resolved({.groups = {full(16)}}));
  const std::vector<HeldTables> twice = {{1, 16, {{1}}}, {2, 16, {{2}}}, {1, 16, {{3}}}};
  const auto refused = planner.plan(HeldViews(twice).all(), {});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().message(), "request 1: twice among the 3 requests; name each once");
  const std::vector<HeldTables> broken = {{1, 16, {{1}}}, {2, -5, {{2}}}};
  EXPECT_EQ(planner.plan(HeldViews(broken).all(), {}).error().code(), StatusCode::kInvalidArgument);
  const std::vector<HeldTables> good = {{1, 16, {{1}}}};
  EXPECT_EQ(text_of(planner.plan(HeldViews(good).all(), std::vector{failed_load(1, 0, 1)}).value()), "1: rewind 0")
      << "a refusal leaves nothing behind";
}

}  // namespace
}  // namespace hostkv::testing
