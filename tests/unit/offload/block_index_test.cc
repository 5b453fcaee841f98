#include "offload/block_index.h"

#include <gtest/gtest.h>

#include "tests/support/cache_helpers.h"

namespace hostkv::testing {
namespace {

TEST(BlockIndex, FindsWhatWasInsertedAndNothingElse) {
  BlockIndex index;
  const EntryId id = index.insert(key_of(7), SlotId{3});
  EXPECT_EQ(index.find(key_of(7)), id);
  EXPECT_EQ(index.find(key_of(8)), kNoEntry);
  EXPECT_EQ(index.entry(id).slot, SlotId{3});
  EXPECT_EQ(index.entry(id).state, EntryState::kStoring);
  EXPECT_EQ(index.entry(id).pins, 0U);
  EXPECT_EQ(index.num_keys(), 1U);
}

// R23: one hash in two groups or two namespaces is two keys.
TEST(BlockIndex, KeepsGroupsAndNamespacesApart) {
  BlockIndex index;
  const EntryId first = index.insert(key_of(7, 0, 1), SlotId{1});
  const EntryId second = index.insert(key_of(7, 1, 1), SlotId{2});
  const EntryId third = index.insert(key_of(7, 0, 2), SlotId{3});
  EXPECT_EQ(index.find(key_of(7, 0, 1)), first);
  EXPECT_EQ(index.find(key_of(7, 1, 1)), second);
  EXPECT_EQ(index.find(key_of(7, 0, 2)), third);
  EXPECT_EQ(index.find(key_of(7, 1, 2)), kNoEntry);
}

TEST(BlockIndex, AnOrphanLivesOnWithoutItsKey) {
  BlockIndex index;
  const EntryId orphan = index.insert(key_of(7), SlotId{3});
  index.orphan(orphan);
  EXPECT_EQ(index.find(key_of(7)), kNoEntry);
  EXPECT_EQ(index.num_keys(), 0U);
  EXPECT_EQ(index.entry(orphan).slot, SlotId{3});
  const EntryId heir = index.insert(key_of(7), SlotId{4});
  EXPECT_NE(heir, orphan);
  index.erase(orphan);
  EXPECT_EQ(index.find(key_of(7)), heir) << "the end of the orphan must not take its heir's key";
}

TEST(BlockIndex, UsesTheNumberOfAnEndedEntryAgainWithNothingOfItLeft) {
  BlockIndex index;
  const EntryId first = index.insert(key_of(7), SlotId{3});
  index.entry(first).pins = 2;
  index.entry(first).chain = 9;
  index.entry(first).prefix_closed = true;
  index.erase(first);
  EXPECT_EQ(index.entry(first).state, EntryState::kFree);
  const EntryId second = index.insert(key_of(8), SlotId{4});
  EXPECT_EQ(second, first);
  EXPECT_EQ(index.entry(second).pins, 0U);
  EXPECT_EQ(index.entry(second).chain, 0U);
  EXPECT_FALSE(index.entry(second).prefix_closed);
  EXPECT_EQ(index.entries().size(), 1U);
}

}  // namespace
}  // namespace hostkv::testing
