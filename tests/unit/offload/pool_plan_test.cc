#include "offload/pool_plan.h"

#include <gtest/gtest.h>

#include "tests/support/geometry_builders.h"

namespace hostkv::testing {
namespace {

PoolPlan planned(const Geometry& geometry, const std::vector<std::int64_t>& block_bytes, std::int64_t budget_bytes) {
  Result<PoolPlan> plan = PoolPlan::make(geometry, block_bytes, budget_bytes);
  EXPECT_TRUE(plan.has_value()) << (plan ? "" : plan.error().message());
  return plan ? *plan : PoolPlan{};
}
std::string refusal(const Geometry& geometry, const std::vector<std::int64_t>& block_bytes, std::int64_t budget_bytes) {
  const Result<PoolPlan> plan = PoolPlan::make(geometry, block_bytes, budget_bytes);
  EXPECT_FALSE(plan.has_value());
  EXPECT_TRUE(plan || plan.error().code() == StatusCode::kInvalidArgument);
  return plan ? "" : plan.error().message();
}

// Field case A18.
TEST(PoolPlan, A18HoldsExactlyAsManyBlocksAsTheBudget) {
  const Geometry geometry = resolved({.groups = {full(16)}});
  constexpr std::int64_t kBlockBytes = 50 * 65'536 + 10 * 32'768;
  static_assert(kBlockBytes == 3'604'480);
  EXPECT_EQ(planned(geometry, {kBlockBytes}, 36'044'800).num_slabs, 10U);
  EXPECT_EQ(planned(geometry, {kBlockBytes}, 36'044'800).slots_per_slab, std::vector<std::uint32_t>{1});
  EXPECT_EQ(planned(geometry, {kBlockBytes}, 36'044'799).num_slabs, 9U);
}

// R17, field case J3.
TEST(PoolPlan, J3TakesNoMoreThanTheBudgetWithFourUnequalGroups) {
  const Geometry geometry = resolved({.groups = {full(16), window(16, 64), window(16, 128), mamba(16)}});
  constexpr std::int64_t kBudget = std::int64_t{1} << 30U;
  const PoolPlan plan = planned(geometry, {1 << 20, 700'000, 300'000, 1'234'567}, kBudget);
  EXPECT_LE(plan.pool_bytes(), kBudget);
  EXPECT_GT(plan.pool_bytes(), kBudget - plan.slab_bytes);
}

TEST(PoolPlan, GivesSmallBlocksSmallSlots) {
  const Geometry geometry = resolved({.groups = {full(16), mamba(16)}});
  const PoolPlan plan = planned(geometry, {4096, 65'536}, 1 << 20);
  EXPECT_EQ(plan.slab_bytes, 65'536);
  EXPECT_EQ(plan.slots_per_slab, (std::vector<std::uint32_t>{16, 1}));
  EXPECT_EQ(plan.pitch_bytes, (std::vector<std::int64_t>{4096, 65'536}));
}

TEST(PoolPlan, GroupsThatAreNotOffloadedTakeNoSlots) {
  const Geometry geometry = resolved({.groups = {full(16), ring(16)}});
  const PoolPlan plan = planned(geometry, {4096, 0}, 1 << 20);
  EXPECT_EQ(plan.slots_per_slab, (std::vector<std::uint32_t>{1, 0}));
  EXPECT_FALSE(plan.contains(GroupIndex{1}, make_slot_id(0, 0)));
}

TEST(PoolPlan, AModelThatCannotBeOffloadedGetsAnEmptyPool) {
  const Geometry geometry = resolved({.groups = {mamba(16, MambaMode::kNone)}});
  const PoolPlan plan = planned(geometry, {4096}, 1 << 20);
  EXPECT_EQ(plan.num_slabs, 0U);
  EXPECT_EQ(plan.pool_bytes(), 0);
}

TEST(PoolPlan, ASlotBeginsAtAnAlignedByte) {
  const Geometry geometry = resolved({.groups = {full(16)}});
  const PoolPlan plan = planned(geometry, {1000}, 1 << 20);
  EXPECT_EQ(plan.pitch_bytes[0] % kSlotAlignmentBytes, 0);
  EXPECT_EQ(plan.offset_bytes(GroupIndex{0}, make_slot_id(3, 0)), 3 * 1024);
}

// R25: what is too small, and how much would do.
TEST(PoolPlan, APoolBelowOneBoundarySetIsRefusedWithTheBytesNeeded) {
  const Geometry geometry = resolved({.groups = {full(16), mamba(64)}});  // at 64 tokens: 4 blocks and a state
  const std::string message = refusal(geometry, {65'536, 65'536}, 4 * 65'536);
  EXPECT_NE(message.find("262144 bytes per rank"), std::string::npos) << message;
  EXPECT_NE(message.find("64 tokens"), std::string::npos) << message;
  EXPECT_NE(message.find("327680 bytes per rank are needed"), std::string::npos) << message;
  EXPECT_EQ(planned(geometry, {65'536, 65'536}, 5 * 65'536).num_slabs, 5U) << "what was named is enough";
}

TEST(PoolPlan, RefusesSizesThatDoNotFitTheGeometry) {
  const Geometry geometry = resolved({.groups = {full(16), mamba(16)}});
  EXPECT_NE(refusal(geometry, {4096}, 1 << 20).find("the geometry has 2"), std::string::npos);
  EXPECT_NE(refusal(geometry, {4096, 0}, 1 << 20).find("group 1"), std::string::npos);
  EXPECT_NE(refusal(geometry, {4096, 4096}, -1).find("-1 bytes"), std::string::npos);
  EXPECT_NE(refusal(geometry, {4096, 4096}, 0).find("8192 bytes per rank are needed"), std::string::npos);
}

}  // namespace
}  // namespace hostkv::testing
