// Field cases B: recurrent states, their boundaries and hand-offs.

#include <gtest/gtest.h>

#include "tests/property/connector/host_shelf.h"
#include "tests/support/cases_rig.h"

namespace hostkv::testing {
namespace {

TEST(FieldCases, B1AStateThatContainsTheLastTokenIsNoHitForTheSamePrompt) {
  CasesRig rig({.groups = {mamba(2112), full(2112)}});
  rig.store(1, "a", 10'562, 0, {2112, 4224, 6336, 8448, 10'560});
  rig.add(2, "a", 10'560);
  EXPECT_EQ(rig.hit(2, 10'560), 8448);
  rig.add(3, "a", 10'562);
  EXPECT_EQ(rig.hit(3, 10'562), 10'560);
}

TEST(FieldCases, B3ARecurrentModelLoadsFromTheHostLikeAnyOther) {
  CasesRig rig({.groups = {full(16), mamba(64)}, .hash_block_tokens = 16}, coarse_options());
  rig.store(1, "a", 300, 1, {64, 128, 192, 256});
  rig.add(2, "a", 300);
  ASSERT_EQ(rig.hit(2, 300), 256);
  ASSERT_EQ(rig.admit(2, 300, 256), Status());
  const StepMetadata load = rig.step();
  EXPECT_EQ(blocks_of_group(load, 0, Direction::kLoad), 16);
  EXPECT_EQ(blocks_of_group(load, 1, Direction::kLoad), 1);
  const ScheduledRequest early{RequestId{2}, 256, 44};
  EXPECT_FALSE(rig.connector->build_step_metadata({.scheduled = {&early, 1}, .hand_offs = {}, .preempted = {}}))
      << "it waits for its load";
  rig.answer_all(load);
  ASSERT_EQ(rig.connector->take_load_outcomes().size(), 1U);
  rig.step(2, 256, 300);
  rig.finish(2, 300);
}

// Neither the largest of the groups' own hits, 1024, nor the smallest, 512.
TEST(FieldCases, B4TheBoundaryIsOneThatAllGroupsHoldOnTheDeviceToo) {
  CasesRig rig({.groups = {full(256), mamba(256)}});
  rig.cache_new("a", 0, 256);
  rig.cache_new("a", 0, 512);
  rig.cache_new("a", 1, 256);
  rig.cache_new("a", 1, 1024);
  rig.add(1, "a", 1100);
  EXPECT_EQ(rig.hit(1, 1100), 256);
  EXPECT_EQ(rig.hit(1, 1100, 256), 0) << "an engine that has found it itself has all there is";
}

TEST(FieldCases, B6AHandOffIsTheStateWhateverTheTableSays) {
  CasesRig rig({.groups = {full(64), mamba(64)}});
  rig.add(1, "a", 128);
  ASSERT_EQ(rig.admit(1, 128), Status());
  rig.tables[1][1] = {kNullBlock, rig.device.take()};
  ASSERT_EQ(rig.tell(1, 0), Status());
  const BoundaryHandOff handed = rig.hand_off(1, "a", 1, 128);
  const StepMetadata stores = rig.step(1, 0, 128, {handed});
  ASSERT_EQ(stores.jobs.size(), 1U);
  for (const StepBlock& block : stores.jobs[0].blocks) {
    EXPECT_TRUE(block.group == GroupIndex{0} || block.block == handed.block);
  }
  EXPECT_EQ(blocks_of_group(stores, 1, Direction::kStore), 1);
}

// A result belongs to its job, not to who has the number now: A's copies end after B took its id over.
TEST(FieldCases, B7ALateResultBelongsToTheRequestThatOrderedIt) {
  CasesRig rig({.groups = {full(16), mamba(16)}, .hash_block_tokens = 16});
  rig.add(1, "a", 32);
  ASSERT_EQ(rig.admit(1, 32), Status());
  const StepMetadata stores = rig.step(1, 0, 32, {rig.hand_off(1, "a", 1, 32)});
  rig.finish(1, 32);
  rig.add(1, "b", 32);
  ASSERT_EQ(rig.admit(1, 32), Status());
  rig.answer_all(stores);
  rig.add(2, "a", 33);
  EXPECT_EQ(rig.hit(2, 33), 32);
  rig.add(3, "b", 33);
  EXPECT_EQ(rig.hit(3, 33), 0) << "B has handed off nothing yet";
}

// A request that ends with its first token: the state of its tail comes with its end.
TEST(FieldCases, B8ARequestOfOneTokenStoresItsTail) {
  CasesRig rig({.groups = {full(64), mamba(64)}, .hash_block_tokens = 16});
  rig.add(1, "a", 100);
  ASSERT_EQ(rig.admit(1, 100), Status());
  rig.answer_all(rig.step(1, 0, 100, {rig.hand_off(1, "a", 1, 64)}));
  rig.finish(1, 100, {rig.hand_off(1, "a", 1, 96)});
  EXPECT_EQ(rig.connector->metrics().pinned_device_blocks, 2) << "until the copies have ended";
  const StepMetadata tail = rig.step();
  EXPECT_EQ(blocks_of_group(tail, 0, Direction::kStore), 1);
  EXPECT_EQ(blocks_of_group(tail, 1, Direction::kStore), 1);
  rig.answer_all(tail);
  rig.add(2, "aaaaaab", 130);
  EXPECT_EQ(rig.hit(2, 130), 96);
  rig.cancel(2);
  rig.expect_idle();
}

// The state that is stored is the one that a lookup asks for once it has dropped its unit.
TEST(FieldCases, B10TheStateAtTheBoundaryBehindTheDropIsStoredAndFound) {
  struct Case {
    std::int64_t block, tokens, usable;
  };
  for (const auto& [block, tokens, usable] : {Case{1600, 11'910, 9600}, Case{2304, 8901, 4608}}) {
    CasesRig rig({.groups = {draft(full(block)), mamba(block)}});
    rig.store(1, "a", tokens, 1, {usable});
    rig.add(2, "a", tokens);
    EXPECT_EQ(rig.hit(2, tokens), usable);
    rig.cancel(2);
    rig.expect_idle();
  }
}

// Blocks of 256 tokens with hashes of 64: Y shares 384 tokens of the 448 of X.
TEST(FieldCases, B20APartlyFilledBlockNeverServesWhoDiffersInsideIt) {
  const std::string x = "aaaaaaa";
  const std::string y = "aaaaaab";
  CasesRig rig({.groups = {full(256), mamba(256)}, .hash_block_tokens = 64});
  rig.store(1, x, 448, 1, {256, 448});
  rig.add(2, y, 512);
  EXPECT_EQ(rig.hit(2, 512), 256);
  rig.add(3, x, 512);
  EXPECT_EQ(rig.hit(3, 512), 448);
  CasesRig denser({.groups = {full(256), mamba(256)}, .hash_block_tokens = 64});
  denser.store(1, x, 448, 1, {256, 384, 448});
  denser.add(2, y, 512);
  ASSERT_EQ(denser.hit(2, 512), 384);
  ASSERT_EQ(denser.admit(2, 512, 384), Status());
  const StepMetadata load = denser.step();
  EXPECT_EQ(blocks_of_group(load, 0, Direction::kLoad), 2);
  denser.answer_all(load);
  // What Y computes behind 384 goes into the same block and to a key of its own.
  denser.answer_all(denser.step(2, 384, 448, {denser.hand_off(2, y, 1, 448)}));
  denser.finish(2, 448);
  denser.add(4, y, 512);
  EXPECT_EQ(denser.hit(4, 512), 448);
  denser.add(5, x, 512);
  EXPECT_EQ(denser.hit(5, 512), 448);
}

TEST(FieldCases, B24AnIndexCacheIsAGroupAndItsLossShortensTheHit) {
  const Geometry geometry = coarse({.groups = {full(64), full(64)}});
  HostShelf host(geometry, 300);
  host.put_blocks(0, {0, 1, 2, 3});
  host.put_blocks(1, {0, 1, 2, 3});
  EXPECT_EQ(host.hit(300), 256);
  host.remove(1, 192);
  EXPECT_EQ(host.hit(300), 128);
}

}  // namespace
}  // namespace hostkv::testing
