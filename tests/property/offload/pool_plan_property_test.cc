// Pool plans over random sizes: inside the budget, no two slots share a byte.

#include <gtest/gtest.h>

#include <algorithm>

#include "offload/pool_plan.h"
#include "tests/support/geometry_builders.h"
#include "tests/support/random.h"

namespace hostkv::testing {
namespace {

struct ByteRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Of every slab all slots of one group, the group changing from slab to slab.
std::vector<ByteRange> all_slots(Random& random, const PoolPlan& plan, const std::vector<std::int64_t>& block_bytes) {
  std::vector<ByteRange> ranges;
  for (std::uint64_t slab = 0; slab < plan.num_slabs; ++slab) {
    const GroupIndex group{
        static_cast<std::uint32_t>(pick(random, 0, static_cast<std::int64_t>(block_bytes.size()) - 1))};
    EXPECT_FALSE(plan.contains(group, make_slot_id(plan.num_slabs, 0)));
    if (plan.slots_per_slab[group.value()] < 65536) {
      EXPECT_FALSE(plan.contains(group, make_slot_id(slab, plan.slots_per_slab[group.value()])));
    }
    for (std::uint32_t i = 0; i < plan.slots_per_slab[group.value()]; ++i) {
      EXPECT_TRUE(plan.contains(group, make_slot_id(slab, i)));
      const std::int64_t begin = plan.offset_bytes(group, make_slot_id(slab, i));
      ranges.push_back({begin, begin + block_bytes[group.value()]});
    }
  }
  return ranges;
}

void check_plan(Random& random, const PoolPlan& plan, const std::vector<std::int64_t>& block_bytes,
                std::int64_t budget_bytes) {
  EXPECT_LE(plan.pool_bytes(), budget_bytes);                    // R17
  EXPECT_GT(plan.pool_bytes() + plan.slab_bytes, budget_bytes);  // and no slab less than fits
  for (std::size_t g = 0; g < block_bytes.size(); ++g) {
    EXPECT_GE(plan.slots_per_slab[g], 1U);
    EXPECT_LE(plan.slots_per_slab[g], 65'536U);
    EXPECT_GE(plan.pitch_bytes[g], block_bytes[g]);
    for (std::size_t other = 0; other < g; ++other) {
      if (plan.slots_per_slab[g] == plan.slots_per_slab[other]) {
        EXPECT_EQ(plan.pitch_bytes[g], plan.pitch_bytes[other]) << "groups of one size class share slots";
      }
    }
  }
  std::vector<ByteRange> ranges = all_slots(random, plan, block_bytes);
  std::ranges::sort(ranges, {}, &ByteRange::begin);
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    EXPECT_LE(ranges[i].end, i + 1 < ranges.size() ? ranges[i + 1].begin : plan.pool_bytes());
  }
}

TEST(PoolPlan, NeverOverlapsSlotsNorLeavesTheBudget) {
  const std::uint64_t seed = test_seed();
  RecordProperty("seed", std::to_string(seed));
  Random random(seed);
  int planned = 0;
  for (std::uint64_t round = 0; round < test_rounds(400); ++round) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " round " << round);
    GeometrySpec spec;
    std::vector<std::int64_t> block_bytes;
    for (std::int64_t g = pick(random, 1, 4); g > 0; --g) {
      spec.groups.push_back(one_in(random, 3) ? mamba(16) : full(16));
      block_bytes.push_back(pick(random, 1, one_in(random, 2) ? 400 : 40'000));
    }
    const Geometry geometry = resolved(spec);
    const std::int64_t budget = pick(random, 1, 3'000'000);
    const Result<PoolPlan> plan = PoolPlan::make(geometry, block_bytes, budget);
    if (plan) {
      ++planned;
      check_plan(random, *plan, block_bytes, budget);
    }
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
  EXPECT_GT(planned, 0);
}

// The refusal names what would do, and one byte less would not.
TEST(PoolPlan, NamesTheSmallestBudgetThatWouldDo) {
  const std::uint64_t seed = test_seed();
  RecordProperty("seed", std::to_string(seed));
  Random random(seed);
  for (std::uint64_t round = 0; round < test_rounds(200); ++round) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " round " << round);
    const Geometry geometry = resolved({.groups = {full(16), mamba(16 * pick(random, 1, 8))}});
    const std::vector<std::int64_t> block_bytes = {pick(random, 1, 9000), pick(random, 1, 9000)};
    const Result<PoolPlan> refused = PoolPlan::make(geometry, block_bytes, 0);
    ASSERT_FALSE(refused.has_value());
    const std::string& message = refused.error().message();
    const std::string marker = "at least ";
    const std::int64_t needed = std::stoll(message.substr(message.find(marker) + marker.size()));
    EXPECT_TRUE(PoolPlan::make(geometry, block_bytes, needed).has_value()) << message;
    EXPECT_FALSE(PoolPlan::make(geometry, block_bytes, needed - 1).has_value()) << message;
  }
}

}  // namespace
}  // namespace hostkv::testing
