// A full host pool: who goes, who stays, what it costs. Numbers J13 to J21 are field cases.

#include <gtest/gtest.h>

#include "tests/support/cache_helpers.h"

namespace hostkv::testing {
namespace {

using Numbers = std::vector<std::uint64_t>;

std::vector<StoreWant> wants_of(std::uint64_t first, std::uint64_t count, std::uint32_t size_class = 0) {
  std::vector<StoreWant> wants;
  for (std::uint64_t number = first; number < first + count; ++number) {
    wants.push_back(want_of(number, size_class));
  }
  return wants;
}

TEST(FullHost, J13TakesEveryNewBlockAndKeepsTheLastForty) {
  OffloadCache cache = lru_cache({1}, 40);
  for (std::uint64_t number = 0; number < 100; ++number) {
    ASSERT_TRUE(store_one(cache, number)) << "a block that is still on the device is no reason to refuse " << number;
  }
  const Numbers held = ready_numbers(cache, 100);
  EXPECT_EQ(held.size(), 40U);
  EXPECT_EQ(held.front(), 60U);
  EXPECT_EQ(cache.num_evictions(), 60U);
  expect_conserved(cache);
}

TEST(FullHost, J15HoldsNoMoreThanItsCapacityWhateverPassesThrough) {
  OffloadCache cache = lru_cache({1}, 4);
  for (std::uint64_t number = 0; number < 1000; ++number) {
    ASSERT_TRUE(store_one(cache, number));
    ASSERT_LE(cache.num_ready(), 4U);
    ASSERT_LE(cache.num_used_slots(), 4U);
  }
  EXPECT_EQ(ready_numbers(cache, 1000), (Numbers{996, 997, 998, 999}));
}

// Counts what the cache asks of its policy.
class CountingPolicy final : public EvictionPolicy {
 public:
  explicit CountingPolicy(std::uint64_t& calls) : calls_(calls), lru_(1) {}
  void add_candidate(EntryId entry, std::uint32_t size_class) override {
    ++calls_;
    lru_.add_candidate(entry, size_class);
  }
  void remove_candidate(EntryId entry) override {
    ++calls_;
    lru_.remove_candidate(entry);
  }
  [[nodiscard]] EntryId victim(std::uint32_t size_class) const override {
    ++calls_;
    return lru_.victim(size_class);
  }
  [[nodiscard]] EntryId next_victim(EntryId candidate) const override {
    ++calls_;
    return lru_.next_victim(candidate);
  }
  [[nodiscard]] EntryId victim() const override {
    ++calls_;
    return lru_.victim();
  }
  [[nodiscard]] std::uint64_t num_candidates(std::uint32_t size_class) const override {
    return lru_.num_candidates(size_class);
  }

 private:
  std::uint64_t& calls_;
  LruPolicy lru_;
};

// Policy calls of `evictions` evictions in a full pool whose oldest `pinned` entries are pinned.
std::uint64_t calls_to_evict(std::uint64_t slots, std::uint64_t pinned, std::uint64_t evictions) {
  std::uint64_t calls = 0;
  OffloadCache cache({1}, slots, std::make_unique<CountingPolicy>(calls));
  for (std::uint64_t number = 0; number < slots; ++number) {
    EXPECT_TRUE(store_one(cache, number));
  }
  for (std::uint64_t number = 0; number < pinned; ++number) {
    pin_key(cache, number);
  }
  calls = 0;
  for (std::uint64_t number = slots; number < slots + evictions; ++number) {
    EXPECT_TRUE(store_one(cache, number));
  }
  EXPECT_EQ(cache.num_evictions(), evictions);
  return calls;
}

TEST(FullHost, J17ChoosesAVictimAtTheSameCostWhenNinetyNinePercentArePinned) {
  constexpr std::uint64_t kSlots = 200'000;
  constexpr std::uint64_t kEvictions = 10'000;
  const std::uint64_t none_pinned = calls_to_evict(kSlots, 0, kEvictions);
  const std::uint64_t most_pinned = calls_to_evict(kSlots, kSlots / 100 * 99, kEvictions);
  EXPECT_EQ(most_pinned, none_pinned);
  EXPECT_LE(most_pinned, 5 * kEvictions) << "the oldest of all, that of the size, the one behind it; one out, one in";
}

TEST(FullHost, J18ABatchFreesOnlyWhatNobodyReads) {
  OffloadCache cache = lru_cache({1}, 2);
  ASSERT_TRUE(store_all(cache, wants_of(0, 2)));
  const EntryId read = find_in(cache, key_of(0));
  const SlotId its_slot = cache.slot(read);
  cache.pin(read);
  cache.drop(read);
  cache.drop(find_in(cache, key_of(1)));
  EXPECT_EQ(cache.num_used_slots(), 1U);
  const std::vector<EntryId> next = reserve_all(cache, {want_of(2)});
  ASSERT_EQ(next.size(), 1U);
  EXPECT_NE(cache.slot(next[0]), its_slot) << "bytes under a reader are nobody else's";
  cache.unpin(read);
  EXPECT_EQ(cache.num_used_slots(), 1U);
  expect_conserved(cache);
}

TEST(FullHost, J19EvictsUntilTheSetFits) {
  OffloadCache cache = lru_cache({1}, 20);
  for (std::uint64_t number = 0; number < 20; ++number) {
    ASSERT_TRUE(store_one(cache, number));
  }
  for (const std::uint64_t pinned : {0U, 3U, 6U, 9U}) {
    pin_key(cache, pinned);
  }
  EXPECT_TRUE(store_all(cache, wants_of(20, 10)));
  EXPECT_EQ(cache.num_evictions(), 10U);
  for (const std::uint64_t pinned : {0U, 3U, 6U, 9U}) {
    EXPECT_TRUE(is_ready(cache, key_of(pinned)));
  }
  expect_conserved(cache);
}

TEST(FullHost, J19LeavesASlabWithOnePinnedBlockWhole) {
  OffloadCache cache = lru_cache({4, 1}, 1);
  ASSERT_TRUE(store_all(cache, wants_of(0, 4)));
  pin_key(cache, 2);
  EXPECT_FALSE(store_one(cache, 10, 1));
  EXPECT_EQ(ready_numbers(cache, 4).size(), 4U);
  cache.unpin(find_in(cache, key_of(2)));
  EXPECT_TRUE(store_one(cache, 10, 1));
  EXPECT_EQ(ready_numbers(cache, 11), Numbers{10});
  expect_conserved(cache);
}

TEST(FullHost, J21DropsASetWhenEverythingIsPinned) {
  OffloadCache cache = lru_cache({1}, 4);
  ASSERT_TRUE(store_all(cache, wants_of(0, 4)));
  for (std::uint64_t number = 0; number < 4; ++number) {
    pin_key(cache, number);
  }
  EXPECT_FALSE(store_all(cache, wants_of(4, 2)));
  EXPECT_EQ(ready_numbers(cache, 6), (Numbers{0, 1, 2, 3}));
  EXPECT_EQ(cache.num_evictions(), 0U);
  expect_conserved(cache);
}

TEST(FullHost, TakesASlabOfAnotherSizeWhoseOldestBlockIsOlder) {
  OffloadCache cache = lru_cache({2, 1}, 2);
  ASSERT_TRUE(store_all(cache, wants_of(0, 2, 0)));  // slab of class 0, older
  ASSERT_TRUE(store_one(cache, 10, 1));              // slab of class 1
  ASSERT_TRUE(store_one(cache, 11, 1));
  EXPECT_EQ(ready_numbers(cache, 12), (Numbers{10, 11}));
  ASSERT_TRUE(store_one(cache, 12, 1)) << "its own oldest block is the oldest of all now";
  EXPECT_EQ(ready_numbers(cache, 13), (Numbers{11, 12}));
  EXPECT_EQ(cache.num_used_slabs(), 2U);
  expect_conserved(cache);
}

TEST(FullHost, TakesItsOwnOldestBlockWhereTheOlderSlabIsPinned) {
  OffloadCache cache = lru_cache({2, 1}, 2);
  ASSERT_TRUE(store_all(cache, wants_of(0, 2, 0)));
  ASSERT_TRUE(store_one(cache, 10, 1));
  pin_key(cache, 0);  // block 1 of the slab stays the oldest candidate of all
  ASSERT_TRUE(store_one(cache, 11, 1));
  EXPECT_EQ(ready_numbers(cache, 12), (Numbers{0, 1, 11}));
  expect_conserved(cache);
}

TEST(FullHost, PassesOverASlabHeldByABlockOfTheSameSet) {
  OffloadCache cache = lru_cache({2, 1}, 2);
  ASSERT_TRUE(store_all(cache, wants_of(0, 2, 0)));
  ASSERT_TRUE(store_all(cache, wants_of(2, 2, 0)));
  // The set's small block takes a place in the slab of the oldest one; its large block needs a whole slab.
  EXPECT_TRUE(store_all(cache, {want_of(10, 0), want_of(11, 1)}));
  EXPECT_TRUE(is_ready(cache, key_of(10)));
  EXPECT_TRUE(is_ready(cache, key_of(11)));
  expect_conserved(cache);
}

// A state comes once: its set must find room while everything else is being copied.
TEST(Reserve, IsTakenByUrgentSetsOnlyAndOnlyWhereNothingCanBeEvicted) {
  OffloadCache cache = lru_cache({1}, 5);
  cache.set_reserved_slabs(2);
  for (std::uint64_t number = 0; number < 3; ++number) {
    ASSERT_TRUE(store_one(cache, number));
  }
  ASSERT_TRUE(store_one(cache, 3)) << "evicts: the reserve is not for it";
  EXPECT_EQ(ready_numbers(cache, 4), (Numbers{1, 2, 3}));
  publish_tail_first(cache, reserve_all(cache, {want_of(4)}, kSomeChain, true));
  EXPECT_EQ(ready_numbers(cache, 5), (Numbers{2, 3, 4})) << "what can be evicted goes first, also for an urgent set";
  for (const std::uint64_t number : {2U, 3U, 4U}) {
    pin_key(cache, number);
  }
  EXPECT_FALSE(store_one(cache, 5));
  EXPECT_TRUE(reserve_all(cache, wants_of(6, 3), kSomeChain, true).empty()) << "all or none";
  const std::vector<EntryId> urgent = reserve_all(cache, wants_of(6, 2), kSomeChain, true);
  ASSERT_EQ(urgent.size(), 2U);
  EXPECT_TRUE(reserve_all(cache, wants_of(8, 1), kSomeChain, true).empty());
  EXPECT_EQ(cache.num_used_slabs(), 5U);
  expect_conserved(cache);
}

TEST(Reserve, IsRefilledByWhatBecomesEmptyAndByTheOldestBlocksAsOthersAreStored) {
  OffloadCache cache = lru_cache({1, 2}, 4);
  cache.set_reserved_slabs(2);
  ASSERT_TRUE(store_all(cache, wants_of(0, 2)));
  pin_key(cache, 0);
  pin_key(cache, 1);
  const std::vector<EntryId> urgent = reserve_all(cache, wants_of(2, 2), kSomeChain, true);
  ASSERT_EQ(urgent.size(), 2U);
  cache.drop(find_in(cache, key_of(0)));
  EXPECT_EQ(cache.num_used_slabs(), 4U) << "still read";
  cache.abort(urgent[0]);
  EXPECT_FALSE(store_one(cache, 10)) << "the empty slab went to the reserve";
  cache.publish(urgent[1]);
  cache.unpin(find_in(cache, key_of(1)));
  ASSERT_TRUE(store_one(cache, 11)) << "one goes for the reserve, one for the set";
  EXPECT_EQ(ready_numbers(cache, 12), Numbers{11});
  EXPECT_EQ(cache.num_used_slabs(), 2U);
  expect_conserved(cache);
}

TEST(Reserve, OfSeveralSizesGivesASlabToTheSizeThatIsUrgent) {
  OffloadCache cache = lru_cache({2, 1}, 2);
  cache.set_reserved_slabs(1);
  ASSERT_TRUE(store_all(cache, wants_of(0, 2, 0)));
  pin_key(cache, 0);
  EXPECT_FALSE(store_one(cache, 10, 1));
  EXPECT_EQ(reserve_all(cache, {want_of(10, 1)}, kSomeChain, true).size(), 1U);
  expect_conserved(cache);
}

TEST(FullHost, NoChainProtectsNothing) {
  OffloadCache cache = lru_cache({1}, 2);
  constexpr std::uint32_t kNone = OffloadCache::kNoChain;
  ASSERT_TRUE(store_all(cache, {want_of(0, 0, true), want_of(1, 0, true)}, kNone));
  EXPECT_TRUE(store_all(cache, {want_of(2, 0, true)}, kNone));
  EXPECT_EQ(ready_numbers(cache, 3), (Numbers{0, 2}));
  EXPECT_EQ(cache.num_evictions(), 1U);
  expect_conserved(cache);
}

TEST(FullHost, PassesOverItsOwnOldBlocksToTheNewerOnesOfOthers) {
  OffloadCache cache = lru_cache({1}, 3);
  ASSERT_TRUE(store_all(cache, {want_of(0, 0, true), want_of(1, 0, true)}, 1));
  ASSERT_TRUE(store_all(cache, {want_of(2)}, 2));
  EXPECT_TRUE(store_all(cache, {want_of(3, 0, true)}, 1));
  EXPECT_EQ(ready_numbers(cache, 4), (Numbers{0, 1, 3}));
  EXPECT_FALSE(store_all(cache, {want_of(4, 0, true)}, 1)) << "only its own are left";
  expect_conserved(cache);
}

}  // namespace
}  // namespace hostkv::testing
