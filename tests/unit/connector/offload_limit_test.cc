// RequestInfo::max_offload_tokens: what a request does not want kept.

#include <gtest/gtest.h>

#include <algorithm>

#include "connector/withheld_hashes.h"
#include "tests/support/cases_rig.h"

namespace hostkv::testing {
namespace {

ConnectorOptions lazy() {
  ConnectorOptions options;
  options.store_mode = StoreMode::kLazy;
  return options;
}

void add_limited(CasesRig& rig, std::uint64_t id, const std::string& text, std::int64_t num_tokens,
                 std::int64_t limit) {
  ASSERT_EQ(rig.connector->add_request({.id = RequestId{id},
                                        .num_prompt_tokens = num_tokens,
                                        .skip_reading_cache = false,
                                        .max_offload_tokens = limit}),
            Status());
  const auto hashes = hashes_of(text, num_tokens / rig.connector->geometry().hash_block_tokens());
  ASSERT_EQ(rig.connector->append_block_hashes(RequestId{id}, hashes, CasesRig::kHashBytes), Status());
}

// Tokens of the text that a lookup finds, in the host alone: the device is to have none of them.
std::int64_t host_hit(CasesRig& rig, std::uint64_t id, const std::string& text, std::int64_t num_tokens) {
  rig.add(id, text, num_tokens);
  const std::int64_t hit = rig.hit(id, num_tokens);
  rig.finish(id, 0);
  return hit;
}

TEST(OffloadLimit, NoBoundaryBehindItIsStoredNorAtTheEnd) {
  CasesRig rig({.groups = {full(16), window(16, 33)}});
  add_limited(rig, 1, "abcdef", 96, 40);
  ASSERT_EQ(rig.admit(1, 96), Status());
  rig.answer_all(rig.step(1, 0, 64));
  rig.answer_all(rig.step(1, 64, 96));
  rig.finish(1, 96);
  rig.answer_all(rig.step());
  EXPECT_EQ(rig.connector->metrics().stored_blocks, 4);
  EXPECT_EQ(host_hit(rig, 2, "abcdef", 97), 32);
  rig.expect_idle();
}

TEST(OffloadLimit, OfZeroStoresNothingAndANegativeOneIsRefused) {
  CasesRig rig({.groups = {full(16)}});
  add_limited(rig, 1, "abc", 48, 0);
  ASSERT_EQ(rig.admit(1, 48), Status());
  EXPECT_TRUE(rig.step(1, 0, 48).jobs.empty());
  rig.finish(1, 48);
  EXPECT_TRUE(rig.step().jobs.empty());
  const Status refused = rig.connector->add_request(
      {.id = RequestId{2}, .num_prompt_tokens = 1, .skip_reading_cache = false, .max_offload_tokens = -1});
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("request 2: max_offload_tokens is -1; 0 or more"), std::string::npos)
      << refused.message();
}

TEST(OffloadLimit, HandOffsBehindItAreLeftOutInAStepAndAtTheEnd) {
  CasesRig rig({.groups = {full(16), mamba(16)}});
  add_limited(rig, 1, "abcdef", 96, 48);
  ASSERT_EQ(rig.admit(1, 96), Status());
  const StepMetadata step = rig.step(1, 0, 64, {rig.hand_off(1, "abcdef", 1, 32), rig.hand_off(1, "abcdef", 1, 64)});
  EXPECT_EQ(blocks_of_group(step, 1, Direction::kStore), 1);
  rig.answer_all(step);
  rig.finish(1, 96, {rig.hand_off(1, "abcdef", 1, 96)});
  EXPECT_TRUE(rig.step().jobs.empty());
  EXPECT_EQ(rig.connector->metrics().stored_blocks, 3);
}

TEST(OffloadLimit, LookupsAreNotAffected) {
  CasesRig rig({.groups = {full(16)}});
  rig.store(1, "abcdef", 96);
  add_limited(rig, 2, "abcdef", 97, 16);
  EXPECT_EQ(rig.hit(2, 97), 96);
}

// What a request that owns `tables[id]` has computed: cached, and free once it is finished.
class LazyLimit : public ::testing::Test {
 protected:
  CasesRig rig_{{.groups = {full(16)}}, lazy(), 256, 16};

  // Computes tokens [from, to) in one step; its blocks carry their keys.
  void compute(std::uint64_t id, const std::string& text, std::int64_t from, std::int64_t to) {
    rig_.answer_all(rig_.step(id, from, to));
    for (std::int64_t i = from / 16; i < to / 16; ++i) {
      rig_.cache(text, 0, 16 * (i + 1), rig_.tables[id][0][static_cast<std::size_t>(i)]);
    }
  }
  void finish(std::uint64_t id, std::int64_t num_tokens) {
    const std::vector<BlockId> owned = rig_.tables[id][0];
    rig_.finish(id, num_tokens);
    for (auto block = owned.rbegin(); block != owned.rend(); ++block) {
      rig_.device.leave(*block);
    }
  }
  void run(std::uint64_t id, const std::string& text, std::int64_t num_tokens) {
    ASSERT_EQ(rig_.admit(id, num_tokens), Status());
    compute(id, text, 0, num_tokens);
    finish(id, num_tokens);
  }
  // Steps until everything that the device may drop is saved.
  void save_all() {
    for (int i = 0; i < 50; ++i) {
      rig_.answer_all(rig_.step());
    }
  }
  void forget_device() {
    for (const BlockId block : rig_.device.free_queue()) {
      rig_.device.drop_keys(block);
    }
  }
};

TEST_F(LazyLimit, WhatTheDeviceDropsOfTheRequestBehindItIsNotSaved) {
  add_limited(rig_, 1, "abcdef", 96, 40);
  run(1, "abcdef", 96);
  save_all();
  EXPECT_EQ(rig_.connector->metrics().stored_blocks, 2);
  forget_device();
  EXPECT_EQ(host_hit(rig_, 2, "abcdef", 97), 32);
}

TEST_F(LazyLimit, AnUnlimitedRequestThatUsesTheBlocksHasThemSaved) {
  add_limited(rig_, 1, "abcdef", 96, 40);
  run(1, "abcdef", 96);
  rig_.add(2, "abcdef", 112);
  ASSERT_EQ(rig_.admit(2, 112), Status());
  rig_.answer_all(rig_.step(2, 96, 112));
  finish(2, 112);
  save_all();
  forget_device();
  EXPECT_EQ(host_hit(rig_, 3, "abcdef", 97), 96);
}

TEST_F(LazyLimit, BlocksThatOthersHaveComputedStayTheirs) {
  rig_.add(1, "abcdef", 64);
  run(1, "abcdef", 64);
  add_limited(rig_, 2, "abcdef", 96, 16);
  ASSERT_EQ(rig_.admit(2, 96), Status());
  compute(2, "abcdef", 64, 96);  // behind a device hit of 64
  finish(2, 96);
  save_all();
  forget_device();
  EXPECT_EQ(host_hit(rig_, 3, "abcdef", 97), 64);
}

// While many others come and go: of a request that lives, also before its blocks carry their keys, and of one that has
// ended and whose blocks are still there.
TEST_F(LazyLimit, IsKeptAsLongAsTheBlocksMayBeSaved) {
  add_limited(rig_, 1, "ab", 32, 0);
  ASSERT_EQ(rig_.admit(1, 32), Status());
  rig_.step(1, 0, 32);
  add_limited(rig_, 2, "cd", 32, 0);
  ASSERT_EQ(rig_.admit(2, 32), Status());
  compute(2, "cd", 0, 32);
  const std::vector<BlockId> kept = rig_.tables[2][0];
  rig_.finish(2, 32);
  for (std::uint64_t id = 3; id < 250; ++id) {
    const std::string text = {static_cast<char>(id), 'x'};
    add_limited(rig_, id, text, 128, 0);
    run(id, text, 128);
  }
  rig_.cache("ab", 0, 16, rig_.tables[1][0][0]);
  rig_.cache("ab", 0, 32, rig_.tables[1][0][1]);
  finish(1, 32);
  for (const BlockId block : kept) {
    rig_.device.leave(block);
  }
  save_all();
  EXPECT_EQ(rig_.connector->metrics().planned_store_blocks, 0);
  rig_.cache_new("saved", 0, 16);
  save_all();
  EXPECT_EQ(rig_.connector->metrics().stored_blocks, 1);
}

TEST(WithheldHashes, OnlyThoseThatTheEngineCachesAreKept) {
  const Geometry geometry = resolved({.groups = {full(16), full(16, false)}});
  CacheBlocks device(16);
  WithheldHashes withheld(geometry);
  const std::vector<std::byte> hashes = hashes_of("a", 3000);
  const auto hash = [&](std::size_t i) { return std::span(hashes).subspan(i * 32, 32); };
  const std::vector<std::byte> small(8, std::byte{7});
  for (std::size_t i = 0; i < 3000; ++i) {
    withheld.add(hash(i));
  }
  withheld.add(small);
  EXPECT_TRUE(withheld.is_due());
  device.cache(device.take(), 0, hash(5));
  device.cache(device.take(), 1, hash(2999));
  device.cache(device.take(), 1, small);
  withheld.keep_cached(device);
  withheld.settle();
  EXPECT_EQ(withheld.size(), 3U);
  EXPECT_TRUE(withheld.contains(hash(5)) && withheld.contains(hash(2999)) && withheld.contains(small));
  EXPECT_FALSE(withheld.is_due());
  withheld.remove(small);
  EXPECT_FALSE(withheld.contains(small));
}

}  // namespace
}  // namespace hostkv::testing
