// What the scheduler side does with the engine's own cache: joint lookups, copies from the device, pins that are given
// back, engines that take fewer tokens or have habits of their own.

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/cases_rig.h"
#include "tests/support/connector_harness.h"

namespace hostkv::testing {
namespace {

std::vector<StatusCode> outcomes_of(CasesRig& rig) {
  std::vector<StatusCode> codes;
  for (const LoadOutcome& outcome : rig.connector->take_load_outcomes()) {
    codes.push_back(outcome.status);
  }
  return codes;
}

TEST(SchedulerDevice, LoadsFromTheHostOnlyWhatTheDeviceDoesNotHave) {
  CasesRig rig({.groups = {full(16)}});
  rig.store(1, "abc", 48);
  const BlockId cached = rig.cache_new("abc", 0, 32);
  rig.add(2, "abc", 49);
  ASSERT_EQ(rig.hit(2, 49), 48);
  EXPECT_EQ(rig.device.num_pins(), 1);
  ASSERT_EQ(rig.admit(2, 49, 48), Status());
  const StepMetadata step = rig.step();
  EXPECT_EQ(blocks_of_group(step, 0, Direction::kLoad), 2);
  ASSERT_EQ(blocks_of_group(step, 0, Direction::kDeviceCopy), 1);
  const auto copy = std::ranges::find(step.jobs, Direction::kDeviceCopy, &StepJob::direction);
  EXPECT_EQ(copy->blocks[0].slot.value(), cached.value());
  EXPECT_EQ(copy->blocks[0].block, rig.tables[2][0][1]);
  rig.answer(step, step.jobs[0]);
  EXPECT_TRUE(outcomes_of(rig).empty()) << "both parts are the load";
  rig.answer(step, step.jobs[1]);
  EXPECT_EQ(outcomes_of(rig), std::vector{StatusCode::kOk});
  rig.finish(2, 48);
  rig.answer_all(rig.step());
  rig.expect_idle();
}

TEST(SchedulerDevice, AStepsLoadsAndCopiesAreNamedWithTheirRequestUntilTheNextStep) {
  CasesRig rig({.groups = {full(16)}});
  rig.store(1, "abc", 48);
  rig.cache_new("abc", 0, 32);
  EXPECT_TRUE(rig.connector->take_started_loads().empty()) << "stores are nobody's load";
  rig.add(2, "abc", 49);
  ASSERT_EQ(rig.hit(2, 49), 48);
  ASSERT_EQ(rig.admit(2, 49, 48), Status());
  EXPECT_TRUE(rig.connector->take_started_loads().empty()) << "nothing was sent yet";
  const StepMetadata step = rig.step();
  const std::vector<StartedLoad> started = rig.connector->take_started_loads();
  ASSERT_EQ(started.size(), 2U);
  ASSERT_EQ(step.jobs.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(started[i].request, RequestId{2});
    EXPECT_EQ(started[i].job, step.jobs[i].id);
  }
  EXPECT_TRUE(rig.connector->take_started_loads().empty()) << "each is told once";
  rig.answer_all(step);
}

TEST(SchedulerDevice, LoadsOfAStepThatWereNotTakenAreForgottenWithTheNext) {
  CasesRig rig({.groups = {full(16)}});
  rig.store(1, "abc", 48);
  rig.add(2, "abc", 49);
  ASSERT_EQ(rig.hit(2, 49), 48);
  ASSERT_EQ(rig.admit(2, 49, 48), Status());
  const StepMetadata step = rig.step();
  rig.finish(2, 48);
  rig.step();
  EXPECT_TRUE(rig.connector->take_started_loads().empty());
  rig.answer_all(step);
}

// R18: running requests come first.
TEST(SchedulerDevice, APromiseThatIsNotTakenInItsStepPinsNoDeviceBlockAnyMore) {
  CasesRig rig({.groups = {full(16)}});
  rig.store(1, "abc", 48);
  rig.cache_new("abc", 0, 32);
  rig.add(2, "abc", 49);
  ASSERT_EQ(rig.hit(2, 49), 48);
  rig.step();
  EXPECT_EQ(rig.device.num_pins(), 0);
  ASSERT_EQ(rig.hit(2, 49), 48);
  EXPECT_EQ(rig.device.num_pins(), 0) << "what kept it waiting may have been our own pins";
  rig.step();
  ASSERT_EQ(rig.hit(2, 49), 48);
  EXPECT_EQ(rig.device.num_pins(), 1);
  rig.step();
  // Taken later: looked up again, and loaded from where the blocks are now.
  ASSERT_EQ(rig.admit(2, 49, 48), Status());
  const StepMetadata step = rig.step();
  EXPECT_EQ(blocks_of_group(step, 0, Direction::kDeviceCopy), 1);
  rig.answer_all(step);
  EXPECT_EQ(outcomes_of(rig), std::vector{StatusCode::kOk});
}

TEST(SchedulerDevice, ALoadWhoseDeviceBlockWasHandedOutMeanwhileFailsAtOnce) {
  CasesRig rig({.groups = {full(16)}}, {}, 64, 2);
  const BlockId cached = rig.cache_new("a", 0, 16);
  rig.add(2, "a", 17);
  ASSERT_EQ(rig.hit(2, 17), 16);
  rig.step();
  while (rig.device.take() != cached) {
  }
  rig.tables[2] = {{BlockId{1}, BlockId{2}}};
  ASSERT_EQ(rig.tell(2, 16), Status());
  EXPECT_EQ(outcomes_of(rig), std::vector{StatusCode::kUnavailable});
  EXPECT_EQ(rig.hit(2, 17), 0);
  EXPECT_EQ(rig.device.num_pins(), 0);
}

TEST(SchedulerDevice, PinsOfTheDeviceNeverTakeTheRoomOfTheLoad) {
  CasesRig rig({.groups = {full(16)}}, {}, 64, 3);
  rig.store(1, "ab", 32);
  rig.cache_new("ab", 0, 16);
  rig.cache_new("ab", 0, 32);
  rig.add(2, "ab", 33);
  ASSERT_EQ(rig.hit(2, 33), 32) << "from the host alone: two pinned and two to be filled are more than three";
  EXPECT_EQ(rig.device.num_pins(), 0);
}

TEST(SchedulerDevice, AfterAFailedDeviceCopyTheRequestLoadsFromTheHost) {
  CasesRig rig({.groups = {full(16)}});
  rig.store(1, "ab", 32);
  rig.cache_new("ab", 0, 32);
  rig.add(2, "ab", 33);
  ASSERT_EQ(rig.hit(2, 33), 32);
  ASSERT_EQ(rig.admit(2, 33, 32), Status());
  const StepMetadata step = rig.step();
  for (const StepJob& job : step.jobs) {
    rig.answer(step, job, job.direction == Direction::kDeviceCopy ? StatusCode::kDeviceError : StatusCode::kOk);
  }
  EXPECT_EQ(outcomes_of(rig), std::vector{StatusCode::kDeviceError});
  ASSERT_EQ(rig.hit(2, 33), 32);
  ASSERT_EQ(rig.admit(2, 33, 32), Status());
  const StepMetadata again = rig.step();
  EXPECT_EQ(blocks_of_group(again, 0, Direction::kLoad), 2);
  EXPECT_EQ(blocks_of_group(again, 0, Direction::kDeviceCopy), 0);
}

TEST(SchedulerDevice, AnEngineMayTakeFewerTokensThanItWasOffered) {
  CasesRig rig({.groups = {full(16), window(16, 17)}});
  rig.store(1, "abcd", 64);
  rig.add(2, "abcd", 65);
  ASSERT_EQ(rig.hit(2, 65), 64);
  ASSERT_EQ(rig.admit(2, 65, 32), Status());
  const StepMetadata step = rig.step();
  EXPECT_EQ(blocks_of_group(step, 0, Direction::kLoad), 2);
  EXPECT_EQ(blocks_of_group(step, 1, Direction::kLoad), 1) << "the window at 32";
  rig.answer_all(step);
  EXPECT_EQ(outcomes_of(rig), std::vector{StatusCode::kOk});
}

TEST(SchedulerDevice, ALoadToABoundaryWithoutItsStateFailsAndSchedulerBlocksAreOfferedThen) {
  CasesRig rig({.groups = {full(32), mamba(32)}, .hash_block_tokens = 16});
  ASSERT_TRUE(rig.connector->geometry().fine_hits());
  rig.store(1, "abcdef", 96, 1, {64, 80});
  rig.add(2, "abcdef", 97);
  ASSERT_EQ(rig.hit(2, 97), 80);
  ASSERT_EQ(rig.admit(2, 97, 48), Status());
  EXPECT_EQ(outcomes_of(rig), std::vector{StatusCode::kUnavailable}) << "no state at 48";
  ASSERT_EQ(rig.hit(2, 97), 64);
  ASSERT_EQ(rig.admit(2, 97, 32), Status());
  EXPECT_EQ(outcomes_of(rig), std::vector{StatusCode::kUnavailable}) << "nor at 32";
  EXPECT_EQ(rig.hit(2, 97), 0) << "this cannot go on for ever";
  rig.expect_idle();
}

TEST(SchedulerDevice, BehindADeviceHitThatTheEngineHasDamagedNothingIsStored) {
  const GeometrySpec spec{.groups = {full(32), mamba(32)}, .hash_block_tokens = 16};
  CasesRig rig(spec, {}, 64, 64, EngineTraits{.damages_fine_hits = true});
  rig.add(1, "abcdef", 96);
  ASSERT_EQ(rig.admit(1, 96), Status());
  EXPECT_TRUE(rig.step(1, 16, 96, {rig.hand_off(1, "abcdef", 1, 96)}).jobs.empty())
      << "a hit of 16 ends inside a block";
  rig.add(2, "uvwxyz", 96);
  ASSERT_EQ(rig.admit(2, 96), Status());
  EXPECT_FALSE(rig.step(2, 32, 96, {rig.hand_off(2, "uvwxyz", 1, 96)}).jobs.empty());
}

// R8: the engine has taken the block back in the same pass.
TEST(SchedulerDevice, AHandOffOfABlockThatLostItsKeyIsIgnored) {
  CasesRig rig({.groups = {full(32), mamba(32)}});
  rig.add(1, "ab", 64);
  ASSERT_EQ(rig.admit(1, 64), Status());
  BoundaryHandOff stale = rig.hand_off(1, "ab", 1, 64);
  rig.device.drop_keys(stale.block);
  EXPECT_TRUE(rig.step(1, 0, 64, {stale}).jobs.empty());
  EXPECT_EQ(rig.connector->metrics().ignored_hand_offs, 1);
}

TEST(SchedulerDevice, AHashListThatShrinksLimitsLookupsAndStores) {
  CasesRig rig({.groups = {full(16)}});
  rig.store(1, "abcd", 64);
  rig.add(2, "abcd", 65);
  ASSERT_EQ(rig.hit(2, 65), 64);
  ASSERT_EQ(rig.connector->truncate_block_hashes(RequestId{2}, 2), Status());
  EXPECT_EQ(rig.hit(2, 65), 32);
  EXPECT_EQ(rig.connector->truncate_block_hashes(RequestId{2}, 9), Status()) << "more than there are: as it is";
  EXPECT_EQ(rig.hit(2, 65), 32);
  EXPECT_EQ(rig.connector->truncate_block_hashes(RequestId{2}, -1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(rig.connector->truncate_block_hashes(RequestId{9}, 1).code(), StatusCode::kNotFound);
  // Another continuation: its blocks are stored under its own hashes.
  const auto other = hashes_of("abxy", 4);
  const std::span<const std::byte> added = std::span(other).subspan(2 * CasesRig::kHashBytes);
  ASSERT_EQ(rig.connector->append_block_hashes(RequestId{2}, added, CasesRig::kHashBytes), Status());
  ASSERT_EQ(rig.admit(2, 65), Status());
  EXPECT_EQ(blocks_of_group(rig.step(2, 0, 64), 0, Direction::kStore), 2);
}

// The session goes back while its request runs: what it computes from there on is stored under its own hashes.
TEST(SchedulerDevice, WhatAShrunkenRequestComputesAnewIsStored) {
  CasesRig rig({.groups = {full(16)}});
  rig.add(1, "abcd", 64);
  ASSERT_EQ(rig.admit(1, 64), Status());
  rig.answer_all(rig.step(1, 0, 64));
  ASSERT_EQ(rig.connector->truncate_block_hashes(RequestId{1}, 2), Status());
  const auto other = hashes_of("abxy", 4);
  const std::span<const std::byte> added = std::span(other).subspan(2 * CasesRig::kHashBytes);
  ASSERT_EQ(rig.connector->append_block_hashes(RequestId{1}, added, CasesRig::kHashBytes), Status());
  rig.answer_all(rig.step(1, 32, 64));
  rig.add(2, "abxy", 65);
  EXPECT_EQ(rig.hit(2, 65), 64);
}

// A load of the old tokens would be a wrong hit.
TEST(SchedulerDevice, APromiseBehindTheShrunkenHashesIsDropped) {
  CasesRig rig({.groups = {full(16)}});
  rig.store(1, "abcd", 64);
  rig.add(2, "abcd", 65);
  ASSERT_EQ(rig.hit(2, 65), 64);
  ASSERT_EQ(rig.connector->truncate_block_hashes(RequestId{2}, 2), Status());
  EXPECT_EQ(rig.connector->metrics().pinned_slots, 0);
  EXPECT_EQ(rig.admit(2, 65, 64).code(), StatusCode::kInvalidArgument);
}

// R18: what the host drops again is not saved again and again.
TEST(SchedulerDevice, LazyStoresOfAnIdleEngineComeToAnEndWhateverTheHostHolds) {
  ConnectorOptions options;
  options.store_mode = StoreMode::kLazy;
  for (const std::uint64_t host : {1U, 5U, 9U, 20U}) {
    for (const std::uint32_t device : {3U, 8U, 15U}) {
      CasesRig rig({.groups = {full(16)}}, options, host, device);
      for (std::uint32_t i = 0; i < device; ++i) {
        rig.cache_new(std::string(1, static_cast<char>('a' + i)), 0, 16);
      }
      int steps = 0;
      for (; rig.connector->has_pending_work() && steps < 50; ++steps) {
        rig.answer_all(rig.step());
      }
      EXPECT_LT(steps, 20) << "host " << host << ", device " << device;
      EXPECT_LE(rig.connector->metrics().stored_blocks, device);
      EXPECT_GT(rig.connector->metrics().stored_blocks, 0);
      rig.expect_idle();
    }
  }
}

// An engine that lists its keys a group at a time, and the null block.
TEST(SchedulerDevice, ABlockThatIsListedTwiceGoesBackOnce) {
  struct Odd final : EngineBlocks {
    std::int64_t pins = 0;
    std::vector<std::byte> hash = hashes_of("a", 1);
    void pin(std::span<const BlockId> blocks) override {
      EXPECT_EQ(std::ranges::count(blocks, kNullBlock), 0);
      pins += std::ssize(blocks);
    }
    void unpin(std::span<const BlockId> blocks) override { pins -= std::ssize(blocks); }
    [[nodiscard]] GroupTable block_table(RequestId, GroupIndex, std::int64_t) override { return {}; }
    [[nodiscard]] bool shows_cache() const override { return true; }
    [[nodiscard]] std::int64_t num_free_blocks() const override { return 8; }
    [[nodiscard]] std::uint64_t num_handed_out() const override { return 8; }
    void next_victims(std::size_t, std::vector<CachedBlock>& victims) override {
      for (const std::uint32_t block : {1U, 2U, 0U, 1U}) {
        victims.push_back({BlockId{block}, GroupIndex{victims.size() < 2 ? 0U : 1U}, hash});
      }
    }
  } engine;
  ConnectorOptions options;
  options.store_mode = StoreMode::kLazy;
  auto made = SchedulerConnector::create(resolved({.groups = {full(16), full(16, false)}}), options, 1, engine);
  ASSERT_TRUE(made.has_value());
  ASSERT_EQ((*made)->on_worker_capacity({RankIndex{0}, 64, 128, {1, 1}, (*made)->geometry().fingerprint()}), Status());
  for (int i = 0; i < 3; ++i) {
    const auto bytes = (*made)->build_step_metadata({});
    ASSERT_TRUE(bytes.has_value());
    const Result<StepMetadata> step = decode_step_metadata(*bytes);
    ASSERT_TRUE(step.has_value());
    for (const StepJob& job : step->jobs) {
      const JobResult result{(*made)->epoch(), job.id, RankIndex{0}, StatusCode::kOk, {}};
      (*made)->on_worker_results({&result, 1});
    }
  }
  EXPECT_EQ(engine.pins, 0);
  EXPECT_GT((*made)->metrics().stored_blocks, 0);
}

// The blocks of copies in flight are in no queue when the reset looks, and come back with the keys of before.
TEST(SchedulerDevice, AResetDuringCopiesTrustsNothingOfTheDevice) {
  CasesRig rig({.groups = {full(16)}}, {}, 64, 8);
  rig.add(1, "ab", 32);
  ASSERT_EQ(rig.admit(1, 32), Status());
  rig.cache("ab", 0, 16, rig.tables[1][0][0]);
  rig.cache("ab", 0, 32, rig.tables[1][0][1]);
  const StepMetadata stores = rig.step(1, 0, 32);
  const std::vector<BlockId> owned = rig.tables[1][0];
  rig.finish(1, 32);
  for (const BlockId block : owned) {
    rig.device.leave(block);
  }
  EXPECT_FALSE(rig.connector->reset());
  rig.answer_all(stores);
  rig.add(2, "ab", 33);
  EXPECT_EQ(rig.hit(2, 33), 0);
}

TEST(SchedulerDevice, ATableThatNamesASourceOfTheLoadIsRefused) {
  CasesRig rig({.groups = {full(16)}});
  rig.store(1, "ab", 32);
  const BlockId cached = rig.cache_new("ab", 0, 16);
  rig.add(2, "ab", 33);
  ASSERT_EQ(rig.hit(2, 33), 32);
  rig.tables[2] = {{cached, rig.device.take(), rig.device.take()}};
  const Status refused = rig.tell(2, 32);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("its source or filled twice"), std::string::npos) << refused.message();
  EXPECT_EQ(rig.admit(2, 33, 32), Status()) << "the promise is still good";
}

// The engine's answers change inside one lookup.
TEST(SchedulerDevice, AnEngineThatContradictsItselfIsLeftOutOfTheLookup) {
  struct Fickle final : EngineBlocks {
    int calls = 0;
    void pin(std::span<const BlockId>) override {}
    void unpin(std::span<const BlockId>) override {}
    [[nodiscard]] GroupTable block_table(RequestId, GroupIndex, std::int64_t) override { return {}; }
    [[nodiscard]] bool shows_cache() const override { return true; }
    void find_cached(GroupIndex, std::span<const std::byte>, std::size_t, std::span<BlockId> blocks) override {
      std::ranges::fill(blocks, ++calls <= 6 ? BlockId{5} : kNullBlock);
    }
  } engine;
  auto made = SchedulerConnector::create(resolved({.groups = {full(16), window(16, 33)}}), {}, 1, engine);
  ASSERT_TRUE(made.has_value());
  ASSERT_EQ((*made)->on_worker_capacity({RankIndex{0}, 64, 128, {1, 1}, (*made)->geometry().fingerprint()}), Status());
  ASSERT_EQ((*made)->add_request({.id = RequestId{1}, .num_prompt_tokens = 65}), Status());
  ASSERT_EQ((*made)->append_block_hashes(RequestId{1}, hashes_of("abcd", 4), 32), Status());
  const auto match = (*made)->match_prefix(RequestId{1}, 65, 0);
  ASSERT_TRUE(match.has_value());
  EXPECT_EQ(match->num_external_tokens, 0);
}

// What is looked up again must answer as the lookup did: with the draft's unit.
TEST(SchedulerDevice, ATakenBoundaryNeedsTheUnitOfADraftGroupToo) {
  CasesRig rig({.groups = {draft(full(16))}}, {}, 64, 8);
  rig.cache_new("abc", 0, 16);
  rig.cache_new("abc", 0, 32);
  const BlockId unit = rig.cache_new("abc", 0, 48);
  rig.add(1, "abc", 64);
  ASSERT_EQ(rig.hit(1, 64), 32);
  rig.step();
  rig.device.drop_keys(unit);
  ASSERT_EQ(rig.admit(1, 64, 32), Status());
  const std::vector<LoadOutcome> outcomes = rig.connector->take_load_outcomes();
  ASSERT_EQ(outcomes.size(), 1U);
  EXPECT_EQ(outcomes[0].status, StatusCode::kUnavailable);
}

TEST(SchedulerDevice, LazyNeedsAnEngineThatShowsItsCache) {
  FakeBlocks blocks;
  ConnectorOptions options;
  options.store_mode = StoreMode::kLazy;
  const auto made = SchedulerConnector::create(resolved({.groups = {full(16)}}), options, 1, blocks);
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(made.error().message().find("store_mode is lazy"), std::string::npos) << made.error().message();
}

TEST(SchedulerDevice, AfterAResetWithBlocksOnTheDeviceNothingOfThemIsTrusted) {
  ConnectorOptions options;
  options.store_mode = StoreMode::kLazy;
  CasesRig rig({.groups = {full(16)}}, options, 64, 8);
  rig.cache_new("old", 0, 16);
  EXPECT_TRUE(rig.connector->reset());
  EXPECT_TRUE(rig.step().jobs.empty()) << "the old block is not saved";
  rig.add(1, "old", 17);
  EXPECT_EQ(rig.hit(1, 17), 0) << "nor copied";
  ASSERT_EQ(rig.admit(1, 17), Status());
  EXPECT_EQ(blocks_of_group(rig.step(1, 0, 16), 0, Direction::kStore), 1) << "what is computed now is stored at once";
}

}  // namespace
}  // namespace hostkv::testing
