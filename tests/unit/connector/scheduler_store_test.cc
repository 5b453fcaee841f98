#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/connector_harness.h"
#include "tests/support/geometry_builders.h"

namespace hostkv::testing {
namespace {

const StepJob& only_job(const StepMetadata& step) {
  EXPECT_EQ(step.jobs.size(), 1U);
  return step.jobs.at(0);
}

std::int64_t hit_of(SchedulerRig& rig, std::uint64_t id, const std::string& text, std::int64_t num_tokens) {
  rig.add(id, text, num_tokens);
  const std::int64_t hit = rig.match(id, num_tokens);
  rig.finish(id, 0);
  return hit;
}

// R9.
TEST(SchedulerStore, IsReadableOnlyAfterEveryRankHasAnswered) {
  SchedulerRig rig(resolved({.groups = {full(4)}}), 3);
  rig.report_all(8);
  const StepMetadata planned = rig.run(1, "abcd", 16);
  const StepJob& job = only_job(planned);
  for (const std::uint32_t rank : {2U, 0U}) {
    rig.answer(SchedulerRig::result(planned, job, rank));
    EXPECT_EQ(hit_of(rig, 10 + rank, "abcd", 17), 0);
    EXPECT_EQ(rig.engine.num_pins(), 4);
    rig.answer(SchedulerRig::result(planned, job, rank));  // a repeat is not another rank's answer
  }
  EXPECT_EQ(rig.connector->metrics().ignored_results, 2);
  EXPECT_EQ(hit_of(rig, 20, "abcd", 17), 0);
  rig.answer(SchedulerRig::result(planned, job, 1));
  EXPECT_EQ(hit_of(rig, 21, "abcd", 17), 16);
  rig.answer(SchedulerRig::result(planned, job, 1));
  EXPECT_EQ(rig.connector->metrics().ignored_results, 3);
  EXPECT_EQ(rig.connector->metrics().stored_blocks, 4);
  rig.expect_idle();
}

// Field case A8: the span of which one rank lost its shard is no hit, the others are.
TEST(SchedulerStore, OneBlockThatFailedOnOneRankUnpublishesItsBoundarySetOnly) {
  SchedulerRig rig(resolved({.groups = {full(16)}, .parallel = dcp_of(4)}), 4);
  ASSERT_EQ(rig.connector->geometry().scheduler_block_tokens(), 64);
  rig.report_all(8);
  const StepMetadata planned = rig.run(1, "abc", 192);
  const StepJob& job = only_job(planned);
  ASSERT_EQ(job.blocks.size(), 3U);
  const FailedBlock bad{job.blocks[1].group, job.blocks[1].block};
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    rig.answer(rank == 2 ? SchedulerRig::result(planned, job, rank, StatusCode::kDeviceError, {bad})
                         : SchedulerRig::result(planned, job, rank));
  }
  EXPECT_EQ(rig.connector->metrics().stored_blocks, 2);
  EXPECT_EQ(rig.connector->metrics().dropped_failed_blocks, 1);
  EXPECT_EQ(hit_of(rig, 2, "abc", 200), 64);
  rig.expect_idle();
  rig.store(3, "abc", 192);
  EXPECT_EQ(hit_of(rig, 4, "abc", 200), 192) << "stored anew, the missing one closes the chain";
}

// A long prompt was stored head first, step by step; its blocks are put in order as others are stored.
TEST(SchedulerStore, ALongPromptThatHasEndedLosesItsTailFirst) {
  SchedulerRig rig(resolved({.groups = {full(4)}}), 1);
  rig.report_all(900);
  const std::string text = "a" + std::string(599, 'x');
  rig.add(1, text, 2400);
  ASSERT_EQ(rig.match(1, 2400), 0);
  ASSERT_EQ(rig.allocate(1, 2400), Status());
  for (std::int64_t from = 0; from < 2400; from += 800) {
    rig.answer_all(rig.step(1, from, from + 800));
  }
  rig.finish(1, 2400);
  rig.store(2, "b" + std::string(199, 'x'), 800);
  rig.store(3, "c" + std::string(49, 'x'), 200);
  rig.store(5, "d" + std::string(249, 'x'), 1000);
  EXPECT_EQ(rig.connector->metrics().evicted_blocks, 200);
  EXPECT_EQ(hit_of(rig, 6, text, 2401), 1600);
  rig.expect_idle();
}

TEST(SchedulerStore, AFailedBlockTakesTheOtherGroupsOfItsBoundaryWithIt) {
  SchedulerRig rig(resolved({.groups = {full(4), window(4, 4)}}), 1);
  rig.report_all(16);
  const StepMetadata planned = rig.run(1, "ab", 8);
  const StepJob& job = only_job(planned);
  ASSERT_EQ(job.blocks.size(), 4U);
  const auto at = std::ranges::find_if(job.blocks, [](const StepBlock& block) { return block.group == GroupIndex{1}; });
  rig.answer(SchedulerRig::result(planned, job, 0, StatusCode::kDeviceError, {{at->group, at->block}}));
  EXPECT_EQ(rig.connector->metrics().dropped_failed_blocks, 2);
  EXPECT_EQ(rig.connector->metrics().stored_blocks, 2);
  rig.expect_idle();
}

TEST(SchedulerStore, AFailureThatNamesNoBlockOfTheJobFailsItWhole) {
  for (const std::vector<FailedBlock>& named :
       {std::vector<FailedBlock>{}, std::vector<FailedBlock>{{GroupIndex{0}, BlockId{4711}}},
        std::vector<FailedBlock>{{GroupIndex{7}, BlockId{1}}}}) {
    SchedulerRig rig(resolved({.groups = {full(4)}}), 1);
    rig.report_all(8);
    const StepMetadata planned = rig.run(1, "abcd", 16);
    rig.answer(SchedulerRig::result(planned, only_job(planned), 0, StatusCode::kDeviceError, named));
    EXPECT_EQ(rig.connector->metrics().stored_blocks, 0);
    EXPECT_EQ(rig.connector->metrics().dropped_failed_blocks, 4);
    EXPECT_EQ(hit_of(rig, 2, "abcd", 17), 0);
    rig.expect_idle();
  }
}

// Field case D5.
TEST(SchedulerStore, QueuedStoresAreWorkAndAreResetWithTheirPins) {
  SchedulerRig rig(resolved({.groups = {full(4)}}), 2);
  rig.report_all(16);
  for (std::uint64_t id = 1; id <= 3; ++id) {
    rig.add(id, std::string(1, static_cast<char>('a' + id)), 8);
    ASSERT_EQ(rig.allocate(id, 8), Status());
    rig.finish(id, 8);
    EXPECT_TRUE(rig.connector->has_pending_work());
  }
  EXPECT_EQ(rig.engine.num_pins(), 6);
  EXPECT_TRUE(rig.connector->reset()) << "nothing was sent";
  EXPECT_EQ(rig.connector->metrics().dropped_reset_blocks, 6);
  rig.expect_idle();
  EXPECT_TRUE(rig.step().jobs.empty());
}

TEST(SchedulerStore, TheSameBlockOfTwoRequestsIsStoredOnce) {
  SchedulerRig rig(resolved({.groups = {full(4)}}), 1);
  rig.report_all(16);
  const StepMetadata first = rig.run(1, "abcd", 16);
  EXPECT_TRUE(rig.run(2, "abcd", 16).jobs.empty()) << "in flight";
  rig.answer_all(first);
  EXPECT_TRUE(rig.run(3, "abcd", 16).jobs.empty()) << "stored";
  EXPECT_EQ(rig.connector->metrics().stored_keys, 4);
  EXPECT_EQ(rig.connector->metrics().used_bytes, 4 * 128);
  rig.expect_idle();
}

// R7: what is not computed, or has no hash, is not stored.
TEST(SchedulerStore, StoresWholeComputedBlocksOnly) {
  SchedulerRig rig(resolved({.groups = {full(4)}}), 1);
  rig.report_all(16);
  rig.add(1, "abcd", 16);
  ASSERT_EQ(rig.allocate(1, 24), Status());
  EXPECT_TRUE(rig.step(1, 0, 3).jobs.empty());
  EXPECT_EQ(only_job(rig.step(1, 3, 9)).blocks.size(), 2U);
  EXPECT_EQ(only_job(rig.step(1, 9, 24)).blocks.size(), 2U) << "16 tokens have hashes";
  EXPECT_TRUE(rig.step(1, 24, 25).jobs.empty());
}

// A window's blocks that a load leaves out hold nothing, although the engine's table may name blocks there.
TEST(SchedulerStore, NeverStoresABlockThatWasNeitherComputedNorLoaded) {
  SchedulerRig rig(resolved({.groups = {full(4), window(4, 4)}}), 1);
  rig.report_all(8);
  const StepMetadata first = rig.run(1, "abcd", 16);
  const StepJob& job = only_job(first);
  rig.answer(
      SchedulerRig::result(first, job, 0, StatusCode::kDeviceError, {{job.blocks[0].group, job.blocks[0].block}}));
  ASSERT_EQ(rig.connector->metrics().dropped_failed_blocks, 2);
  rig.add(2, "abcd", 17);
  ASSERT_EQ(rig.match(2, 17, 4), 12) << "the device has the first block";
  ASSERT_EQ(rig.allocate(2, 17, 12), Status());
  const std::vector<std::vector<BlockId>> tables = rig.engine.table(RequestId{2});
  const StepMetadata load = rig.step();
  ASSERT_EQ(only_job(load).blocks.size(), 4U) << "three blocks of full attention, the window's last one";
  rig.answer_all(load);
  // Another request takes all the room; what this one has is stored anew: boundary 4 is on the device, 8 and 12 lack
  // the window.
  rig.store(3, "efgh", 16);
  rig.finish(2, 16);
  std::vector<BlockId> stored;
  const StepMetadata last = rig.step();
  for (const StepBlock& block : only_job(last).blocks) {
    stored.push_back(block.block);
  }
  EXPECT_EQ(std::ranges::count(stored, tables[1][1]), 0);
  EXPECT_EQ(std::ranges::count(stored, tables[1][2]), 0);
  EXPECT_EQ(std::ranges::count(stored, tables[1][0]), 1);
  EXPECT_EQ(std::ranges::count(stored, tables[1][3]), 1);
}

// What a reset has declared void must not come back under a key that lookups find: the weights may have changed.
TEST(SchedulerStore, StoresNothingOfWhatWasComputedBeforeAReset) {
  SchedulerRig rig(resolved({.groups = {full(4)}}), 1);
  rig.report_all(64);
  rig.add(1, "abcdefgh", 32);
  ASSERT_EQ(rig.allocate(1, 32), Status());
  rig.answer_all(rig.step(1, 0, 16));
  ASSERT_EQ(rig.connector->metrics().stored_keys, 4);
  EXPECT_TRUE(rig.connector->reset());
  EXPECT_TRUE(rig.step(1, 16, 24).jobs.empty()) << "computed on top of what was there before";
  rig.finish(1, 24);
  EXPECT_TRUE(rig.step().jobs.empty());
  rig.store(2, "abcdefgh", 32);
  EXPECT_EQ(rig.connector->metrics().stored_keys, 8) << "admitted after the reset";
  rig.expect_idle();
}

class HandOffs : public ::testing::Test {
 protected:
  SchedulerRig rig_{resolved({.groups = {full(4), mamba(4)}}), 1};
  void SetUp() override {
    rig_.report_all(32);
    rig_.add(1, "abcd", 17);
    ASSERT_EQ(rig_.allocate(1, 17), Status());
  }
  StepMetadata step(std::int64_t from, std::int64_t to, const std::vector<BoundaryHandOff>& hand_offs) {
    const ScheduledRequest scheduled{RequestId{1}, from, to - from};
    return rig_.step(StepInput{.scheduled = {&scheduled, 1}, .hand_offs = hand_offs, .preempted = {}});
  }
};

TEST_F(HandOffs, AStateIsStoredFromTheBlockThatWasHandedOff) {
  const StepMetadata planned = step(0, 8, {{RequestId{1}, GroupIndex{1}, BlockId{777}, 8}});
  const StepJob& job = only_job(planned);
  EXPECT_EQ(std::ranges::count(job.blocks, BlockId{777}, &StepBlock::block), 1);
  EXPECT_EQ(job.blocks.size(), 3U) << "two blocks of full attention and one state";
  EXPECT_EQ(rig_.connector->metrics().ignored_hand_offs, 0);
  rig_.answer_all(planned);
  EXPECT_EQ(hit_of(rig_, 2, "abcd", 17), 8);
  EXPECT_TRUE(step(8, 16, {}).jobs.empty()) << "no state, nothing to resume from";
}

TEST_F(HandOffs, WhatCannotBeUsedIsIgnoredAndCounted) {
  rig_.add(2, "abcd", 17);  // never admitted
  const GroupIndex state{1};
  const std::vector<BoundaryHandOff> useless = {
      {RequestId{99}, state, BlockId{700}, 4},        {RequestId{2}, state, BlockId{700}, 4},
      {RequestId{1}, state, kNullBlock, 4},           {RequestId{1}, GroupIndex{0}, BlockId{700}, 4},
      {RequestId{1}, GroupIndex{2}, BlockId{700}, 4}, {RequestId{1}, state, BlockId{700}, 6},
      {RequestId{1}, state, BlockId{700}, 0},         {RequestId{1}, state, BlockId{700}, -4},
      {RequestId{1}, state, BlockId{700}, 20},
  };
  EXPECT_TRUE(step(0, 4, useless).jobs.empty());
  EXPECT_EQ(rig_.connector->metrics().ignored_hand_offs, static_cast<std::int64_t>(useless.size()));
  rig_.expect_consistent();
  const RequestId preempted{1};
  const BoundaryHandOff late{RequestId{1}, state, BlockId{700}, 4};
  rig_.step(StepInput{.scheduled = {}, .hand_offs = {&late, 1}, .preempted = {&preempted, 1}});
  EXPECT_EQ(rig_.connector->metrics().ignored_hand_offs, static_cast<std::int64_t>(useless.size()) + 1);
  rig_.finish(1, 4);
  rig_.finish(2, 0);
  rig_.expect_idle();
}

}  // namespace
}  // namespace hostkv::testing
