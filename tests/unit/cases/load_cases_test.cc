// Field cases F: from the lookup to the end of a load.

#include <gtest/gtest.h>

#include "tests/support/cases_rig.h"

namespace hostkv::testing {
namespace {

TEST(FieldCases, F1APromiseIsKeptInAFullHost) {
  CasesRig rig({.groups = {full(16)}}, {}, 8);
  rig.store(1, "a", 128);
  ASSERT_EQ(rig.connector->metrics().stored_keys, 8);
  rig.add(2, "a", 97);
  ASSERT_EQ(rig.hit(2, 97), 96);
  rig.add(3, "b", 64);
  ASSERT_EQ(rig.admit(3, 64), Status());
  const StepMetadata stores = rig.step(3, 0, 64);
  EXPECT_EQ(blocks_of_group(stores, 0, Direction::kStore), 2) << "two of four: six slots are promised";
  EXPECT_EQ(rig.connector->metrics().dropped_full_blocks, 2);
  rig.answer_all(stores);
  ASSERT_EQ(rig.admit(2, 97, 96), Status());
  const StepMetadata load = rig.step();
  EXPECT_EQ(blocks_of_group(load, 0, Direction::kLoad), 6);
  rig.answer_all(load);
  ASSERT_EQ(rig.connector->take_load_outcomes().size(), 1U);
  rig.finish(3, 64);
  rig.finish(2, 96);
  rig.answer_all(rig.step());
  rig.add(4, "a", 97);
  EXPECT_GT(rig.hit(4, 97), 0);
  rig.cancel(4);
  rig.expect_idle();
}

TEST(FieldCases, F5TheLastBlockIsGivenBackByTheHost) {
  CasesRig rig({.groups = {full(16)}});
  rig.store(1, "a", 64);
  rig.cache_new("a", 0, 16);
  rig.cache_new("a", 0, 32);
  rig.add(2, "a", 64);
  EXPECT_EQ(rig.hit(2, 64, 32), 16);
}

// In memory a key is there or not; what is on its way is a miss, and a failed copy stays one.
TEST(FieldCases, F6NothingIsAHitBeforeItsBytesAreOnTheHost) {
  CasesRig rig({.groups = {full(16)}});
  rig.add(1, "a", 32);
  ASSERT_EQ(rig.admit(1, 32), Status());
  const StepMetadata stores = rig.step(1, 0, 32);
  ASSERT_EQ(stores.jobs.size(), 1U);
  rig.add(2, "a", 33);
  EXPECT_EQ(rig.match(2, 33).kind, MatchResult::Kind::kMiss);
  rig.answer(stores, stores.jobs[0], StatusCode::kDeviceError);
  EXPECT_EQ(rig.match(2, 33).kind, MatchResult::Kind::kMiss);
  rig.finish(1, 32);
  rig.answer_all(rig.step());
  rig.store(3, "a", 32);
  EXPECT_EQ(rig.match(2, 33).kind, MatchResult::Kind::kHit);
  EXPECT_EQ(rig.hit(2, 33), 32);
}

TEST(FieldCases, F7AResultForARequestThatRunsIsIgnoredAndCounted) {
  CasesRig rig({.groups = {full(16)}});
  rig.store(1, "a", 64);
  rig.add(2, "a", 65);
  ASSERT_EQ(rig.hit(2, 65), 64);
  ASSERT_EQ(rig.admit(2, 65, 64), Status());
  const StepMetadata load = rig.step();
  rig.answer_all(load);
  ASSERT_EQ(rig.connector->take_load_outcomes().size(), 1U);
  rig.step(2, 64, 65);
  const std::int64_t before = rig.connector->metrics().ignored_results;
  rig.answer_all(load);
  EXPECT_EQ(rig.connector->metrics().ignored_results, before + 1);
  EXPECT_TRUE(rig.connector->take_load_outcomes().empty());
  rig.finish(2, 65);
  rig.answer_all(load);
  EXPECT_EQ(rig.connector->metrics().ignored_results, before + 2);
  EXPECT_TRUE(rig.connector->take_load_outcomes().empty());
}

// 50 requests of one prefix in one step: none waits for another's load, and the host's blocks are shared.
TEST(FieldCases, F9AnybodyMayLoadWhatSomebodyIsLoading) {
  CasesRig rig({.groups = {full(16)}}, {}, 1024, 1 << 16);
  rig.store(1, "a", 10'000);
  for (std::uint64_t id = 2; id <= 51; ++id) {
    rig.add(id, "a", 10'001);
    ASSERT_EQ(rig.hit(id, 10'001), 10'000);
    ASSERT_EQ(rig.admit(id, 10'001, 10'000), Status());
  }
  EXPECT_EQ(rig.connector->metrics().pinned_slots, 625);
  const StepMetadata loads = rig.step();
  EXPECT_EQ(loads.jobs.size(), 50U);
  rig.answer_all(loads);
  EXPECT_EQ(rig.connector->take_load_outcomes().size(), 50U);
}

// A copy that ends with an error after its time: the request is told, and nothing of the load is used.
TEST(FieldCases, F11ALoadThatIsGivenUpFreesItsRequest) {
  CasesRig rig({.groups = {full(16)}});
  rig.store(1, "a", 64);
  rig.add(2, "a", 65);
  ASSERT_EQ(rig.hit(2, 65), 64);
  ASSERT_EQ(rig.admit(2, 65, 64), Status());
  const StepMetadata load = rig.step();
  ASSERT_EQ(load.jobs.size(), 1U);
  EXPECT_TRUE(rig.connector->take_load_outcomes().empty());
  EXPECT_EQ(rig.connector->metrics().pinned_device_blocks, 4) << "the copy may still write there";
  rig.answer(load, load.jobs[0], StatusCode::kDeadlineExceeded);
  const std::vector<LoadOutcome> outcomes = rig.connector->take_load_outcomes();
  ASSERT_EQ(outcomes.size(), 1U);
  EXPECT_NE(outcomes[0].status, StatusCode::kOk);
  EXPECT_EQ(rig.connector->metrics().failed_load_blocks, 4);
  rig.finish(2, 0);
  rig.expect_idle();
}

}  // namespace
}  // namespace hostkv::testing
