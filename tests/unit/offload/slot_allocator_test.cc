#include "offload/slot_allocator.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace hostkv::testing {
namespace {

std::vector<SlotId> take_all(SlotAllocator& slots, std::uint32_t size_class) {
  std::vector<SlotId> taken;
  while (const std::optional<SlotId> slot = slots.allocate(size_class)) {
    taken.push_back(*slot);
  }
  return taken;
}

TEST(SlotAllocator, ReachesEverySlotOfEveryClass) {
  SlotAllocator slots({1, 3, 65536}, 2);
  for (std::uint32_t size_class = 0; size_class < 3; ++size_class) {
    const std::vector<SlotId> taken = take_all(slots, size_class);
    EXPECT_EQ(taken.size(), 2U * slots.slots_per_slab(size_class));
    EXPECT_EQ(std::set<SlotId>(taken.begin(), taken.end()).size(), taken.size());
    EXPECT_EQ(slots.num_used_slots(), taken.size());
    EXPECT_EQ(slots.num_free_slabs(), 0U);
    for (const SlotId slot : taken) {
      ASSERT_LT(index_in_slab(slot), slots.slots_per_slab(size_class));
      slots.free(slot);
    }
    EXPECT_EQ(slots.num_free_slabs(), 2U) << "an empty slab goes back to the common stock";
  }
}

TEST(SlotAllocator, ASlabServesOneClassUntilItsLastSlotIsFreed) {
  SlotAllocator slots({2, 4}, 1);
  const SlotId first = *slots.allocate(0);
  const SlotId second = *slots.allocate(0);
  EXPECT_EQ(slots.class_of_slab(0), 0U);
  EXPECT_FALSE(slots.allocate(1).has_value());
  slots.free(first);
  EXPECT_FALSE(slots.allocate(1).has_value());
  slots.free(second);
  EXPECT_EQ(slots.class_of_slab(0), SlotAllocator::kNoClass);
  EXPECT_TRUE(slots.allocate(1).has_value());
  EXPECT_EQ(slots.class_of_slab(0), 1U);
}

TEST(SlotAllocator, FillsAnOpenSlabBeforeItTakesAnother) {
  SlotAllocator slots({2}, 3);
  const SlotId first = *slots.allocate(0);
  const SlotId second = *slots.allocate(0);
  EXPECT_EQ(slab_of(first), slab_of(second));
  EXPECT_EQ(slots.num_free_slabs(), 2U);
}

TEST(SlotAllocator, OnlyUrgentCallsTakeTheReservedSlabs) {
  SlotAllocator slots({1, 2}, 3);
  slots.set_reserved_slabs(2);
  const SlotId first = *slots.allocate(0);
  EXPECT_FALSE(slots.allocate(0).has_value());
  EXPECT_FALSE(slots.allocate(1).has_value());
  EXPECT_FALSE(slots.reserve_is_short());
  const SlotId urgent = *slots.allocate(1, true);
  EXPECT_TRUE(slots.reserve_is_short());
  EXPECT_TRUE(slots.allocate(1).has_value()) << "its other place is in no free slab";
  slots.free(first);
  EXPECT_FALSE(slots.reserve_is_short()) << "an empty slab refills the reserve first";
  EXPECT_FALSE(slots.allocate(0).has_value());
  EXPECT_TRUE(slots.allocate(0, true).has_value());
  EXPECT_TRUE(slots.allocate(0, true).has_value());
  EXPECT_FALSE(slots.allocate(0, true).has_value());
  EXPECT_EQ(slots.num_free_slabs(), 0U);
  EXPECT_EQ(slots.class_of_slab(slab_of(urgent)), 1U);
}

TEST(SlotAllocator, APoolWithoutSlabsGivesNothing) {
  SlotAllocator slots({4}, 0);
  EXPECT_FALSE(slots.allocate(0).has_value());
}

}  // namespace
}  // namespace hostkv::testing
