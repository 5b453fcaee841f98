// Requests that hold the same blocks: who computes again, who goes on, and what a failed load leads to.

#include <gtest/gtest.h>

#include "tests/support/geometry_builders.h"
#include "tests/support/recovery_plans.h"

namespace hostkv::testing {
namespace {

constexpr auto kSync = LoadMode::kSynchronous;

Geometry one_full() {
  return resolved({.groups = {full(16)}});
}

TEST(SharedBlocks, TheFirstComputesAgainAndTheOthersKeepTheirClaim) {
  const std::vector<HeldTables> requests = {
      {5, 64, {{1, 2, 3, 4}}, {}, kSync}, {6, 48, {{1, 2, 3, 9}}, {}, kSync}, {7, 32, {{1, 2}}, {}, kSync}};
  const RecoveryPlan plan = plan_of(one_full(), requests, {failed_load(5, 0, 3)});
  EXPECT_EQ(text_of(plan), "5: rewind 32; 6: keep 48; evicted 0/3 0/9") << "7 holds good blocks alone";
  EXPECT_EQ(plan.requests[1].kept, (Ranges{{0, 3}}));
}

TEST(SharedBlocks, WhoLostABlockOfItsOwnGoesBackToThatOne) {
  const std::vector<HeldTables> requests = {{5, 64, {{1, 2, 3, 4}}, {}, kSync}, {6, 64, {{1, 2, 3, 9}}, {}, kSync}};
  EXPECT_EQ(text_of(plan_of(one_full(), requests, {failed_load(5, 0, 2), failed_load(6, 0, 9)})),
            "5: rewind 16; 6: rewind 48; evicted 0/2 0/9");
}

TEST(SharedBlocks, OnlyWhatTheFirstComputesAgainIsLeftToIt) {
  // The first has settled half of block 3 only; the second reads all of it.
  const std::vector<HeldTables> shorter = {{5, 40, {{1, 2, 3}}, {}, kSync}, {6, 48, {{1, 2, 3}}, {}, kSync}};
  EXPECT_EQ(text_of(plan_of(one_full(), shorter, {failed_load(5, 0, 3)})), "5: rewind 32; 6: rewind 32; evicted 0/3");
  // At another place of the table it holds other tokens.
  const std::vector<HeldTables> moved = {{5, 48, {{1, 2, 3}}, {}, kSync}, {6, 48, {{1, 3, 8}}, {}, kSync}};
  EXPECT_EQ(text_of(plan_of(one_full(), moved, {failed_load(5, 0, 3)})), "5: rewind 32; 6: rewind 16; evicted 0/3");
  // A request that waits for its load does not run before the others.
  const std::vector<HeldTables> waits = {{5, 48, {{1, 2, 3}}}, {6, 48, {{1, 2, 3}}, {}, kSync}};
  EXPECT_EQ(text_of(plan_of(one_full(), waits, {failed_load(6, 0, 3)})), "5: rewind 32; 6: rewind 32; evicted 0/3");
}

TEST(SharedBlocks, OfHybridsNobodyCountsOnAnother) {
  const Geometry geometry = resolved({.groups = {full(16), window(16, 33)}});
  const std::vector<HeldTables> requests = {{5, 64, {{1, 2, 3, 4}, {1, 2, 3, 4}}, {}, kSync},
                                            {6, 48, {{1, 2, 3}, {1, 2, 3}}, {}, kSync}};
  EXPECT_EQ(text_of(plan_of(geometry, requests, {failed_load(5, 1, 3)})), "5: preempt 32; 6: preempt 32; evicted 1/3");
}

// The second has found block 5, which the first wrote on its failed load, and went on from it.
TEST(SharedBlocks, WhoFoundWhatWasComputedOnAFailedLoadIsTouchedAndDoesNotWriteIntoIt) {
  const std::vector<HeldTables> requests = {{5, 64, {{1, 2, 3, 4, 5}}, {}, kSync},
                                            {6, 80, {{1, 2, 3, 4, 5, 6}}, {}, kSync},
                                            {7, 96, {{1, 2, 3, 4, 5, 6, 7}}, {}, kSync},
                                            {8, 64, {{1, 2, 3, 4, 8}}}};
  EXPECT_EQ(text_of(plan_of(one_full(), requests, {failed_load(5, 0, 4)})),
            "5: rewind 48; 6: preempt 48; 7: preempt 48; 8: rewind 48; evicted 0/4 0/5 0/6 0/7");
}

// What failed has fallen out of the second one's window; what it reads was computed on it all the same.
TEST(SharedBlocks, IsTouchedThroughTheBlocksOfAnyGroup) {
  const Geometry geometry = resolved({.groups = {full(16), window(16, 17)}});
  const std::vector<HeldTables> requests = {{5, 64, {{1, 2, 3, 4, 5, 6}, {0, 0, 0, 14, 15, 16}}, {}, kSync},
                                            {6, 96, {{1, 2, 3, 4, 5, 6}, {0, 0, 0, 0, 15, 16}}}};
  EXPECT_EQ(text_of(plan_of(geometry, requests, {failed_load(5, 1, 14)})),
            "5: preempt 0; 6: preempt 0; evicted 0/5 0/6 1/14 1/15 1/16");
}

// A block of 64 that was loaded up to 16 tokens and filled behind them: the loaded part is good for who shares it.
TEST(SharedBlocks, ABlockWithTokensOnBothSidesIsGoodUpToTheSettledOnes) {
  const Geometry geometry = resolved({.groups = {full(64), mamba(64)}, .hash_block_tokens = 16, .fine_hits = true});
  const std::vector<HeldTables> requests = {
      {5, 80, {{1, 2}, {7, 8, 9}}, {{}, {64, 80, 128}}, kSync},
      {6, 128, {{1, 2}, {7, 8, 9}}, {{}, {64, 80, 128}}, kSync},
  };
  EXPECT_EQ(text_of(plan_of(geometry, requests, {failed_load(5, 1, 7)})),
            "5: preempt 80; 6: preempt 80; evicted 0/2 1/7 1/9");
}

TEST(SharedBlocks, AStateOfLaterTokensIsVoidForWhoTookIt) {
  const Geometry geometry = resolved({.groups = {mamba(16)}});
  const std::vector<HeldTables> requests = {{5, 32, {{1, 2, 3}}, {{16, 32, 48}}, kSync},
                                            {6, 48, {{1, 0, 3}}, {{16, 0, 48}}}};
  EXPECT_EQ(text_of(plan_of(geometry, requests, {failed_load(5, 0, 2)})),
            "5: preempt 16; 6: preempt 16; evicted 0/2 0/3");
}

TEST(SharedBlocks, RequestsThatWaitShareNothingOfTheirTargets) {
  const std::vector<HeldTables> requests = {{5, 64, {{1, 2, 3, 4}}}, {6, 64, {{1, 2, 5, 6}}}};
  EXPECT_EQ(text_of(plan_of(one_full(), requests, {failed_load(5, 0, 4), failed_load(6, 0, 5)})),
            "5: rewind 48; 6: rewind 32");
}

}  // namespace
}  // namespace hostkv::testing
