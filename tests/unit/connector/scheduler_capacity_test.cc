#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/connector_harness.h"
#include "tests/support/geometry_builders.h"

namespace hostkv::testing {
namespace {

Geometry hybrid() {
  return resolved({.groups = {full(4), window(4, 8)}});
}

void expect_refused(const Status& status, StatusCode code, const std::vector<std::string>& parts) {
  EXPECT_EQ(status.code(), code) << status.message();
  for (const std::string& part : parts) {
    EXPECT_NE(status.message().find(part), std::string::npos) << "want \"" << part << "\" in " << status.message();
  }
}

TEST(SchedulerCreate, RefusesANumberOfRanksThatTheGeometryDoesNotHave) {
  FakeBlocks engine;
  for (const std::int64_t ranks : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{3}}) {
    const auto made = SchedulerConnector::create(with_workers(hybrid(), 2), {}, ranks, engine);
    ASSERT_FALSE(made.has_value());
    expect_refused(made.error(), StatusCode::kInvalidArgument,
                   {"num_ranks", std::to_string(ranks), "2 workers (tp 2 x pp 1 x pcp 1"});
  }
}

class Unservable : public ::testing::TestWithParam<KvCacheGroup> {};

// A group that nothing could fill again: half a hit would be wrong tokens.
TEST_P(Unservable, StoresNothingAndFindsNothing) {
  SchedulerRig rig(resolved({.groups = {full(4), GetParam()}}), 1);
  WorkerCapacity none = rig.capacity(0, 0);
  none.slots_per_slab = {0, 0};
  ASSERT_EQ(rig.connector->on_worker_capacity(none), Status());
  EXPECT_TRUE(rig.run(1, "abcd", 16).jobs.empty());
  rig.add(2, "abcd", 17);
  EXPECT_EQ(rig.match(2, 17), 0);
}

KvCacheGroup never_transferred() {
  KvCacheGroup group = window(4, 8);
  group.transferable = false;
  return group;
}
KvCacheGroup not_cacheable(KvCacheGroup group) {
  group.cacheable = false;
  return group;
}
INSTANTIATE_TEST_SUITE_P(SchedulerCapacity, Unservable,
                         ::testing::Values(never_transferred(), not_cacheable(full(4)), not_cacheable(mamba(4)),
                                           mamba(4, MambaMode::kNone)));

TEST(SchedulerCreate, RefusesOptionsOutsideTheirRange) {
  FakeBlocks engine;
  ConnectorOptions options;
  options.copy_threads = 0;
  const auto made = SchedulerConnector::create(hybrid(), options, 1, engine);
  ASSERT_FALSE(made.has_value());
  expect_refused(made.error(), StatusCode::kInvalidArgument, {"copy_threads", "1 .. 64"});
}

TEST(SchedulerCapacity, AnswersNothingAndStoresNothingUntilEveryRankReported) {
  SchedulerRig rig(resolved({.groups = {full(4)}}), 2);
  ASSERT_TRUE(rig.connector->on_worker_capacity(rig.capacity(1, 16)).ok());
  EXPECT_TRUE(rig.run(1, "abcd", 16).jobs.empty());
  rig.add(2, "abcd", 17);
  EXPECT_EQ(rig.match(2, 17), 0);
  EXPECT_EQ(rig.connector->metrics().lookups, 0);
  EXPECT_EQ(rig.connector->metrics().capacity_bytes, 0);
  ASSERT_TRUE(rig.connector->on_worker_capacity(rig.capacity(0, 16)).ok());
  rig.store(3, "abcd", 16);
  EXPECT_EQ(rig.match(2, 17), 16);
  rig.finish(2, 0);
  rig.expect_idle();
}

TEST(SchedulerCapacity, RefusesWrongReportsAndTakesTheRightOneAfterwards) {
  SchedulerRig rig(hybrid(), 2);
  WorkerCapacity other = rig.capacity(0, 8);
  other.fingerprint ^= 1;
  expect_refused(rig.connector->on_worker_capacity(other), StatusCode::kInvalidArgument,
                 {"rank 0", "another geometry", std::to_string(other.fingerprint)});
  expect_refused(rig.connector->on_worker_capacity(rig.capacity(2, 8)), StatusCode::kInvalidArgument,
                 {"rank 2", "0 .. 1"});
  WorkerCapacity short_list = rig.capacity(0, 8);
  short_list.slots_per_slab.pop_back();
  expect_refused(rig.connector->on_worker_capacity(short_list), StatusCode::kInvalidArgument, {"1 groups"});
  WorkerCapacity no_slot = rig.capacity(0, 8);
  no_slot.slots_per_slab[1] = 0;
  expect_refused(rig.connector->on_worker_capacity(no_slot), StatusCode::kInvalidArgument, {"group 1", "0 slots"});
  no_slot.slots_per_slab[1] = 65537;
  expect_refused(rig.connector->on_worker_capacity(no_slot), StatusCode::kInvalidArgument, {"65537", "1 .. 65536"});
  // Full and window want one block each at the first boundary.
  expect_refused(rig.connector->on_worker_capacity(rig.capacity(0, 1)), StatusCode::kInvalidArgument,
                 {"rank 0", "1 slabs", "needs 2"});
  EXPECT_TRUE(rig.connector->on_worker_capacity(rig.capacity(0, 2)).ok());
  expect_refused(rig.connector->on_worker_capacity(rig.capacity(0, 2)), StatusCode::kFailedPrecondition,
                 {"rank 0", "already"});
  EXPECT_EQ(rig.connector->metrics().capacity_bytes, 0) << "rank 1 is still missing";
  EXPECT_TRUE(rig.connector->on_worker_capacity(rig.capacity(1, 9)).ok());
  EXPECT_EQ(rig.connector->metrics().capacity_bytes, 2 * 128) << "R16: the smallest rank counts";
}

TEST(SchedulerCapacity, RefusesAPoolOfMorePlacesThanCanBeNumbered) {
  SchedulerRig rig(hybrid(), 1);
  expect_refused(rig.connector->on_worker_capacity(rig.capacity(0, std::uint64_t{1} << 62U)),
                 StatusCode::kInvalidArgument, {"rank 0", "slabs"});
  WorkerCapacity wide = rig.capacity(0, std::uint64_t{1} << 20U);
  wide.slots_per_slab = {65536, 65536};
  expect_refused(rig.connector->on_worker_capacity(wide), StatusCode::kInvalidArgument, {"rank 0", "places"});
  EXPECT_TRUE(rig.connector->on_worker_capacity(rig.capacity(0, 8)).ok());
}

// R16: ranks that differ in how many blocks fit into a slab agree on the smaller number.
TEST(SchedulerCapacity, UsesOnlyPlacesThatEveryRankHas) {
  SchedulerRig rig(resolved({.groups = {full(4)}}), 2);
  WorkerCapacity wide = rig.capacity(0, 4);
  wide.slots_per_slab = {4};
  WorkerCapacity narrow = rig.capacity(1, 6);
  narrow.slots_per_slab = {3};
  ASSERT_TRUE(rig.connector->on_worker_capacity(wide).ok());
  ASSERT_TRUE(rig.connector->on_worker_capacity(narrow).ok());
  const StepMetadata planned = rig.run(1, "abcdefghijklmnop", 64);
  ASSERT_EQ(planned.jobs.size(), 1U);
  EXPECT_EQ(planned.jobs[0].blocks.size(), 12U) << "4 slabs of 3 places";
  for (const StepBlock& block : planned.jobs[0].blocks) {
    EXPECT_LT(slab_of(block.slot), 4U);
    EXPECT_LT(index_in_slab(block.slot), 3U);
  }
  rig.answer_all(planned);
  rig.expect_idle();
}

TEST(SchedulerCapacity, AModelWithoutAnythingToOffloadNeverHits) {
  KvCacheGroup kept = full(4);
  kept.transferable = false;
  SchedulerRig rig(resolved({.groups = {kept}}), 1);
  rig.report_all(8);
  rig.store(1, "abcd", 16);
  rig.add(2, "abcd", 17);
  EXPECT_EQ(rig.match(2, 17), 0);
  rig.finish(2, 0);
  rig.expect_idle();
}

}  // namespace
}  // namespace hostkv::testing
