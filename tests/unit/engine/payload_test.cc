#include "bench/engine/payload.h"

#include <gtest/gtest.h>

#include <set>

namespace hostkv::bench {
namespace {

const std::vector<std::int32_t> kTokens{5, 6, 7, 8, 9, 10, 11, 12};

std::vector<std::uint64_t> states_of(std::span<const std::int32_t> tokens, std::uint64_t seed = 1) {
  std::vector<std::uint64_t> states;
  extend_prefix_states(seed, tokens, static_cast<std::int64_t>(tokens.size()), states);
  return states;
}

TEST(Payload, PrefixStatesDependOnEveryTokenBefore) {
  const std::vector<std::uint64_t> states = states_of(kTokens);
  std::vector<std::int32_t> other = kTokens;
  other[2] = 70;
  const std::vector<std::uint64_t> changed = states_of(other);
  EXPECT_EQ(changed[2], states[2]);
  for (std::size_t i = 3; i < states.size(); ++i) EXPECT_NE(changed[i], states[i]) << i;
  EXPECT_NE(states_of(kTokens, 2)[8], states[8]);
}

TEST(Payload, PrefixStatesGrowInPieces) {
  std::vector<std::uint64_t> states;
  extend_prefix_states(1, kTokens, 3, states);
  EXPECT_EQ(states.size(), 4U);
  extend_prefix_states(1, kTokens, 8, states);
  EXPECT_EQ(states, states_of(kTokens));
}

class PayloadOfSize : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(PayloadOfSize, ChecksWhatItWroteAndCountsEveryChangedByte) {
  const std::int64_t size = GetParam();
  const std::vector<std::uint64_t> states = states_of(kTokens);
  const GroupPayload payload(1, GroupIndex{2}, 3, size);
  const RowRun run{&states[2], 2, 3};
  std::vector<std::byte> memory(static_cast<std::size_t>(3 * size));
  payload.write_rows(memory.data(), run);
  std::int64_t row = -1;
  EXPECT_EQ(payload.check_rows(memory.data(), run, row), 0);
  EXPECT_EQ(row, -1);
  memory[static_cast<std::size_t>(size)] ^= std::byte{1};
  memory.back() ^= std::byte{1};
  EXPECT_EQ(payload.check_rows(memory.data(), run, row), 2);
  EXPECT_EQ(row, 1);
}

TEST_P(PayloadOfSize, AWrongStateStaysWrong) {
  const std::int64_t size = GetParam();
  const GroupPayload payload(1, GroupIndex{0}, 0, size);
  std::vector<std::byte> memory(static_cast<std::size_t>(kStateRows * size));
  payload.write_state(memory.data(), 40);
  EXPECT_EQ(payload.check_state(memory.data(), 40), 0);
  payload.advance_state(memory.data(), memory.data(), 2);
  EXPECT_EQ(payload.check_state(memory.data(), 42), 0);
  memory[0] ^= std::byte{1};
  payload.advance_state(memory.data(), memory.data(), 2);
  EXPECT_GT(payload.check_state(memory.data(), 44), 0);
}

INSTANTIATE_TEST_SUITE_P(Sizes, PayloadOfSize, ::testing::Values(1, 3, 8, 12, 64));

TEST(Payload, DiffersBetweenGroupsAndRanks) {
  const std::vector<std::uint64_t> states = states_of(kTokens);
  std::set<std::vector<std::byte>> rows;
  for (std::uint32_t group = 0; group < 4; ++group) {
    for (std::int64_t rank = 0; rank < 8; ++rank) {
      std::vector<std::byte> row(8);
      GroupPayload(1, GroupIndex{group}, rank, 8).write_rows(row.data(), RowRun{&states[1], 1, 1});
      rows.insert(row);
    }
  }
  EXPECT_EQ(rows.size(), 32U);
}

}  // namespace
}  // namespace hostkv::bench
