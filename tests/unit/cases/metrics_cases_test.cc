// Field cases K: numbers that add up.

#include <gtest/gtest.h>

#include "tests/support/cases_rig.h"

namespace hostkv::testing {
namespace {

TEST(FieldCases, K1TheHostIsAskedForWhatTheDeviceLacks) {
  CasesRig rig({.groups = {full(8)}});
  rig.store(1, "a", 800);
  const SchedulerMetrics before = rig.connector->metrics();
  rig.add(2, "a", 1000);
  ASSERT_EQ(rig.hit(2, 1000, 600), 200);
  ASSERT_EQ(rig.admit(2, 1000, 200, 600), Status());
  EXPECT_EQ(rig.connector->metrics().queried_tokens - before.queried_tokens, 400);
  EXPECT_EQ(rig.connector->metrics().hit_tokens - before.hit_tokens, 200);
}

// Admitted with 768 tokens of the device, preempted, admitted again with 8448 of the host: 8602 are computed.
TEST(FieldCases, K3AnAdmissionAfterAPreemptionCountsForItself) {
  CasesRig rig({.groups = {full(768)}});
  rig.store(1, "a", 8448);
  const SchedulerMetrics start = rig.connector->metrics();
  rig.add(2, "aaaaaaaaaaaab", 17'050);
  rig.hit(2, 17'050, 768);
  ASSERT_EQ(rig.admit(2, 17'050), Status()) << "the engine does without";
  const SchedulerMetrics first = rig.connector->metrics();
  EXPECT_EQ(first.queried_tokens - start.queried_tokens, 17'050 - 768);
  EXPECT_EQ(first.hit_tokens - start.hit_tokens, 0);
  const RequestId id{2};
  rig.step({.scheduled = {}, .hand_offs = {}, .preempted = {&id, 1}});
  ASSERT_EQ(rig.hit(2, 17'050), 8448);
  ASSERT_EQ(rig.admit(2, 17'050, 8448), Status());
  const SchedulerMetrics second = rig.connector->metrics();
  EXPECT_EQ(second.queried_tokens - first.queried_tokens, 17'050);
  EXPECT_EQ(second.hit_tokens - first.hit_tokens, 8448);
}

TEST(FieldCases, K5ARequestThatSkipsTheCacheIsNoMiss) {
  CasesRig rig({.groups = {full(16)}});
  rig.store(1, "a", 401);
  const SchedulerMetrics before = rig.connector->metrics();
  for (std::uint64_t id = 2; id <= 4; ++id) {
    rig.add(id, "a", 401, true);
    EXPECT_EQ(rig.hit(id, 401), 0);
    ASSERT_EQ(rig.admit(id, 401), Status());
    rig.answer_all(rig.step(id, 0, 401));
    rig.finish(id, 401);
  }
  const SchedulerMetrics after = rig.connector->metrics();
  EXPECT_EQ(after.queried_tokens, before.queried_tokens);
  EXPECT_EQ(after.hit_tokens, before.hit_tokens);
  EXPECT_EQ(after.lookups, before.lookups);
  EXPECT_EQ(after.stored_blocks, 25);
  rig.add(5, "a", 401);
  EXPECT_EQ(rig.hit(5, 401), 400);
}

// Numerator, denominator and what lies where.
TEST(FieldCases, K7TheHitRateIsTheQuotientOfTwoCounters) {
  CasesRig rig({.groups = {full(16)}});
  rig.store(1, "a", 1200);
  const SchedulerMetrics before = rig.connector->metrics();
  rig.add(2, "a", 5000);
  ASSERT_EQ(rig.hit(2, 5000), 1200) << "the prefix that is stored";
  ASSERT_EQ(rig.admit(2, 5000, 1200), Status());
  const SchedulerMetrics after = rig.connector->metrics();
  EXPECT_EQ(after.queried_tokens - before.queried_tokens, 5000);
  EXPECT_EQ(after.hit_tokens - before.hit_tokens, 1200);
  EXPECT_EQ(after.used_bytes, 75 * 128);
  EXPECT_EQ(after.capacity_bytes, 4096 * 128);
  EXPECT_EQ(after.stored_keys, 75);
}

TEST(FieldCases, K9ResultsAreInTheNumbersOfTheirStep) {
  CasesRig rig({.groups = {full(16)}});
  rig.add(1, "a", 64);
  ASSERT_EQ(rig.admit(1, 64), Status());
  const StepMetadata stores = rig.step(1, 0, 64);
  EXPECT_EQ(rig.connector->metrics().planned_store_blocks, 4);
  EXPECT_EQ(rig.connector->metrics().stored_blocks, 0);
  EXPECT_EQ(rig.connector->metrics().jobs_in_flight, 1);
  rig.answer_all(stores);
  EXPECT_EQ(rig.connector->metrics().stored_blocks, 4) << "before the next step is built";
  EXPECT_EQ(rig.connector->metrics().jobs_in_flight, 0);
}

// Attention has 3200 tokens, no state is left: the loss is the state's.
TEST(FieldCases, K11LostTokensNameTheGroupThatLostThem) {
  CasesRig rig({.groups = {full(64), mamba(64)}});
  for (std::int64_t boundary = 64; boundary <= 3200; boundary += 64) {
    rig.cache_new("a", 0, boundary);
  }
  rig.add(1, "a", 3300);
  EXPECT_EQ(rig.hit(1, 3300), 0);
  EXPECT_EQ(rig.connector->lost_tokens_by_group(), (std::vector<std::int64_t>{0, 3200}));
  EXPECT_EQ(rig.hit(1, 3300), 0) << "asked again while it waits";
  EXPECT_EQ(rig.connector->lost_tokens_by_group(), (std::vector<std::int64_t>{0, 3200}));
}

}  // namespace
}  // namespace hostkv::testing
