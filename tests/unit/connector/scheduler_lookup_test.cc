#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "offload/offload_key.h"
#include "tests/support/cases_rig.h"
#include "tests/support/connector_harness.h"
#include "tests/support/geometry_builders.h"
#include "tests/unit/connector/allocation_probe.h"

namespace hostkv::testing {
namespace {

class SchedulerLookup : public ::testing::Test {
 protected:
  SchedulerRig rig_{resolved({.groups = {full(4)}}), 1};
  void SetUp() override { rig_.report_all(8); }
};

// Field case F1.
TEST_F(SchedulerLookup, PromisedBlocksSurviveAStoreThatNeedsTheirRoom) {
  rig_.store(1, "abcdefgh", 32);
  ASSERT_EQ(rig_.connector->metrics().stored_keys, 8);
  rig_.add(2, "abcdefgh", 25);
  ASSERT_EQ(rig_.match(2, 25), 24);
  EXPECT_EQ(rig_.connector->metrics().pinned_slots, 6);
  const StepMetadata competing = rig_.run(3, "stuv", 16);
  ASSERT_EQ(competing.jobs.size(), 1U);
  EXPECT_EQ(competing.jobs[0].blocks.size(), 2U) << "two of the eight places are not promised";
  EXPECT_GE(rig_.connector->metrics().dropped_full_blocks, 2);
  rig_.answer_all(competing);
  ASSERT_EQ(rig_.allocate(2, 25, 24), Status());
  const StepMetadata loads = rig_.step();
  ASSERT_EQ(loads.jobs.size(), 1U);
  EXPECT_EQ(loads.jobs[0].direction, Direction::kLoad);
  EXPECT_EQ(loads.jobs[0].blocks.size(), 6U);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(loads.jobs[0].blocks[i].block, rig_.engine.table(RequestId{2})[0][i]);
  }
  rig_.answer_all(loads);
  EXPECT_EQ(rig_.connector->take_load_outcomes().size(), 1U);
  rig_.finish(2, 24);
  rig_.expect_idle();
}

TEST_F(SchedulerLookup, ACancelledPromisePinsNothing) {
  rig_.store(1, "abcdefgh", 32);
  rig_.add(2, "abcdefgh", 25);
  ASSERT_EQ(rig_.match(2, 25), 24);
  EXPECT_EQ(rig_.connector->cancel_match(RequestId{2}), Status());
  EXPECT_EQ(rig_.connector->cancel_match(RequestId{2}), Status()) << "a no-op";
  rig_.expect_idle();
  EXPECT_EQ(rig_.allocate(2, 25, 24).code(), StatusCode::kInvalidArgument) << "24 tokens are promised no longer";
}

// A long prompt of which nothing is stored is told by its first hashes; what hangs on more is neither counted nor
// promised.
TEST_F(SchedulerLookup, AnswersByTheFirstHashesOrAsksForMore) {
  rig_.store(1, "abcdefgh", 32);
  const SchedulerMetrics before = rig_.connector->metrics();
  ASSERT_EQ(rig_.connector->add_request({.id = RequestId{2}, .num_prompt_tokens = 33}), Status());
  const std::vector<std::byte> hashes = hashes_of("abcdefgh", 8);
  const auto first = std::span(hashes).first(4 * 32);
  ASSERT_EQ(rig_.connector->append_block_hashes(RequestId{2}, first, 32), Status());
  for (int asked = 0; asked < 2; ++asked) {
    const Result<MatchResult> match = rig_.connector->match_prefix(RequestId{2}, 33, 0, true);
    ASSERT_TRUE(match.has_value());
    EXPECT_EQ(match->kind, MatchResult::Kind::kMoreHashes);
    EXPECT_EQ(match->num_external_tokens, 0);
  }
  EXPECT_EQ(rig_.connector->metrics().lookups, before.lookups);
  EXPECT_EQ(rig_.connector->metrics().queried_tokens, before.queried_tokens);
  EXPECT_EQ(rig_.connector->metrics().pinned_slots, 0);
  ASSERT_EQ(rig_.connector->append_block_hashes(RequestId{2}, std::span(hashes).subspan(4 * 32), 32), Status());
  EXPECT_EQ(rig_.match(2, 33), 32);
  EXPECT_EQ(rig_.connector->metrics().lookups, before.lookups + 1);

  ASSERT_EQ(rig_.connector->add_request({.id = RequestId{3}, .num_prompt_tokens = 4001}), Status());
  ASSERT_EQ(rig_.connector->append_block_hashes(RequestId{3}, hashes_of("axyz", 4), 32), Status());
  const Result<MatchResult> hit = rig_.connector->match_prefix(RequestId{3}, 4001, 0, true);
  ASSERT_TRUE(hit.has_value());
  EXPECT_EQ(hit->kind, MatchResult::Kind::kHit) << "the second block is missing: more hashes change nothing";
  EXPECT_EQ(hit->num_external_tokens, 4);
}

TEST(SchedulerLookupOfNothing, AHitThatNeedsNoBlockIsLoadedWithoutAJob) {
  SchedulerRig rig(resolved({.groups = {chunked(4, 8)}}), 2);
  rig.report_all(8);
  rig.add(1, "abcd", 17);
  ASSERT_EQ(rig.match(1, 17), 16) << "no token before a chunk's begin is read";
  ASSERT_EQ(rig.allocate(1, 17, 16), Status());
  EXPECT_TRUE(rig.step().jobs.empty());
  const std::vector<LoadOutcome> outcomes = rig.connector->take_load_outcomes();
  ASSERT_EQ(outcomes.size(), 1U);
  EXPECT_EQ(outcomes[0].request, RequestId{1});
  EXPECT_EQ(outcomes[0].status, StatusCode::kOk);
  rig.finish(1, 16);
  rig.expect_idle();
}

TEST_F(SchedulerLookup, TableEntriesBelowTheLocalTokensAreNotRead) {
  rig_.store(1, "abcdefgh", 32);
  rig_.add(2, "abcdefgh", 33);
  ASSERT_EQ(rig_.match(2, 33, 16), 16);
  std::vector<BlockId>& table = rig_.engine.give(RequestId{2}, 1, 9)[0];
  const std::vector<BlockId> whole = table;
  std::fill_n(table.begin(), 4, BlockId{0xDEADBEEF});
  ASSERT_EQ(rig_.connector->on_blocks_allocated(RequestId{2}, rig_.engine.tables(RequestId{2}), 16), Status());
  table = whole;
  const StepMetadata loads = rig_.step();
  ASSERT_EQ(loads.jobs.size(), 1U);
  ASSERT_EQ(loads.jobs[0].blocks.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(loads.jobs[0].blocks[i].block, whole[4 + i]);
  }
  rig_.answer_all(loads);
  rig_.connector->take_load_outcomes();
  rig_.finish(2, 32);
  rig_.expect_idle();
}

TEST_F(SchedulerLookup, WithoutALoadNoTableIsRead) {
  rig_.add(1, "abcd", 16);
  const std::vector<GroupTable> empty(1);
  ASSERT_EQ(rig_.connector->on_blocks_allocated(RequestId{1}, empty, 0), Status());
  rig_.engine.give(RequestId{1}, 1, 4);
  const StepMetadata stores = rig_.step(1, 0, 16);
  ASSERT_EQ(stores.jobs.size(), 1U);
  EXPECT_EQ(stores.jobs[0].blocks.size(), 4U);
  rig_.answer_all(stores);
  rig_.finish(1, 16);
  rig_.expect_idle();
}

// Field case D34: loads that fill the device keep what runs from going on.
TEST_F(SchedulerLookup, AHitWaitsWhileLoadsInFlightHoldMoreThanTheirShareOfTheDevice) {
  rig_.engine.num_device_blocks = 11;
  rig_.store(1, "abcdefgh", 32);
  rig_.add(2, "abcdefgh", 25);
  rig_.add(3, "abcdefgh", 17);
  rig_.add(4, "zz", 8);
  ASSERT_EQ(rig_.match(2, 25), 24);
  ASSERT_EQ(rig_.allocate(2, 25, 24), Status());
  for (int i = 0; i < 2; ++i) {
    const auto waits = rig_.connector->match_prefix(RequestId{3}, 17, 0);
    ASSERT_TRUE(waits.has_value());
    EXPECT_EQ(waits->kind, MatchResult::Kind::kRetry) << "six of eleven blocks";
    EXPECT_EQ(waits->num_external_tokens, 0);
  }
  EXPECT_EQ(rig_.connector->metrics().pinned_slots, 6) << "nothing is promised";
  EXPECT_EQ(rig_.connector->metrics().delayed_lookups, 2);
  EXPECT_EQ(rig_.connector->metrics().queried_tokens, 25);
  const auto miss = rig_.connector->match_prefix(RequestId{4}, 8, 0);
  EXPECT_EQ(miss->kind, MatchResult::Kind::kMiss) << "what loads nothing need not wait";
  EXPECT_EQ(rig_.allocate(3, 17, 16).code(), StatusCode::kInvalidArgument);
  rig_.answer_all(rig_.step());
  EXPECT_EQ(rig_.match(3, 17), 16);
  rig_.finish(2, 24);
  rig_.finish(3, 0);
  rig_.finish(4, 0);
  rig_.connector->take_load_outcomes();
  rig_.answer_all(rig_.step());
  rig_.expect_idle();
}

TEST_F(SchedulerLookup, NobodyWaitsForLoadsThatHoldTheirShareExactly) {
  rig_.engine.num_device_blocks = 12;
  rig_.store(1, "abcdefgh", 32);
  rig_.add(2, "abcdefgh", 25);
  rig_.add(3, "abcdefgh", 17);
  ASSERT_EQ(rig_.match(2, 25), 24);
  ASSERT_EQ(rig_.allocate(2, 25, 24), Status());
  EXPECT_EQ(rig_.match(3, 17), 16) << "six of twelve blocks";
  rig_.finish(3, 0);
  rig_.finish(2, 0);
  rig_.answer_all(rig_.step());
  rig_.connector->take_load_outcomes();
  rig_.expect_idle();
}

// Field case H10.
TEST_F(SchedulerLookup, AnAbortBetweenLookupAndAllocationPinsNothing) {
  rig_.store(1, "abcd", 16);
  rig_.add(2, "abcd", 17);
  ASSERT_EQ(rig_.match(2, 17), 16);
  EXPECT_EQ(rig_.connector->metrics().pinned_slots, 4);
  rig_.finish(2, 0);
  rig_.expect_idle();
}

// Field case H11.
TEST_F(SchedulerLookup, APromiseThatIsNotUsedIsReleasedByTheAllocation) {
  rig_.store(1, "abcd", 16);
  rig_.add(2, "abcd", 17);
  EXPECT_EQ(rig_.match(2, 17, 16), 0) << "the device has as much";
  EXPECT_EQ(rig_.connector->metrics().pinned_slots, 0);
  ASSERT_EQ(rig_.match(2, 17, 8), 8);
  EXPECT_EQ(rig_.connector->metrics().pinned_slots, 2);
  ASSERT_EQ(rig_.allocate(2, 17, 0), Status());
  EXPECT_EQ(rig_.connector->metrics().pinned_slots, 0);
  EXPECT_TRUE(rig_.step().jobs.empty());
  rig_.finish(2, 0);
  rig_.expect_idle();
}

TEST_F(SchedulerLookup, ANewLookupReplacesTheOldPromise) {
  rig_.store(1, "abcd", 16);
  rig_.add(2, "abcd", 17);
  ASSERT_EQ(rig_.match(2, 17), 16);
  ASSERT_EQ(rig_.match(2, 17, 8), 8);
  EXPECT_EQ(rig_.connector->metrics().pinned_slots, 2);
  ASSERT_EQ(rig_.match(2, 9), 8);
  EXPECT_EQ(rig_.connector->metrics().pinned_slots, 2);
  rig_.finish(2, 0);
  rig_.expect_idle();
}

// R3.
TEST_F(SchedulerLookup, LeavesOneTokenToCompute) {
  rig_.store(1, "abcd", 16);
  rig_.add(2, "abcd", 16);
  EXPECT_EQ(rig_.match(2, 16), 12);
  EXPECT_EQ(rig_.match(2, 17), 16);
  EXPECT_EQ(rig_.match(2, 4), 0);
  EXPECT_EQ(rig_.match(2, 1), 0);
}

// Field case P1: other hashes, another namespace.
TEST_F(SchedulerLookup, OtherHashesNeverHit) {
  rig_.store(1, "abcd", 16);
  rig_.add(2, "xbcd", 17);
  EXPECT_EQ(rig_.match(2, 17), 0);
  rig_.add(3, "abxd", 17);
  EXPECT_EQ(rig_.match(3, 17), 8);
  // The same bytes as hashes of 16 bytes are other hashes.
  ASSERT_TRUE(rig_.connector->add_request({.id = RequestId{4}, .num_prompt_tokens = 17}).ok());
  ASSERT_TRUE(rig_.connector->append_block_hashes(RequestId{4}, hashes_of("abcd", 4), 16).ok());
  EXPECT_EQ(rig_.match(4, 17), 0);
  // No hashes at all (prompt embeddings): nothing, and not less than nothing.
  ASSERT_TRUE(rig_.connector->add_request({.id = RequestId{5}, .num_prompt_tokens = 17}).ok());
  EXPECT_EQ(rig_.match(5, 17), 0);
}

TEST_F(SchedulerLookup, KeysOfTwoNamespacesAndGroupsNeverMeet) {
  const std::vector<std::byte> hash = hashes_of("a", 1);
  const auto key = [&](const std::string& name, std::uint32_t group) {
    return make_offload_key(
        hash, GroupIndex{group},
        make_namespace_fingerprint(rig_.connector->geometry().fingerprint(), std::as_bytes(std::span(name))));
  };
  EXPECT_TRUE(key("weights-1", 0) == key("weights-1", 0));
  EXPECT_FALSE(key("weights-1", 0) == key("weights-2", 0));
  EXPECT_FALSE(key("weights-1", 0) == key("", 0));
  EXPECT_FALSE(key("weights-1", 0) == key("weights-1", 1));
}

TEST_F(SchedulerLookup, SkippingTheCacheReadsNothingAndStoresAll) {
  rig_.store(1, "abcd", 16);
  ASSERT_TRUE(
      rig_.connector->add_request({.id = RequestId{2}, .num_prompt_tokens = 24, .skip_reading_cache = true}).ok());
  ASSERT_TRUE(rig_.connector->append_block_hashes(RequestId{2}, hashes_of("abcdef", 6), 32).ok());
  const SchedulerMetrics before = rig_.connector->metrics();
  EXPECT_EQ(rig_.match(2, 24), 0);
  EXPECT_EQ(rig_.connector->metrics().lookups, before.lookups);
  EXPECT_EQ(rig_.connector->metrics().queried_tokens, before.queried_tokens);
  ASSERT_EQ(rig_.allocate(2, 24), Status());
  const StepMetadata planned = rig_.step(2, 0, 24);
  ASSERT_EQ(planned.jobs.size(), 1U);
  EXPECT_EQ(planned.jobs[0].blocks.size(), 2U) << "four are there already";
  rig_.answer_all(planned);
  rig_.finish(2, 24);
  rig_.expect_idle();
}

// Field case K1.
TEST(SchedulerCounters, AsksTheHostOnlyForWhatTheDeviceLacks) {
  SchedulerRig rig(resolved({.groups = {full(4)}}), 1);
  rig.report_all(512);
  rig.store(1, "abcdefghij", 800);
  rig.add(2, "abcdefghij", 1000);
  ASSERT_EQ(rig.match(2, 1000, 600), 200);
  ASSERT_EQ(rig.match(2, 1000, 600), 200) << "asked again before it was admitted";
  EXPECT_EQ(rig.connector->metrics().queried_tokens, 400);
  EXPECT_EQ(rig.connector->metrics().lookups, 2);
  EXPECT_EQ(rig.connector->metrics().hit_tokens, 0) << "not planned yet";
  ASSERT_EQ(rig.allocate(2, 1000, 200), Status());
  EXPECT_EQ(rig.connector->metrics().hit_tokens, 200);
  EXPECT_EQ(rig.connector->metrics().planned_load_blocks, 50);
}

// Field cases K3 and H15: a preempted request looks up its prompt and what it generated.
TEST(SchedulerCounters, CountOncePerAdmissionAndAPreemptedRequestHitsItsOwnBlocks) {
  SchedulerRig rig(resolved({.groups = {full(16)}}), 1);
  rig.report_all(64);
  rig.add(1, "abcdef", 104);
  EXPECT_EQ(rig.match(1, 64), 0);
  ASSERT_EQ(rig.allocate(1, 104), Status());
  const StepMetadata prompt = rig.step(1, 0, 64);
  const StepMetadata generated = rig.step(1, 64, 103);
  rig.answer_all(prompt);
  rig.answer_all(generated);
  const RequestId id{1};
  EXPECT_TRUE(rig.step(StepInput{.scheduled = {}, .hand_offs = {}, .preempted = {&id, 1}}).jobs.empty());
  EXPECT_EQ(rig.match(1, 104), 96);
  EXPECT_EQ(rig.connector->metrics().queried_tokens, 64 + 104);
  EXPECT_EQ(rig.match(1, 104, 32), 64);
  EXPECT_EQ(rig.connector->metrics().queried_tokens, 64 + 104) << "the same admission";
  ASSERT_EQ(rig.allocate(1, 104, 64), Status());
  EXPECT_EQ(rig.connector->metrics().hit_tokens, 64);
}

// Field case H1.
TEST_F(SchedulerLookup, APreemptedRequestLooksUpWhileItsOwnStoreIsInFlight) {
  rig_.add(1, "abcd", 17);
  ASSERT_EQ(rig_.allocate(1, 17), Status());
  const StepMetadata first = rig_.step(1, 0, 8);
  rig_.answer_all(first);
  const StepMetadata second = rig_.step(1, 8, 16);
  ASSERT_EQ(second.jobs.size(), 1U);
  const RequestId id{1};
  rig_.step(StepInput{.scheduled = {}, .hand_offs = {}, .preempted = {&id, 1}});
  EXPECT_EQ(rig_.match(1, 17), 8) << "what is still being stored cannot be read";
  EXPECT_EQ(rig_.engine.num_pins(), 2);
  ASSERT_EQ(rig_.allocate(1, 17, 8), Status());
  const StepMetadata load = rig_.step();
  rig_.answer_all(second);
  rig_.answer_all(load);
  ASSERT_EQ(rig_.connector->take_load_outcomes().size(), 1U);
  EXPECT_TRUE(rig_.step(1, 8, 16).jobs.empty()) << "all of it is stored by now";
  rig_.finish(1, 16);
  rig_.expect_idle();
}

// A preemption between two steps, of which the next step tells, and an admission before that step.
TEST_F(SchedulerLookup, ARequestAdmittedAgainBeforeTheStepThatTellsOfItsPreemptionKeepsItsNewBlocks) {
  rig_.add(1, "abcd", 17);
  ASSERT_EQ(rig_.allocate(1, 17), Status());
  rig_.answer_all(rig_.step(1, 0, 8));
  const RequestId id{1};
  ASSERT_EQ(rig_.match(1, 17), 8);
  ASSERT_EQ(rig_.allocate(1, 17, 8), Status());
  const StepMetadata load = rig_.step(StepInput{.scheduled = {}, .hand_offs = {}, .preempted = {&id, 1}});
  ASSERT_EQ(load.jobs.size(), 1U);
  rig_.answer_all(load);
  ASSERT_EQ(rig_.connector->take_load_outcomes().size(), 1U);
  EXPECT_EQ(rig_.step(1, 8, 12).jobs.size(), 1U);
  // And without a load: admitted again and running in the step that tells.
  EXPECT_EQ(rig_.match(1, 17, 8), 0) << "the third block is still being stored";
  ASSERT_EQ(rig_.allocate(1, 17, 0), Status());
  const ScheduledRequest scheduled{id, 8, 8};
  EXPECT_EQ(rig_.step(StepInput{.scheduled = {&scheduled, 1}, .hand_offs = {}, .preempted = {&id, 1}}).jobs.size(), 1U);
}

// An engine that looks up and gives up without a step keeps no memory of it.
TEST(SchedulerLookupOfADevice, PromisesThatAreGivenUpLeaveNothingBehind) {
  CasesRig rig({.groups = {full(16)}});
  rig.cache_new("a", 0, 16);
  rig.add(1, "a", 17);
  ASSERT_EQ(rig.hit(1, 17), 16);
  const AllocationProbe probe;
  for (int i = 0; i < 20'000; ++i) {
    ASSERT_EQ(rig.hit(1, 17), 16);
    ASSERT_EQ(rig.device.num_pins(), 1);
  }
  EXPECT_LT(probe.largest_bytes(), 10'000U);
}

TEST(SchedulerLookupOfADevice, EachOfManyPromisesIsGivenBackInAnyOrder) {
  CasesRig rig({.groups = {full(16)}});
  rig.cache_new("a", 0, 16);
  for (std::uint64_t id = 1; id <= 4; ++id) {
    rig.add(id, "a", 17);
    ASSERT_EQ(rig.hit(id, 17), 16);
  }
  EXPECT_EQ(rig.device.num_pins(), 4);
  rig.cancel(2);
  rig.finish(1, 0);
  ASSERT_EQ(rig.admit(4, 17, 16), Status());
  EXPECT_EQ(rig.device.num_pins(), 3) << "the third promise, a source and its target";
  const StepMetadata step = rig.step();
  EXPECT_EQ(rig.device.num_pins(), 2);
  rig.answer_all(step);
  EXPECT_EQ(rig.device.num_pins(), 0);
}

}  // namespace
}  // namespace hostkv::testing
