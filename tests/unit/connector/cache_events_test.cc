// What an engine that publishes cache events is told.

#include <gtest/gtest.h>

#include <algorithm>

#include "offload/offload_key.h"
#include "tests/support/cache_ledger.h"
#include "tests/support/cases_rig.h"
#include "tests/support/random.h"
#include "tests/support/test_seed.h"

namespace hostkv::testing {
namespace {

constexpr EngineTraits kRecords{.damages_fine_hits = false, .record_events = true};

ConnectorOptions lazy() {
  ConnectorOptions options;
  options.store_mode = StoreMode::kLazy;
  return options;
}

std::vector<CacheEventKind> kinds_of(const std::vector<CacheEvent>& events) {
  std::vector<CacheEventKind> kinds;
  std::ranges::transform(events, std::back_inserter(kinds), &CacheEvent::kind);
  return kinds;
}
using Kinds = std::vector<CacheEventKind>;

TEST(CacheEvents, AStoreIsPlannedWithItsRequestAndStoredWhenAllRanksHaveAnswered) {
  CasesRig rig({.groups = {full(16)}, .parallel = {.tp = 2}}, {}, 64, 64, kRecords);
  rig.add(7, "ab", 32);
  ASSERT_EQ(rig.admit(7, 32), Status());
  const StepMetadata step = rig.step(7, 0, 32);
  const std::vector<CacheEvent> planned = rig.connector->take_cache_events();
  ASSERT_EQ(kinds_of(planned), Kinds(2, CacheEventKind::kPlanned));
  for (std::size_t i = 0; i < 2; ++i) {
    const auto boundary = static_cast<std::int64_t>(16 * (i + 1));
    EXPECT_EQ(planned[i].boundary_tokens, boundary);
    EXPECT_TRUE(planned[i].has_request);
    EXPECT_EQ(planned[i].request, RequestId{7});
    EXPECT_EQ(planned[i].group, GroupIndex{0});
    EXPECT_TRUE(std::ranges::equal(planned[i].hash_bytes(), rig.hash("ab", boundary)));
  }
  const JobResult first{step.epoch, step.jobs[0].id, RankIndex{0}, StatusCode::kOk, {}};
  rig.connector->on_worker_results({&first, 1});
  EXPECT_TRUE(rig.connector->take_cache_events().empty()) << "one rank of two";
  rig.answer_all(step);
  EXPECT_EQ(kinds_of(rig.connector->take_cache_events()), Kinds(2, CacheEventKind::kStored));
}

TEST(CacheEvents, AFailedStoreIsDroppedAndAFailedLoadRemovesItsKeys) {
  CasesRig rig({.groups = {full(16)}}, {}, 64, 64, kRecords);
  rig.add(1, "a", 16);
  ASSERT_EQ(rig.admit(1, 16), Status());
  StepMetadata step = rig.step(1, 0, 16);
  rig.answer(step, step.jobs[0], StatusCode::kDeviceError);
  EXPECT_EQ(kinds_of(rig.connector->take_cache_events()), (Kinds{CacheEventKind::kPlanned, CacheEventKind::kDropped}));
  rig.store(2, "b", 16);
  rig.connector->take_cache_events();
  rig.add(3, "b", 17);
  ASSERT_EQ(rig.hit(3, 17), 16);
  ASSERT_EQ(rig.admit(3, 17, 16), Status());
  step = rig.step();
  rig.answer(step, step.jobs[0], StatusCode::kDeviceError);
  const std::vector<CacheEvent> events = rig.connector->take_cache_events();
  ASSERT_EQ(kinds_of(events), Kinds{CacheEventKind::kRemoved});
  EXPECT_TRUE(std::ranges::equal(events[0].hash_bytes(), rig.hash("b", 16)));
}

TEST(CacheEvents, AStoreThatNeedsRoomRemovesTheOldestKey) {
  CasesRig rig({.groups = {full(16)}}, {}, 1, 64, kRecords);
  rig.store(1, "a", 16);
  rig.store(2, "b", 16);
  const std::vector<CacheEvent> events = rig.connector->take_cache_events();
  ASSERT_EQ(kinds_of(events), (Kinds{CacheEventKind::kPlanned, CacheEventKind::kStored, CacheEventKind::kRemoved,
                                     CacheEventKind::kPlanned, CacheEventKind::kStored}));
  EXPECT_EQ(events[2].hash, events[0].hash);
}

TEST(CacheEvents, AResetEndsPlannedStoresAndClearsTheRestAtOnce) {
  CasesRig rig({.groups = {full(16)}}, {}, 64, 64, kRecords);
  rig.store(1, "abc", 48);
  rig.add(2, "de", 32);
  ASSERT_EQ(rig.admit(2, 32), Status());
  const StepMetadata step = rig.step(2, 0, 32);
  rig.connector->take_cache_events();
  EXPECT_FALSE(rig.connector->reset());
  EXPECT_EQ(kinds_of(rig.connector->take_cache_events()),
            (Kinds{CacheEventKind::kDropped, CacheEventKind::kDropped, CacheEventKind::kCleared}));
  rig.answer_all(step);
  EXPECT_TRUE(rig.connector->take_cache_events().empty()) << "late answers change nothing";
}

TEST(CacheEvents, WhatTheDeviceDropsIsPlannedForNobody) {
  CasesRig rig({.groups = {full(16)}}, lazy(), 64, 4, kRecords);
  rig.cache_new("a", 0, 16);
  rig.answer_all(rig.step());
  const std::vector<CacheEvent> events = rig.connector->take_cache_events();
  ASSERT_EQ(kinds_of(events), (Kinds{CacheEventKind::kPlanned, CacheEventKind::kStored}));
  EXPECT_FALSE(events[0].has_request);
  EXPECT_EQ(events[0].boundary_tokens, 0);
  EXPECT_TRUE(std::ranges::equal(events[0].hash_bytes(), rig.hash("a", 16)));
}

TEST(CacheEvents, NothingIsRecordedForAnEngineThatDoesNotAsk) {
  CasesRig rig({.groups = {full(16)}}, {}, 1, 64);
  rig.store(1, "a", 16);
  rig.store(2, "b", 16);
  rig.connector->reset();
  EXPECT_TRUE(rig.connector->take_cache_events().empty());
}

TEST(CacheEvents, TheGroupAndTheSizeOfAHashComeBackFromItsTag) {
  Random random(test_seed());
  for (int i = 0; i < 1000; ++i) {
    SCOPED_TRACE("seed " + std::to_string(test_seed()) + " round " + std::to_string(i));
    const GroupIndex group{static_cast<std::uint32_t>(pick(random, 0, 0x7FFFFFFF))};
    const auto size = static_cast<std::size_t>(pick(random, 1, 64));
    const std::uint64_t name_space = random();
    const KeyTagParts parts = split_key_tag(make_key_tag(group, size, name_space), name_space);
    ASSERT_EQ(parts.group, group);
    ASSERT_EQ(parts.hash_size_bytes, size);
  }
}

// A device whose blocks come and go, a host that is too small, copies that fail, resets.
TEST(CacheEvents, ReplayedTheyGiveTheStoredKeysOfLazyStoresToo) {
  RecordProperty("seed", std::to_string(test_seed()));
  Random random(test_seed());
  CacheLedger ledger;
  CasesRig rig({.groups = {full(16)}}, lazy(), 5, 8, kRecords);
  std::vector<StepMetadata> in_flight;
  for (std::uint64_t i = 0; i < test_rounds(3000); ++i) {
    SCOPED_TRACE("seed " + std::to_string(test_seed()) + " round " + std::to_string(i));
    if (one_in(random, 2) && rig.device.num_free_blocks() > 0) {
      rig.cache_new(std::string(1, static_cast<char>(pick(random, 1, 12))), 0, 16);
    }
    in_flight.push_back(rig.step());
    for (; !in_flight.empty() && one_in(random, 2); in_flight.erase(in_flight.begin())) {
      for (const StepJob& job : in_flight[0].jobs) {
        rig.answer(in_flight[0], job, one_in(random, 6) ? StatusCode::kDeviceError : StatusCode::kOk);
      }
    }
    if (one_in(random, 60)) {
      for (const BlockId block : rig.device.free_queue()) {
        rig.device.drop_keys(block);
      }
      rig.connector->reset();
    }
    ledger.replay(rig.connector->take_cache_events());
    ASSERT_EQ(std::ssize(ledger.stored), rig.connector->metrics().stored_keys);
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
  for (const std::int64_t count : ledger.num_events) {
    EXPECT_GT(count, 0) << "every kind was seen";
  }
}

}  // namespace
}  // namespace hostkv::testing
