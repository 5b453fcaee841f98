#include "bench/engine/block_pool.h"

#include <gtest/gtest.h>

namespace hostkv::bench {
namespace {

std::vector<BlockId> ids(std::vector<std::uint32_t> values) {
  std::vector<BlockId> blocks;
  for (const std::uint32_t value : values) blocks.push_back(BlockId{value});
  return blocks;
}

std::vector<BlockId> take(BlockPool& pool, std::int64_t count) {
  std::vector<BlockId> blocks;
  pool.allocate(count, blocks);
  return blocks;
}

CacheKey key(std::uint64_t value, std::uint32_t group = 0) {
  return CacheKey{PrefixHash{value, value}, GroupIndex{group}};
}

TEST(BlockPool, HandsOutEveryBlockButTheNullBlock) {
  BlockPool pool(3);
  EXPECT_EQ(take(pool, 3), ids({1, 2, 3}));
  EXPECT_EQ(pool.num_free(), 0);
}

TEST(BlockPool, PutsBlocksWithoutKeyInFrontAndBlocksWithKeyBehind) {
  BlockPool pool(4);
  take(pool, 3);
  pool.insert(key(7), BlockId{2});
  pool.free(ids({3, 2, 1}));
  EXPECT_EQ(take(pool, 4), ids({3, 1, 4, 2}));
}

TEST(BlockPool, FindsAFreedBlockUntilItIsHandedOutAgain) {
  BlockPool pool(2);
  take(pool, 1);
  pool.insert(key(7), BlockId{1});
  pool.free(ids({1}));
  EXPECT_EQ(pool.find(key(7)), BlockId{1});
  EXPECT_EQ(pool.find(key(7, 1)), std::nullopt) << "another group";
  take(pool, 2);
  EXPECT_EQ(pool.find(key(7)), std::nullopt);
}

TEST(BlockPool, TouchTakesABlockOutOfTheQueue) {
  BlockPool pool(2);
  take(pool, 2);
  pool.insert(key(7), BlockId{1});
  pool.free(ids({1}));
  pool.touch(ids({1, 0}));
  EXPECT_EQ(pool.num_free(), 0);
  pool.free(ids({1}));
  EXPECT_EQ(pool.num_free(), 1);
}

TEST(BlockPool, KeepsAnotherBlockOfTheSameKeyFindable) {
  BlockPool pool(3);
  take(pool, 3);
  for (const std::uint32_t b : {1U, 2U, 3U}) pool.insert(key(7), BlockId{b});
  pool.free(ids({2}));
  take(pool, 1);
  EXPECT_EQ(pool.find(key(7)), BlockId{1});
  pool.free(ids({1}));
  take(pool, 1);
  EXPECT_EQ(pool.find(key(7)), BlockId{3});
  EXPECT_EQ(pool.num_cached(), 1);
}

TEST(BlockPool, KeepsAPinnedBlockFromBeingHandedOutWhenItsOwnerLeaves) {
  BlockPool pool(2);
  take(pool, 1);
  pool.pin(ids({1}));
  EXPECT_EQ(pool.num_pinned(), 1);
  EXPECT_EQ(pool.num_pinned_only(), 0);
  pool.free(ids({1}));
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_EQ(pool.num_pinned_only(), 1);
  pool.unpin(ids({1}));
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_EQ(pool.num_pinned(), 0);
}

TEST(BlockPool, ForgetsKeysOnEvictionButLeavesOwners) {
  BlockPool pool(2);
  take(pool, 1);
  pool.insert(key(7), BlockId{1});
  pool.evict_cached();
  EXPECT_EQ(pool.find(key(7)), std::nullopt);
  EXPECT_EQ(pool.num_free(), 1);
}

TEST(BlockPool, ReportsABlockThatNobodyOwnsButHasAReference) {
  BlockPool pool(2);
  take(pool, 1);
  const std::vector<std::int32_t> right{0, 1, 0};
  const std::vector<std::int32_t> wrong{0, 0, 0};
  EXPECT_TRUE(pool.check_conservation(right).ok());
  EXPECT_EQ(pool.check_conservation(wrong).code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace hostkv::bench
