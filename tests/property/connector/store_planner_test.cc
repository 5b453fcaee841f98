// Store plans with worked answers from field cases.

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/property/connector/planner_harness.h"

namespace hostkv::testing {
namespace {

std::vector<std::uint32_t> sources_of(const std::vector<JobBlock>& blocks, std::uint32_t group) {
  std::vector<std::uint32_t> sources;
  for (const JobBlock& block : blocks) {
    if (block.group == GroupIndex{group}) {
      sources.push_back(block.block.value());
    }
  }
  return sources;
}

using Sources = std::vector<std::uint32_t>;

// The field case counts 4 states, one per 16 tokens. At coarse boundaries (multiples of 32) the states at 16 and 48
// could never be the end of a hit, so the two at 32 and 64 are all there is to store.
TEST(StorePlanner, A1SpansArePerGroup) {
  const Geometry geometry = coarse({.groups = {full(16), mamba(16)}, .parallel = dcp_of(2)});
  PlannerHarness host(geometry, 100);
  RequestState request = host.request(1, 64, 4);
  const auto plan = host.plan(request, 64, {host.hand_off(request, 1, 7, 32), host.hand_off(request, 1, 8, 64)});
  EXPECT_EQ(count_of_group(plan, 0), 2);
  EXPECT_EQ(sources_of(plan, 1), (Sources{7, 8}));
  host.finish_copies();
  EXPECT_EQ(host.hit(request.hashes, 65), 64);
}

// As A1: 16 states in the field case, two of them at boundaries where all groups meet.
TEST(StorePlanner, A24SlotsAreTheSumOverGroups) {
  const Geometry geometry = coarse({.groups = {full(1536), mamba(1536)}, .parallel = dcp_of(8)});
  PlannerHarness host(geometry, 100);
  RequestState request = host.request(1, 24'576, 16);
  const auto plan =
      host.plan(request, 24'576, {host.hand_off(request, 1, 7, 12'288), host.hand_off(request, 1, 8, 24'576)});
  EXPECT_EQ(count_of_group(plan, 0), 2);
  EXPECT_EQ(count_of_group(plan, 1), 2);
  EXPECT_EQ(host.cache().num_used_slots(), 4U);
}

TEST(StorePlanner, B6AStateComesFromItsHandOffNeverFromItsPosition) {
  const Geometry geometry = coarse({.groups = {full(64), mamba(64)}});
  PlannerHarness host(geometry, 100);
  RequestState request = host.request(1, 128, 2);
  host.engine.set_table(request.id, 1, {0, 17});
  EXPECT_TRUE(host.plan(request, 128).empty()) << "no hand-off: no boundary to resume at";
  const auto plan = host.plan(request, 128, {host.hand_off(request, 1, 9, 128)});
  EXPECT_EQ(sources_of(plan, 1), Sources{9});
  host.finish_copies();
  EXPECT_TRUE(host.holds(request.hashes, 1, 128));
  EXPECT_FALSE(host.holds(request.hashes, 1, 64));
}

TEST(StorePlanner, C9NullBlocksAreNeverSources) {
  const Geometry geometry = coarse({.groups = {window(16, 33)}});
  PlannerHarness host(geometry, 100);
  RequestState request = host.request(1, 64);
  request.admitted_tokens = 32;
  host.engine.set_table(request.id, 0, {0, 0, 8, 9});
  EXPECT_EQ(sources_of(host.plan(request, 64), 0), (Sources{8, 9}));
}

TEST(StorePlanner, D3StoresTheBlockThatIsCompletedInTheLastStep) {
  const Geometry geometry = coarse({.groups = {full(16)}});
  PlannerHarness host(geometry, 100);
  RequestState request = host.request(1, 32, 2);
  EXPECT_EQ(host.plan(request, 32).size(), 2U);
}

TEST(StorePlanner, D4StoresEveryBlockOfAChunkedPromptAndFindsThemAgain) {
  const Geometry geometry = coarse({.groups = {full(16)}});
  PlannerHarness host(geometry, 100);
  RequestState request = host.request(1, 1000);
  for (std::int64_t computed = 128; computed < 1000 + 128; computed += 128) {
    host.extend_table(request, 0, (std::min<std::int64_t>(computed, 1000) + 15) / 16);
    host.plan(request, std::min<std::int64_t>(computed, 1000));
  }
  for (std::int64_t decoded = 1001; decoded <= 1003; ++decoded) {
    host.plan(request, decoded);
  }
  host.finish_copies();
  EXPECT_EQ(host.metrics.stored_blocks, 62);
  EXPECT_EQ(host.metrics.stored_blocks + host.metrics.present_blocks + host.metrics.dropped_full_blocks, 62);
  EXPECT_EQ(host.hit(request.hashes, 1000), 992);
}

TEST(StorePlanner, D5OneBlockOfTwoRequestsTakesOneSlot) {
  const Geometry geometry = coarse({.groups = {full(16)}});
  PlannerHarness host(geometry, 100);
  RequestState first = host.request(1, 48, 3);
  RequestState second = host.request(1, 48, 3);
  EXPECT_EQ(host.plan(first, 48).size(), 3U);
  EXPECT_TRUE(host.plan(second, 48).empty()) << "on the way is stored already";
  EXPECT_EQ(host.cache().num_used_slots(), 3U);
  EXPECT_EQ(host.metrics.present_blocks, 3);
  host.finish_copies();
}

TEST(StorePlanner, D7TheSampledTokenThatNoForwardWroteIsNotStored) {
  const Geometry geometry = coarse({.groups = {full(4)}});
  PlannerHarness host(geometry, 100);
  RequestState three = host.request(1, 4, 1);
  EXPECT_TRUE(host.plan(three, 3).empty());
  RequestState four = host.request(2, 5, 2);
  EXPECT_EQ(host.plan(four, 4).size(), 1U);
}

TEST(StorePlanner, D11ATableLongerThanTheConfirmedTokensIsCutToThem) {
  const Geometry geometry = coarse({.groups = {full(16)}});
  PlannerHarness host(geometry, 100);
  RequestState request = host.request(1, 31, 3);
  EXPECT_EQ(host.plan(request, 31).size(), 1U);
  EXPECT_TRUE(host.plan(request, 48).empty()) << "nor is there a key behind the hashed tokens";
}

TEST(StorePlanner, D12AHitNeverCrossesAHole) {
  const Geometry geometry = coarse({.groups = {full(16)}});
  PlannerHarness host(geometry, 4);
  RequestState a = host.request(1, 96, 6);
  host.plan(a, 64);
  host.finish_copies();
  RequestState b = host.request(2, 32, 2);
  host.plan(b, 32);
  host.finish_copies();
  EXPECT_EQ(host.hit(a.hashes, 97), 32) << "the tail went first";
  host.plan(a, 96);
  host.finish_copies();
  EXPECT_LE(host.hit(a.hashes, 97), 32);
  EXPECT_EQ(host.hit(a.hashes, 97) % 16, 0);
}

void fill_and_pin(PlannerHarness& host, RequestState& owner, std::int64_t num_blocks) {
  host.plan(owner, num_blocks * 16);
  host.finish_copies();
  for (std::int64_t i = 1; i <= num_blocks; ++i) {
    host.cache().pin(find_in(host.cache(), key_at(owner.hashes, GroupIndex{0}, i * 16)));
  }
}

TEST(StorePlanner, J21WhatFindsNoRoomIsCountedOnceAndHurtsNobody) {
  const Geometry geometry = coarse({.groups = {full(16)}});
  PlannerHarness host(geometry, 4);
  RequestState owner = host.request(1, 64, 4);
  fill_and_pin(host, owner, 4);
  RequestState request = host.request(2, 32, 2);
  EXPECT_TRUE(host.plan(request, 32).empty());
  EXPECT_EQ(host.metrics.dropped_full_blocks, 2);
  EXPECT_EQ(host.hit(owner.hashes, 65), 64);
}

// A long request in a full pool: each of its blocks is dropped once, however often the set is tried.
TEST(StorePlanner, EveryBlockThatFindsNoRoomIsDroppedOnce) {
  const Geometry geometry = coarse({.groups = {full(16)}});
  PlannerHarness host(geometry, 4);
  RequestState owner = host.request(1, 64, 4);
  fill_and_pin(host, owner, 4);
  RequestState request = host.request(2, 6400, 400);
  host.plan(request, 3200);
  EXPECT_EQ(host.metrics.dropped_full_blocks, 200);
  for (std::int64_t tokens = 3216; tokens <= 6400; tokens += 16) {
    host.plan(request, tokens);
  }
  EXPECT_EQ(host.metrics.dropped_full_blocks, 400);
}

TEST(StorePlanner, ABacklogIsStoredWhenThereIsRoomAgain) {
  const Geometry geometry = coarse({.groups = {full(16)}});
  PlannerHarness host(geometry, 8);
  RequestState owner = host.request(1, 128, 8);
  fill_and_pin(host, owner, 8);
  RequestState request = host.request(2, 128, 8);
  host.plan(request, 48);
  EXPECT_EQ(host.metrics.dropped_full_blocks, 3);
  host.cache().clear();
  for (std::int64_t i = 0; i < 8; ++i) {
    host.cache().unpin(EntryId{static_cast<std::uint32_t>(i)});
  }
  host.plan(request, 128);
  host.finish_copies();
  EXPECT_EQ(host.hit(request.hashes, 129), 128);
}

// A device hit with a window: the table is null before the window, and the host lacks it. What is looked at stays
// proportional to the blocks.
TEST(StorePlanner, ALongDeviceHitThatCannotBeStoredIsLookedAtOnce) {
  const Geometry geometry = coarse({.groups = {full(16), window(16, 17)}});
  PlannerHarness host(geometry, 1000);
  RequestState first = host.request(1, 6400, 400);
  host.plan(first, 6400);
  host.finish_copies();
  for (std::int64_t i = 1; i <= 400; ++i) {
    host.cache().drop(find_in(host.cache(), key_at(first.hashes, GroupIndex{1}, i * 16)));
  }
  RequestState second = host.request(1, 6400, 400);
  second.admitted_tokens = 6384;
  std::ranges::fill(host.engine.table(second.id, 1).begin(), host.engine.table(second.id, 1).begin() + 399, kNullBlock);
  host.plan(second, 6400);
  EXPECT_LE(host.metrics.present_blocks, 2 * 400);
}

// C3: what a lookup may want is what is stored.
TEST(StorePlanner, C3StoresTheDraftBlockBehindABoundary) {
  const Geometry geometry = coarse({.groups = {full(256), draft(window(64, 128))}});
  PlannerHarness host(geometry, 100);
  RequestState request = host.request(1, 512, 8);
  host.plan(request, 256);
  host.finish_copies();
  EXPECT_EQ(host.hit(request.hashes, 512), 0) << "the draft block behind 256 is not written yet";
  host.plan(request, 320);
  host.finish_copies();
  EXPECT_EQ(host.hit(request.hashes, 512), 256);
  host.plan(request, 512);
  host.finish_copies();
  EXPECT_EQ(host.hit(request.hashes, 512), 256);
}

// The boundary of a hand-off, too, is completed when the draft block behind it is written.
TEST(StorePlanner, CompletesAHandedOffBoundaryWithItsDraftBlock) {
  const Geometry geometry = coarse({.groups = {draft(full(32)), mamba(32)}});
  PlannerHarness host(geometry, 100);
  RequestState request = host.request(1, 128, 4);
  host.plan(request, 64, {host.hand_off(request, 1, 7, 64)});
  host.finish_copies();
  EXPECT_EQ(host.hit(request.hashes, 129), 0);
  host.plan(request, 96);
  host.finish_copies();
  EXPECT_EQ(host.hit(request.hashes, 129), 64);
}

// Draft groups of different blocks: a window's block behind the boundary is gone before the attention block is full.
TEST(StorePlanner, CompletesAHandedOffBoundaryBlockByBlock) {
  const Geometry geometry = coarse({.groups = {draft(full(64)), draft(window(16, 33)), mamba(16)}});
  PlannerHarness host(geometry, 100);
  RequestState request = host.request(1, 128, 8);
  host.plan(request, 64, {host.hand_off(request, 2, 7, 64)});
  host.plan(request, 80);
  host.engine.set_table(request.id, 1, {0, 0, 0, 0, 0, 0, 8, 9});
  host.plan(request, 128);
  host.finish_copies();
  EXPECT_EQ(host.hit(request.hashes, 129), 64);
}

// Its state was evicted meanwhile: the boundary is given up, not tried in every step that follows.
TEST(StorePlanner, GivesUpAHandedOffBoundaryWhoseStateIsGone) {
  const Geometry geometry = coarse({.groups = {draft(full(32)), mamba(32)}});
  PlannerHarness host(geometry, 100);
  RequestState request = host.request(1, 320, 10);
  host.plan(request, 64, {host.hand_off(request, 1, 7, 64)});
  host.finish_copies();
  host.cache().drop(find_in(host.cache(), key_at(request.hashes, GroupIndex{1}, 64)));
  for (std::int64_t tokens = 96; tokens < 196; ++tokens) {
    host.plan(request, tokens);
  }
  EXPECT_EQ(host.metrics.unstorable_boundaries, 1);
}

using Asked = std::vector<std::pair<std::uint32_t, std::int64_t>>;

TEST(StorePlanner, ARunningRequestsTablesAreReadFromWhereTheLastStoreEnded) {
  const Geometry geometry = coarse({.groups = {full(16), window(16, 33)}});
  PlannerHarness host(geometry, 1000);
  RequestState request = host.request(1, 1600, 100);
  host.plan(request, 800);
  EXPECT_EQ(host.engine.asked, (Asked{{0, 0}, {1, 0}}));
  host.engine.asked.clear();
  host.plan(request, 810);
  EXPECT_TRUE(host.engine.asked.empty()) << "no boundary was completed";
  EXPECT_EQ(host.plan(request, 816).size(), 2U);
  EXPECT_EQ(host.engine.asked, (Asked{{0, 50}, {1, 49}})) << "the window wants one block more";
  host.finish_copies();
}

TEST(StorePlanner, OfALoadedRequestOnlyWhatTheHostLacksIsRead) {
  const Geometry geometry = coarse({.groups = {full(16)}});
  PlannerHarness host(geometry, 1000);
  RequestState first = host.request(1, 800, 50);
  host.plan(first, 800);
  host.finish_copies();
  RequestState second = host.request(1, 800, 51);
  second.admitted_tokens = 784;
  host.engine.asked.clear();
  EXPECT_TRUE(host.plan(second, 800).empty());
  EXPECT_EQ(host.engine.asked, (Asked{{0, 49}}));
  RequestState third = host.request(1, 800, 51);
  third.admitted_tokens = 784;
  host.cache().drop(find_in(host.cache(), key_at(third.hashes, GroupIndex{0}, 320)));
  host.engine.asked.clear();
  const auto plan = host.plan(third, 800);
  ASSERT_EQ(plan.size(), 1U) << "the hole is filled";
  EXPECT_EQ(plan[0].block, host.engine.table(third.id, 0)[19]);
  EXPECT_EQ(host.engine.asked, (Asked{{0, 49}, {0, 19}}));
  host.finish_copies();
}

TEST(StorePlanner, AChainThatIsLookedAtAgainIsReadOnlyWhereItHasAHole) {
  const Geometry geometry = coarse({.groups = {full(16)}});
  PlannerHarness host(geometry, 52);
  RequestState request = host.request(1, 800, 50);
  host.plan(request, 800);
  host.finish_copies();
  RequestState other = host.request(2, 48, 3);
  host.plan(other, 48);
  host.finish_copies();
  ASSERT_EQ(host.cache().num_evictions(), 1U);
  host.engine.asked.clear();
  const auto refilled = host.plan(request, 800, {}, StorePlanner::Moment::kEnd);
  ASSERT_EQ(refilled.size(), 1U);
  EXPECT_EQ(refilled[0].block, host.engine.table(request.id, 0)[49]) << "the tail had gone";
  EXPECT_EQ(host.engine.asked, (Asked{{0, 50}, {0, 49}}));
  host.finish_copies();
}

TEST(StorePlanner, WhatFailedToArriveIsStoredAtTheEndOfTheChain) {
  const Geometry geometry = coarse({.groups = {full(16)}});
  PlannerHarness host(geometry, 100);
  RequestState request = host.request(1, 800, 50);
  host.plan(request, 320);
  host.finish_copies();
  const auto failed = host.plan(request, 480);
  ASSERT_EQ(failed.size(), 10U);
  host.fail_copies(failed);
  EXPECT_EQ(host.plan(request, 560).size(), 5U) << "the chain has not doubled";
  host.finish_copies();
  EXPECT_EQ(host.plan(request, 560, {}, StorePlanner::Moment::kEnd).size(), failed.size());
  host.finish_copies();
}

TEST(StorePlanner, AHoleThatFoundNoRoomIsFilledAtTheEnd) {
  const Geometry geometry = coarse({.groups = {full(16)}});
  PlannerHarness host(geometry, 40);
  RequestState request = host.request(1, 800, 50);
  host.plan(request, 160);
  host.finish_copies();
  for (const std::int64_t tokens : {16, 32, 48}) {
    host.cache().drop(find_in(host.cache(), key_at(request.hashes, GroupIndex{0}, tokens)));
  }
  RequestState other = host.request(2, 544, 34);
  ASSERT_GE(host.plan(other, 544).size(), 30U);  // in flight: nothing of it can be evicted
  host.plan(request, 320);
  host.finish_copies();
  const auto refilled = host.plan(request, 320, {}, StorePlanner::Moment::kEnd);
  const bool has_first = std::ranges::any_of(
      refilled, [&](const JobBlock& block) { return block.block == host.engine.table(request.id, 0)[0]; });
  EXPECT_TRUE(has_first) << refilled.size() << " blocks planned";
  host.finish_copies();
}

// What others lose is no reason to look at a chain again.
TEST(StorePlanner, AChainThatLostNothingIsNotLookedAtAgain) {
  const Geometry geometry = coarse({.groups = {full(16)}});
  PlannerHarness host(geometry, 60);
  RequestState first = host.request(1, 160, 10);
  host.plan(first, 160);
  host.finish_copies();
  RequestState request = host.request(2, 800, 50);
  host.plan(request, 400);
  host.finish_copies();
  RequestState third = host.request(3, 480, 30);
  host.plan(third, 480);
  ASSERT_GT(host.cache().num_evictions(), 0U);
  host.engine.asked.clear();
  EXPECT_TRUE(host.plan(request, 400, {}, StorePlanner::Moment::kEnd).empty());
  EXPECT_TRUE(host.engine.asked.empty());
  host.finish_copies();
}

// No unit behind the limit will ever come.
TEST(StorePlanner, ABoundaryAtTheLimitOfARequestIsNotTriedAgain) {
  const Geometry geometry = coarse({.groups = {draft(full(16))}});
  PlannerHarness host(geometry, 100);
  RequestState request = host.request(1, 160, 10);
  request.max_offload_tokens = 40;
  EXPECT_EQ(host.plan(request, 80).size(), 2U);
  host.engine.asked.clear();
  for (std::int64_t tokens = 81; tokens <= 160; ++tokens) {
    EXPECT_TRUE(host.plan(request, tokens).empty());
  }
  EXPECT_TRUE(host.engine.asked.empty());
  host.finish_copies();
}

TEST(StorePlanner, AHandedOffBoundaryAtTheLimitOfARequestIsNotTriedAgain) {
  const Geometry geometry = coarse({.groups = {draft(full(32)), mamba(32)}});
  PlannerHarness host(geometry, 100);
  RequestState request = host.request(1, 320, 10);
  request.max_offload_tokens = 64;
  EXPECT_EQ(host.plan(request, 96, {host.hand_off(request, 1, 7, 64), host.hand_off(request, 1, 8, 96)}).size(), 3U);
  host.engine.asked.clear();
  EXPECT_TRUE(host.plan(request, 160).empty());
  EXPECT_TRUE(host.engine.asked.empty());
  host.finish_copies();
}

TEST(StorePlanner, StoresNothingOfAModelThatCannotResume) {
  const Geometry geometry = coarse({.groups = {full(16), mamba(16, MambaMode::kNone)}});
  PlannerHarness host(geometry, 100);
  RequestState request = host.request(1, 160, 10);
  EXPECT_TRUE(host.plan(request, 160).empty());
}

}  // namespace
}  // namespace hostkv::testing
