#include "offload/offload_cache.h"

#include <gtest/gtest.h>

#include "tests/support/cache_helpers.h"

namespace hostkv::testing {
namespace {

using Numbers = std::vector<std::uint64_t>;

// R9: findable only when it is complete, but not stored twice meanwhile.
TEST(OffloadCache, AReservedKeyIsKnownButNotReadyUntilItIsPublished) {
  OffloadCache cache = lru_cache({1}, 4);
  const std::vector<EntryId> entries = reserve_all(cache, {want_of(1)});
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(find_in(cache, key_of(1)), entries[0]);
  EXPECT_FALSE(cache.ready(entries[0]));
  EXPECT_EQ(cache.num_pinned(), 1U);
  cache.publish(entries[0]);
  EXPECT_TRUE(is_ready(cache, key_of(1)));
  EXPECT_EQ(cache.num_pinned(), 0U);
  expect_conserved(cache);
}

TEST(OffloadCache, AnAbortedKeyIsUnknownAndItsSlotIsFree) {
  OffloadCache cache = lru_cache({1}, 1);
  cache.abort(reserve_all(cache, {want_of(1)}).at(0));
  EXPECT_EQ(find_in(cache, key_of(1)), kNoEntry);
  EXPECT_EQ(cache.num_used_slots(), 0U);
  EXPECT_TRUE(store_one(cache, 2));
  expect_conserved(cache);
}

TEST(OffloadCache, ASetThatDoesNotFitLeavesNoneOfItsKeys) {
  OffloadCache cache = lru_cache({1}, 3);
  ASSERT_TRUE(store_one(cache, 0));
  pin_key(cache, 0);
  std::vector<EntryId> reserved = {EntryId{77}};
  const Numbers numbers = {1, 2, 3};
  std::vector<StoreWant> wants;
  for (const std::uint64_t number : numbers) {
    wants.push_back(want_of(number));
  }
  EXPECT_FALSE(cache.reserve(wants, kSomeChain, reserved));
  EXPECT_EQ(reserved, std::vector<EntryId>{EntryId{77}}) << "what the caller had stays";
  for (const std::uint64_t number : numbers) {
    EXPECT_EQ(find_in(cache, key_of(number)), kNoEntry);
  }
  EXPECT_EQ(cache.num_used_slots(), 1U);
  expect_conserved(cache);
}

TEST(OffloadCache, EvictsTheTailOfAChainThatWasPublishedTailFirst) {
  OffloadCache cache = lru_cache({1}, 4);
  ASSERT_TRUE(store_all(cache, {want_of(0), want_of(1), want_of(2), want_of(3)}, 1));
  for (std::uint64_t stranger = 10; stranger < 13; ++stranger) {
    ASSERT_TRUE(store_one(cache, stranger));
    expect_conserved(cache);
  }
  EXPECT_EQ(ready_numbers(cache, 4), Numbers{0}) << "the head is worth most and stays longest";
}

// R4.
TEST(OffloadCache, AnEntryIsEvictedOnlyAfterItsLastUnpin) {
  OffloadCache cache = lru_cache({1}, 1);
  ASSERT_TRUE(store_one(cache, 0));
  pin_key(cache, 0);
  pin_key(cache, 0);
  const EntryId id = find_in(cache, key_of(0));
  for (int pins = 2; pins > 0; --pins) {
    EXPECT_FALSE(store_one(cache, 1));
    EXPECT_TRUE(is_ready(cache, key_of(0)));
    cache.unpin(id);
    expect_conserved(cache);
  }
  EXPECT_TRUE(store_one(cache, 1));
  EXPECT_EQ(find_in(cache, key_of(0)), kNoEntry);
}

TEST(OffloadCache, TouchAndUnpinMakeAnEntryTheMostRecent) {
  OffloadCache cache = lru_cache({1}, 3);
  for (std::uint64_t number = 0; number < 3; ++number) {
    ASSERT_TRUE(store_one(cache, number));
  }
  const EntryId first = find_in(cache, key_of(0));
  cache.touch_chain(std::span(&first, 1), cache.chain_of(first) + 1);  // of another chain: stays where it is
  const EntryId twice[] = {first, first};
  cache.touch_chain(twice, cache.chain_of(first));
  pin_key(cache, 1);
  cache.unpin(find_in(cache, key_of(1)));
  ASSERT_TRUE(store_one(cache, 3));
  EXPECT_EQ(ready_numbers(cache, 4), (Numbers{0, 1, 3}));
  ASSERT_TRUE(store_one(cache, 4));
  EXPECT_EQ(ready_numbers(cache, 5), (Numbers{1, 3, 4}));
  expect_conserved(cache);
}

// R12, R13: the key goes at once, the slot with the last reader.
TEST(OffloadCache, ADroppedKeyIsGoneAtOnceAndItsSlotWithTheLastPin) {
  OffloadCache cache = lru_cache({1}, 1);
  ASSERT_TRUE(store_one(cache, 0));
  const EntryId id = find_in(cache, key_of(0));
  cache.pin(id);
  cache.drop(id);
  cache.drop(id);  // twice is once
  EXPECT_EQ(find_in(cache, key_of(0)), kNoEntry);
  EXPECT_EQ(cache.num_ready(), 0U);
  EXPECT_FALSE(store_one(cache, 0)) << "the slot is still read";
  expect_conserved(cache);
  cache.unpin(id);
  EXPECT_EQ(cache.num_used_slots(), 0U);
  EXPECT_TRUE(store_one(cache, 0));
  expect_conserved(cache);
}

TEST(OffloadCache, WhatWasDroppedWhileItWasStoredIsNeverPublished) {
  OffloadCache cache = lru_cache({1}, 2);
  const EntryId id = reserve_all(cache, {want_of(0)}).at(0);
  cache.drop(id);
  EXPECT_EQ(find_in(cache, key_of(0)), kNoEntry);
  ASSERT_TRUE(store_one(cache, 0)) << "the key is free for a new store";
  cache.publish(id);
  expect_conserved(cache);
  EXPECT_TRUE(is_ready(cache, key_of(0)));
  EXPECT_EQ(cache.num_used_slots(), 1U);
}

TEST(OffloadCache, ClearForgetsEveryKeyAndKeepsSlotsInUse) {
  OffloadCache cache = lru_cache({2}, 2);
  ASSERT_TRUE(store_all(cache, {want_of(0), want_of(1)}));
  pin_key(cache, 0);
  const EntryId pinned = find_in(cache, key_of(0));
  const EntryId storing = reserve_all(cache, {want_of(2)}).at(0);
  cache.clear();
  EXPECT_EQ(ready_numbers(cache, 3), Numbers{});
  EXPECT_EQ(find_in(cache, key_of(2)), kNoEntry);
  EXPECT_EQ(cache.num_used_slots(), 2U);
  expect_conserved(cache);
  cache.unpin(pinned);
  cache.abort(storing);
  EXPECT_EQ(cache.num_used_slots(), 0U);
  EXPECT_EQ(cache.num_used_slabs(), 0U);
  expect_conserved(cache);
}

TEST(OffloadCache, AChainNeverEvictsItsOwnAttentionBlocks) {
  OffloadCache cache = lru_cache({1}, 2);
  constexpr bool kPrefixClosed = true;
  ASSERT_TRUE(store_all(cache, {want_of(0, 0, kPrefixClosed), want_of(1, 0, kPrefixClosed)}, 1));
  EXPECT_FALSE(store_all(cache, {want_of(2, 0, kPrefixClosed)}, 1));
  EXPECT_EQ(ready_numbers(cache, 3), (Numbers{0, 1}));
  EXPECT_TRUE(store_all(cache, {want_of(2, 0, kPrefixClosed)}, 2)) << "another chain may";
  EXPECT_EQ(ready_numbers(cache, 3), (Numbers{0, 2}));
  expect_conserved(cache);
}

// An old window or state is worth nothing to a chain that has gone on.
TEST(OffloadCache, AChainMayEvictItsOwnStates) {
  OffloadCache cache = lru_cache({1}, 1);
  ASSERT_TRUE(store_all(cache, {want_of(0, 0, false)}, 1));
  EXPECT_TRUE(store_all(cache, {want_of(1, 0, false)}, 1));
  EXPECT_EQ(ready_numbers(cache, 2), Numbers{1});
}

}  // namespace
}  // namespace hostkv::testing
