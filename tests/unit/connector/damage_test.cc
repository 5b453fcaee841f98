// EngineTraits::damages_fine_hits: a device hit that ends inside a block leaves the engine with wrong bytes, which it
// caches and hands out as it does right ones. None of them gets into the host.

#include <gtest/gtest.h>

#include "tests/support/cases_rig.h"

namespace hostkv::testing {
namespace {

constexpr EngineTraits kDamages{.damages_fine_hits = true};

ConnectorOptions in_mode(StoreMode mode) {
  ConnectorOptions options;
  options.store_mode = mode;
  return options;
}

class Damage : public ::testing::TestWithParam<StoreMode> {
 protected:
  CasesRig rig_{{.groups = {full(32), mamba(32)}, .hash_block_tokens = 16}, in_mode(GetParam()), 64, 16, kDamages};

  // A request that computes its tokens [from, to) in one step; the device caches them, and it is finished.
  void run(std::uint64_t id, const std::string& text, std::int64_t from, std::int64_t to) {
    rig_.add(id, text, to);
    EXPECT_EQ(rig_.hit(id, to, from), 0);
    ASSERT_EQ(rig_.admit(id, to), Status());
    const BoundaryHandOff state{RequestId{id}, GroupIndex{1}, rig_.tables[id][1].back(), to};
    rig_.cache(text, 1, to, state.block);
    rig_.answer_all(rig_.step(id, from, to, {state}));
    const std::vector<std::vector<BlockId>> owned = rig_.tables[id];
    for (std::int64_t end = from / 32 * 32 + 32; end <= to; end += 32) {
      rig_.cache(text, 0, end, owned[0][static_cast<std::size_t>(end / 32 - 1)]);
    }
    rig_.finish(id, to);
    for (const std::vector<BlockId>& blocks : owned) {
      for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
        rig_.device.leave(*block);
      }
    }
    for (int i = 0; i < 50; ++i) {  // lazy stores save what may be dropped
      rig_.answer_all(rig_.step());
    }
  }
  void forget_device() {
    for (const BlockId block : rig_.device.free_queue()) {
      rig_.device.drop_keys(block);
    }
  }
  std::int64_t stored() const { return rig_.connector->metrics().stored_blocks; }
};

TEST_P(Damage, OfARequestIsNotStored) {
  run(1, "abcd", 16, 64);
  EXPECT_EQ(stored(), 0);
  rig_.expect_idle();
}

TEST_P(Damage, IsNotStoredByThoseWhoBuildOnIt) {
  run(1, "abcd", 16, 64);
  run(2, "abcdefgh", 64, 128);  // a hit that ends with a block
  EXPECT_EQ(stored(), 0);
  run(3, "abcdefghijkl", 128, 192);
  EXPECT_EQ(stored(), 0) << "nor by those who build on those";
  rig_.expect_idle();
}

// What is known of damage hangs on every hash of the request.
TEST_P(Damage, IsLookedForInAllHashes) {
  run(1, "abcd", 16, 64);
  const auto ask = [&](std::uint64_t id, std::int64_t num_tokens) {
    const Result<MatchResult> match = rig_.connector->match_prefix(RequestId{id}, num_tokens, 0, true);
    EXPECT_TRUE(match.has_value());
    return match ? match->kind : MatchResult::Kind::kRetry;
  };
  rig_.add(2, "uvwxyzuvwxyz", 192);
  EXPECT_EQ(ask(2, 192), MatchResult::Kind::kMoreHashes);
  rig_.finish(2, 0);
  forget_device();
  run(3, "abcd", 0, 64);  // tells that the device has dropped it
  rig_.add(4, "uvwxyzuvwxyz", 192);
  EXPECT_EQ(ask(4, 1920), MatchResult::Kind::kMiss) << "nothing is damaged any more, and the first block is missing";
}

TEST_P(Damage, OfOthersIsNoReasonToStoreNothing) {
  run(1, "abcd", 16, 64);
  run(2, "uvwx", 0, 64);
  EXPECT_GT(stored(), 0);
  forget_device();
  rig_.add(3, "uvwxy", 80);
  EXPECT_EQ(rig_.hit(3, 80), 64);
}

TEST_P(Damage, IsForgottenWithTheBlocksThatHaveIt) {
  run(1, "abcd", 16, 64);
  forget_device();
  run(2, "abcd", 0, 64);
  forget_device();
  rig_.add(3, "abcde", 80);
  EXPECT_EQ(rig_.hit(3, 80), 64);
}

TEST_P(Damage, IsRememberedOfALivingRequestWhoseBlocksAreCachedLate) {
  rig_.add(1, "abcd", 64);
  ASSERT_EQ(rig_.admit(1, 64), Status());
  rig_.step(1, 16, 64);
  rig_.add(2, "abcdefgh", 128);
  ASSERT_EQ(rig_.hit(2, 128), 0);  // forgets what is not cached
  ASSERT_EQ(rig_.admit(2, 128), Status());
  const BoundaryHandOff state = rig_.hand_off(2, "abcdefgh", 1, 128);
  EXPECT_TRUE(rig_.step(2, 64, 128, {state}).jobs.empty());
}

// A load fills its last block as a whole, so it is no damage that a hit ended inside it.
TEST_P(Damage, EndsWhereALoadBegins) {
  run(1, "abcd", 0, 64);
  forget_device();
  rig_.add(2, "abcdef", 96);
  ASSERT_EQ(rig_.hit(2, 96, 16), 48);
  ASSERT_EQ(rig_.admit(2, 96, 48, 16), Status());
  rig_.answer_all(rig_.step());
  const BoundaryHandOff state = rig_.hand_off(2, "abcdef", 1, 96);
  EXPECT_GT(blocks_of_group(rig_.step(2, 64, 96, {state}), 1, Direction::kStore), 0);
}

std::string name_of(const ::testing::TestParamInfo<StoreMode>& mode) {
  return mode.param == StoreMode::kLazy ? "Lazy" : "Eager";
}

INSTANTIATE_TEST_SUITE_P(StoreModes, Damage, ::testing::Values(StoreMode::kEager, StoreMode::kLazy), name_of);

}  // namespace
}  // namespace hostkv::testing
