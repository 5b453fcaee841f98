// SlotAllocator against a naive one that knows every slot's state.

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "offload/slot_allocator.h"
#include "tests/support/geometry_builders.h"
#include "tests/support/random.h"

namespace hostkv::testing {
namespace {

class AllocatorModel {
 public:
  AllocatorModel(std::vector<std::uint32_t> slots_per_slab, std::uint64_t num_slabs, std::uint64_t reserved_slabs)
      : slots_per_slab_(slots_per_slab),
        num_slabs_(num_slabs),
        reserved_slabs_(reserved_slabs),
        slots_(std::move(slots_per_slab), num_slabs) {
    slots_.set_reserved_slabs(reserved_slabs);
  }

  void allocate(std::uint32_t size_class, bool urgent) {
    const bool expected = has_room(size_class, urgent ? 0 : reserved_slabs_);
    ASSERT_EQ(slots_.has_room(size_class, urgent), expected);
    const std::optional<SlotId> slot = slots_.allocate(size_class, urgent);
    ASSERT_EQ(slot.has_value(), expected);
    if (!slot) {
      return;
    }
    const std::uint64_t slab = slab_of(*slot);
    ASSERT_LT(slab, num_slabs_);
    ASSERT_LT(index_in_slab(*slot), slots_per_slab_[size_class]);
    ASSERT_TRUE(used_[slab].empty() || class_of_[slab] == size_class) << "a slab serves one class at a time";
    ASSERT_TRUE(used_[slab].insert(index_in_slab(*slot)).second) << "a slot is handed out once";
    class_of_[slab] = size_class;
    live_.push_back(*slot);
  }

  void free_one(Random& random) {
    if (live_.empty()) {
      return;
    }
    const auto at = static_cast<std::size_t>(pick(random, 0, static_cast<std::int64_t>(live_.size()) - 1));
    std::swap(live_[at], live_.back());
    slots_.free(live_.back());
    used_[slab_of(live_.back())].erase(index_in_slab(live_.back()));
    live_.pop_back();
  }

  void check() const {
    EXPECT_EQ(slots_.num_used_slots(), live_.size());
    std::uint64_t free_slabs = 0;
    for (std::uint64_t slab = 0; slab < num_slabs_; ++slab) {
      const auto used = used_.find(slab);
      const bool is_free = used == used_.end() || used->second.empty();
      free_slabs += is_free ? 1U : 0U;
      EXPECT_EQ(slots_.class_of_slab(slab), is_free ? SlotAllocator::kNoClass : class_of_.at(slab));
    }
    EXPECT_EQ(slots_.num_free_slabs(), free_slabs);
    EXPECT_EQ(slots_.reserve_is_short(), free_slabs < reserved_slabs_);
  }

 private:
  [[nodiscard]] bool has_room(std::uint32_t size_class, std::uint64_t num_reserved) const {
    std::uint64_t num_free = 0;
    for (std::uint64_t slab = 0; slab < num_slabs_; ++slab) {
      const auto used = used_.find(slab);
      if (used == used_.end() || used->second.empty()) {
        ++num_free;
      } else if (class_of_.at(slab) == size_class && used->second.size() < slots_per_slab_[size_class]) {
        return true;
      }
    }
    return num_free > num_reserved;
  }

  std::vector<std::uint32_t> slots_per_slab_;
  std::uint64_t num_slabs_;
  std::uint64_t reserved_slabs_;
  SlotAllocator slots_;
  std::map<std::uint64_t, std::set<std::uint32_t>> used_;
  std::map<std::uint64_t, std::uint32_t> class_of_;
  std::vector<SlotId> live_;
};

TEST(SlotAllocator, AgreesWithANaiveOneOverRandomOperations) {
  const std::uint64_t seed = test_seed();
  RecordProperty("seed", std::to_string(seed));
  Random random(seed);
  for (std::uint64_t round = 0; round < test_rounds(60); ++round) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " round " << round);
    std::vector<std::uint32_t> sizes;
    for (std::int64_t i = pick(random, 1, 4); i > 0; --i) {
      sizes.push_back(static_cast<std::uint32_t>(pick(random, 1, 9)));
    }
    const std::int64_t num_classes = static_cast<std::int64_t>(sizes.size());
    AllocatorModel model(sizes, static_cast<std::uint64_t>(pick(random, 0, 12)),
                         static_cast<std::uint64_t>(one_in(random, 2) ? 0 : pick(random, 0, 4)));
    for (int op = 0; op < 500; ++op) {
      // Phases of filling and of emptying, so that slabs change hands.
      if (op / 50 % 2 == 0 ? !one_in(random, 4) : one_in(random, 4)) {
        model.allocate(static_cast<std::uint32_t>(pick(random, 0, num_classes - 1)), one_in(random, 3));
      } else {
        model.free_one(random);
      }
      model.check();
      ASSERT_FALSE(::testing::Test::HasFailure()) << "operation " << op;
    }
  }
}

}  // namespace
}  // namespace hostkv::testing
