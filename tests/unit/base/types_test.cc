#include "hostkv/types.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <type_traits>
#include <unordered_set>

namespace hostkv {
namespace {

template <class A, class B>
concept Addable = requires(A a, B b) {
  a + b;
};
template <class A, class B>
concept Comparable = requires(A a, B b) {
  a == b;
};

static_assert(!std::is_convertible_v<std::uint32_t, BlockId>, "a count does not become an id by itself");
static_assert(!std::is_convertible_v<BlockId, std::uint32_t>, "an id does not become a count by itself");
static_assert(!std::is_constructible_v<BlockId, GroupIndex>, "ids of different kinds do not mix");
static_assert(!Addable<BlockId, std::uint32_t>, "an id is never added to a count");
static_assert(!Comparable<BlockId, RankIndex>, "ids of different kinds are not compared");

TEST(StrongId, ComparesAndHashesByItsNumber) {
  EXPECT_LT(BlockId{3}, BlockId{4});
  EXPECT_EQ(BlockId{3}.value(), 3U);
  EXPECT_EQ(BlockId{}, kNullBlock);
  const std::unordered_set<JobId> jobs = {JobId{1}, JobId{2}, JobId{1}};
  EXPECT_EQ(jobs.size(), 2U);
}

TEST(SlotId, KeepsSlabAndPlaceApart) {
  for (const std::uint64_t slab : {std::uint64_t{0}, std::uint64_t{1}, (std::uint64_t{1} << 48U) - 1}) {
    for (const std::uint32_t place : {0U, 1U, 0xFFFFU}) {
      const SlotId slot = make_slot_id(slab, place);
      EXPECT_EQ(slab_of(slot), slab);
      EXPECT_EQ(index_in_slab(slot), place);
    }
  }
}

}  // namespace
}  // namespace hostkv
