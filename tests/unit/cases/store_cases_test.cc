// Field cases D: what is stored, and when it can be found.

#include <gtest/gtest.h>

#include "tests/support/cases_rig.h"

namespace hostkv::testing {
namespace {

TEST(FieldCases, D3ARequestThatEndsInTheStepOfItsLastBlockStoresIt) {
  CasesRig rig({.groups = {full(16)}});
  rig.add(1, "a", 32);
  ASSERT_EQ(rig.admit(1, 32), Status());
  rig.finish(1, 32);
  const StepMetadata stores = rig.step();
  EXPECT_EQ(blocks_of_group(stores, 0, Direction::kStore), 2);
  EXPECT_EQ(rig.connector->metrics().pinned_device_blocks, 2);
  rig.answer_all(stores);
  EXPECT_EQ(rig.connector->metrics().stored_blocks, 2);
  rig.expect_idle();
}

TEST(FieldCases, D4EveryComputedBlockOfAChunkedPromptIsStoredAndFound) {
  CasesRig rig({.groups = {full(16)}});
  rig.add(1, "a", 1000);
  ASSERT_EQ(rig.admit(1, 1003), Status());
  for (std::int64_t begin = 0; begin < 1000; begin += 128) {
    rig.answer_all(rig.step(1, begin, std::min<std::int64_t>(begin + 128, 1000)));
  }
  for (std::int64_t token = 1000; token < 1003; ++token) {
    rig.answer_all(rig.step(1, token, token + 1));
  }
  rig.finish(1, 1003);
  rig.answer_all(rig.step());
  const SchedulerMetrics metrics = rig.connector->metrics();
  EXPECT_EQ(metrics.stored_blocks, 62);
  EXPECT_EQ(metrics.stored_blocks + metrics.present_blocks + metrics.dropped_full_blocks, 62);
  rig.add(2, "a", 1000);
  EXPECT_EQ(rig.hit(2, 1000), 992);
}

// A preempted request gives its blocks up; those that are being copied are not handed out before the copies end.
TEST(FieldCases, D9ASourceIsNotHandedOutWhileItIsCopied) {
  CasesRig rig({.groups = {full(16)}}, {}, 64, 4);
  rig.add(1, "a", 32);
  ASSERT_EQ(rig.admit(1, 32), Status());
  const std::vector<BlockId> sources = rig.tables[1][0];
  const StepMetadata stores = rig.step(1, 0, 32);
  ASSERT_EQ(blocks_of_group(stores, 0, Direction::kStore), 2);
  const RequestId preempted{1};
  rig.step({.scheduled = {}, .hand_offs = {}, .preempted = {&preempted, 1}});
  for (const BlockId block : sources) {
    rig.device.leave(block);
  }
  EXPECT_EQ(rig.device.num_free_blocks(), 2);
  rig.add(2, "b", 32);
  ASSERT_EQ(rig.admit(2, 32), Status()) << "no external token";
  for (const BlockId block : rig.tables[2][0]) {
    EXPECT_EQ(std::ranges::count(sources, block), 0) << block.value();
  }
  rig.answer_all(stores);
  EXPECT_EQ(rig.device.num_free_blocks(), 2);
  rig.add(3, "a", 33);
  EXPECT_EQ(rig.hit(3, 33), 32);
}

// Speculative slots make the table longer than what is confirmed.
TEST(FieldCases, D11OnlyConfirmedFullBlocksAreStored) {
  CasesRig rig({.groups = {full(16)}});
  rig.add(1, "a", 31);
  ASSERT_EQ(rig.admit(1, 31 + 3), Status());
  ASSERT_EQ(rig.tables[1][0].size(), 3U);
  EXPECT_EQ(blocks_of_group(rig.step(1, 0, 31), 0, Direction::kStore), 1);
}

TEST(FieldCases, D13ChunksAreStoredWhileThoseBeforeAreInFlight) {
  CasesRig rig({.groups = {full(16)}});
  rig.add(1, "a", 5 * 64);
  ASSERT_EQ(rig.admit(1, 5 * 64), Status());
  std::vector<StepMetadata> steps;
  for (std::int64_t chunk = 0; chunk < 5; ++chunk) {
    steps.push_back(rig.step(1, chunk * 64, chunk * 64 + 64));
    EXPECT_EQ(blocks_of_group(steps.back(), 0, Direction::kStore), 4) << "chunk " << chunk;
  }
  EXPECT_EQ(rig.connector->metrics().jobs_in_flight, 5);
  rig.finish(1, 5 * 64);
  for (const StepMetadata& step : steps) {
    rig.answer_all(step);
  }
  rig.expect_idle();
  rig.add(2, "a", 5 * 64 + 1);
  EXPECT_EQ(rig.hit(2, 5 * 64 + 1), 5 * 64);
}

// Four slots; A runs, B takes two of them, A goes on: what is found has no hole, and A's holes are filled at its end.
TEST(FieldCases, D12AHitIsUnbrokenAndEvictedBlocksComeBack) {
  CasesRig rig({.groups = {full(16)}}, {}, 4);
  rig.add(1, "a", 96);
  ASSERT_EQ(rig.admit(1, 96), Status());
  rig.answer_all(rig.step(1, 0, 64));
  rig.store(2, "b", 32);
  rig.add(3, "a", 97);
  EXPECT_EQ(rig.hit(3, 97), 32);
  rig.cancel(3);
  rig.answer_all(rig.step(1, 64, 96));
  const std::int64_t running = rig.hit(3, 97);
  rig.cancel(3);
  EXPECT_LE(running, 64) << "four slots hold no more";
  rig.finish(1, 96);
  rig.answer_all(rig.step());
  EXPECT_GE(rig.hit(3, 97), running);
  EXPECT_GT(rig.hit(3, 97), 0);
  rig.cancel(3);
  rig.expect_idle();
}

// Two requests compute the same prefix at once: one slot a block, whoever ends first.
TEST(FieldCases, D5TheSameBlockIsStoredOnceAndAQueueIsWork) {
  CasesRig rig({.groups = {full(16)}});
  for (std::uint64_t id = 1; id <= 3; ++id) {
    rig.add(id, "a", 16);
    ASSERT_EQ(rig.admit(id, 16), Status());
    rig.finish(id, 16);
  }
  EXPECT_TRUE(rig.connector->has_pending_work());
  EXPECT_EQ(rig.connector->metrics().planned_store_blocks, 1);
  EXPECT_EQ(rig.connector->metrics().present_blocks, 2);
  rig.answer_all(rig.step());
  EXPECT_EQ(rig.connector->metrics().stored_keys, 1);
  rig.expect_idle();
}

}  // namespace
}  // namespace hostkv::testing
