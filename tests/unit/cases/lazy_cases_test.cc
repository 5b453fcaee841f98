// Field cases E: stores of what the device is about to drop.

#include <gtest/gtest.h>

#include "tests/support/cases_rig.h"

namespace hostkv::testing {
namespace {

ConnectorOptions lazy() {
  ConnectorOptions options;
  options.store_mode = StoreMode::kLazy;
  return options;
}

// A text of one letter of its own.
std::string text_of(std::size_t number) {
  return {static_cast<char>(number + 1)};
}

// Blocks 1 to 4 are free and cached, 1 is the next victim. Saving them must not make them the last ones.
TEST(FieldCases, E2ALazyCopyLeavesTheOrderOfEvictionAsItWas) {
  CasesRig rig({.groups = {full(16)}}, lazy(), 64, 4);
  for (std::size_t i = 0; i < 4; ++i) {
    rig.cache_new(text_of(i), 0, 16);
  }
  const std::vector<BlockId> order(rig.device.free_queue().begin(), rig.device.free_queue().end());
  const StepMetadata stores = rig.step();
  const std::int64_t saved = blocks_of_group(stores, 0, Direction::kStore);
  ASSERT_EQ(saved, 2) << "half of the free blocks at a time";
  EXPECT_EQ(rig.device.num_free_blocks(), 2);
  rig.answer_all(stores);
  EXPECT_EQ(std::vector<BlockId>(rig.device.free_queue().begin(), rig.device.free_queue().end()), order);
  EXPECT_EQ(rig.device.take(), order[0]);
  EXPECT_EQ(rig.device.take(), order[1]);
  rig.add(1, text_of(0), 17);
  EXPECT_EQ(rig.hit(1, 17), 16);
}

// The second half is saved a step later: it goes back behind the first half, which still waits to be dropped.
TEST(FieldCases, E2ASecondLazyCopyDoesNotPassWhatWasSavedBefore) {
  CasesRig rig({.groups = {full(16)}}, lazy(), 64, 6);
  for (std::size_t i = 0; i < 6; ++i) {
    rig.cache_new(text_of(i), 0, 16);
  }
  const std::vector<BlockId> order(rig.device.free_queue().begin(), rig.device.free_queue().end());
  std::int64_t saved = 0;
  for (int i = 0; i < 4; ++i) {
    const StepMetadata stores = rig.step();
    saved += blocks_of_group(stores, 0, Direction::kStore);
    rig.answer_all(stores);
  }
  EXPECT_EQ(saved, 6);
  EXPECT_EQ(std::vector<BlockId>(rig.device.free_queue().begin(), rig.device.free_queue().end()), order);
  rig.expect_idle();
}

// Blocks are handed out between two walks: nobody is saved twice, nobody who was still cached is forgotten.
TEST(FieldCases, E3BlocksTakenBetweenTwoWalksDoNotHurtTheNext) {
  CasesRig rig({.groups = {full(16)}}, lazy(), 64, 6);
  for (std::size_t i = 0; i < 6; ++i) {
    rig.cache_new(text_of(i), 0, 16);
  }
  std::int64_t saved = 0;
  const StepMetadata first = rig.step();
  saved += blocks_of_group(first, 0, Direction::kStore);
  EXPECT_EQ(saved, 3);
  const BlockId taken = rig.device.take();  // of those that nobody copies
  rig.answer_all(first);
  for (int i = 0; i < 4; ++i) {
    const StepMetadata next = rig.step();
    saved += blocks_of_group(next, 0, Direction::kStore);
    rig.answer_all(next);
  }
  EXPECT_EQ(saved, 5) << "all but block " << taken.value() << ", which was handed out before its turn";
  EXPECT_EQ(rig.connector->metrics().stored_keys, 5);
  rig.device.leave(taken);
  EXPECT_TRUE(rig.step().jobs.empty()) << "the queue is longer, and walked again";
  rig.expect_idle();
}

// First in, first out through a pool of 64 blocks: nearly all that it drops is on the host by then.
TEST(FieldCases, E4LazyStoresSaveWhatTheDeviceDrops) {
  constexpr std::size_t kBlocks = 250;
  CasesRig rig({.groups = {full(16)}}, lazy(), 2048, 64);
  for (std::size_t i = 0; i < kBlocks; ++i) {
    const BlockId block = rig.device.take();
    rig.cache(text_of(i), 0, 16, block);
    rig.device.leave(block);
    rig.answer_all(rig.step());
  }
  const std::int64_t num_dropped = static_cast<std::int64_t>(kBlocks) - 64;
  const SchedulerMetrics metrics = rig.connector->metrics();
  EXPECT_GE(metrics.stored_blocks, num_dropped * 8 / 10);
  EXPECT_EQ(metrics.planned_store_blocks, metrics.stored_blocks) << "none was given up";
  std::int64_t num_found = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(num_dropped); ++i) {
    rig.add(i + 1, text_of(i), 17);
    num_found += rig.hit(i + 1, 17) / 16;
    rig.finish(i + 1, 0);
  }
  EXPECT_GE(num_found, num_dropped - 1) << "the first was next before anything was saved";
  for (int i = 0; i < 4; ++i) {
    rig.answer_all(rig.step());
  }
  rig.expect_idle();
}

// The engine's cache is full of what is right: there is nothing to warn of.
TEST(SchedulerShutdown, IsNoResetAndSaysNothing) {
  CasesRig rig({.groups = {full(16)}}, lazy(), 64, 6);
  rig.cache_new("a", 0, 16);
  ::testing::internal::CaptureStderr();
  rig.connector->shutdown();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace hostkv::testing
