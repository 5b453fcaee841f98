// Field cases C: sliding windows.

#include <gtest/gtest.h>

#include "tests/support/cases_rig.h"

namespace hostkv::testing {
namespace {

// The part of a window that lies across one block more than its aligned size.
TEST(FieldCases, C1AnUnalignedWindowTouchesOneBlockMore) {
  const Geometry geometry = resolved({.groups = {window(32, 4096)}});
  EXPECT_EQ(geometry.needs(GroupIndex{0}, 98'012), (BlockIndexRange{2934, 3063})) << "129 blocks";
  EXPECT_EQ(geometry.needs(GroupIndex{0}, 98'016), (BlockIndexRange{2935, 3063}));
  EXPECT_EQ(geometry.blocks_of_tokens(GroupIndex{0}, 93'917, 98'012), (BlockIndexRange{2934, 3063}));
}

// As wide a window beside attention over blocks of 256 tokens, loaded at the boundary below 98,012.
TEST(FieldCases, C1TheWindowOfALongPrefixIsLoaded) {
  CasesRig rig({.groups = {full(256), window(32, 4096)}}, {}, 8192, 8192);
  rig.store(1, "a", 98'012);
  rig.add(2, "a", 98'012);
  const std::int64_t hit = rig.hit(2, 98'012);
  ASSERT_EQ(hit, 97'792);
  ASSERT_EQ(rig.admit(2, 98'012, hit), Status());
  const StepMetadata load = rig.step();
  EXPECT_EQ(blocks_of_group(load, 0, Direction::kLoad), 382);
  EXPECT_EQ(blocks_of_group(load, 1, Direction::kLoad), 128);
  rig.answer_all(load);
}

// A draft group with a window, stored sparsely: it must not make every lookup miss for ever.
TEST(FieldCases, C4ADraftWindowDoesNotMakeEveryLookupMiss) {
  CasesRig rig({.groups = {full(64), draft(window(64, 128))}});
  rig.store(1, "a", 512);
  std::int64_t hit_tokens = 0;
  for (std::uint64_t id = 2; id < 102; ++id) {
    rig.add(id, "a", 512);
    hit_tokens += rig.hit(id, 512);
    rig.finish(id, 0);
  }
  EXPECT_EQ(hit_tokens, 100 * 448) << "all but the unit that is dropped";
  rig.expect_idle();
}

// 40 blocks are on the host; a load to 640 moves the last four and fills four blocks of the device.
TEST(FieldCases, C7ALoadChargesTheWindowNotThePrefix) {
  CasesRig rig({.groups = {window(16, 64)}});
  rig.store(1, "a", 640);
  ASSERT_EQ(rig.connector->metrics().stored_blocks, 40);
  rig.add(2, "a", 641);
  ASSERT_EQ(rig.hit(2, 641), 640);
  EXPECT_EQ(rig.connector->metrics().pinned_slots, 4);
  const std::uint64_t before = rig.device.num_handed_out();
  ASSERT_EQ(rig.admit(2, 640, 640), Status());
  EXPECT_EQ(rig.device.num_handed_out() - before, 4U);
  const StepMetadata load = rig.step();
  ASSERT_EQ(load.jobs.size(), 1U);
  EXPECT_EQ(load.jobs[0].blocks.size(), 4U);
  rig.answer_all(load);
  EXPECT_EQ(rig.connector->metrics().loaded_blocks, 4);
}

// Table [null, null, 8, 9]: nothing of block 0 is stored, loaded or pinned.
TEST(FieldCases, C9NullBlocksAreNeitherSourcesNorTargets) {
  CasesRig rig({.groups = {window(16, 33)}});
  rig.store(1, "a", 64);
  rig.add(2, "a", 65);
  ASSERT_EQ(rig.hit(2, 65), 64);
  ASSERT_EQ(rig.admit(2, 64, 64), Status());
  const std::vector<BlockId> table = rig.tables[2][0];
  ASSERT_EQ(table[0], kNullBlock);
  ASSERT_EQ(table[1], kNullBlock);
  const StepMetadata load = rig.step();
  ASSERT_EQ(load.jobs.size(), 1U);
  ASSERT_EQ(load.jobs[0].blocks.size(), 2U);
  EXPECT_EQ(load.jobs[0].blocks[0].block, table[2]);
  EXPECT_EQ(load.jobs[0].blocks[1].block, table[3]);
  rig.answer_all(load);
  ASSERT_EQ(rig.connector->take_load_outcomes().size(), 1U);
  EXPECT_TRUE(rig.step(2, 64, 64).jobs.empty());
  rig.finish(2, 64);
  rig.answer_all(rig.step());
  rig.expect_idle();
}

// A prefix of 200 tokens shared with an earlier prompt of 300 hits 192 the first time.
TEST(FieldCases, C3ASharedPrefixHitsItsWindowAtOnceNotOnlyTheSecondTime) {
  CasesRig rig({.groups = {full(16), window(16, 64)}});
  rig.store(1, "aaaaaaaaaaaabbbbbbb", 300);
  rig.add(2, "aaaaaaaaaaaaccccccc", 300);
  EXPECT_EQ(rig.hit(2, 300), 192);
}

}  // namespace
}  // namespace hostkv::testing
