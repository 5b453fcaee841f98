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

TEST(SlotAllocator, APoolWithoutSlabsGivesNothing) {
  SlotAllocator slots({4}, 0);
  EXPECT_FALSE(slots.allocate(0).has_value());
}

}  // namespace
}  // namespace hostkv::testing
