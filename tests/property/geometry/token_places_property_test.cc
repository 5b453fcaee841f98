// Token -> rank and row is a bijection for every block, DCP size and interleave up to 64: exhaustive.

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/geometry_builders.h"

namespace hostkv::testing {
namespace {

constexpr GroupIndex kG0{0};
constexpr std::int64_t kLimit = 64;

// One block and the first round of the next one.
void check_bijection(const Geometry& g, std::int64_t block, std::int64_t dcp) {
  const std::int64_t span = block * dcp;
  const std::int64_t end = span + g.spec().parallel.interleave_tokens * dcp;
  std::vector<char> taken(static_cast<std::size_t>(2 * span), 0);
  std::vector<std::int64_t> held(static_cast<std::size_t>(dcp), 0);
  bool fine = true;
  for (std::int64_t position = 0; position < end; ++position) {
    const TokenPlace place = g.place_of_token(kG0, position);
    fine = fine && place.rank >= 0 && place.rank < dcp && place.slot_in_block >= 0 && place.slot_in_block < block &&
           place.block_index == position / span;
    ASSERT_TRUE(fine) << "position " << position;
    char& row = taken[static_cast<std::size_t>((place.block_index * dcp + place.rank) * block + place.slot_in_block)];
    fine = row == 0 && g.token_at(kG0, place) == position;
    // Rows fill in order, so the count is the row: local_length_tokens equals counting.
    const std::int64_t row_of_sequence = place.block_index * block + place.slot_in_block;
    std::int64_t& count = held[static_cast<std::size_t>(place.rank)];
    fine = fine && row_of_sequence == count && g.local_length_tokens(kG0, position + 1, place.rank) == count + 1;
    ASSERT_TRUE(fine) << "position " << position << " rank " << place.rank << " row " << place.slot_in_block;
    row = 1;
    ++count;
  }
}

TEST(TokenPlaces, AreABijectionForEveryBlockDcpAndInterleaveUpTo64) {
  std::int64_t combinations = 0;
  for (std::int64_t block = 1; block <= kLimit; ++block) {
    for (std::int64_t interleave = 1; interleave <= block; ++interleave) {
      if (block % interleave != 0) {
        continue;
      }
      for (std::int64_t dcp = 1; dcp <= kLimit; ++dcp) {
        SCOPED_TRACE(::testing::Message() << "block " << block << " dcp " << dcp << " interleave " << interleave);
        check_bijection(resolved({.groups = {full(block)}, .parallel = dcp_of(dcp, interleave)}), block, dcp);
        if (::testing::Test::HasFailure()) {
          return;
        }
        ++combinations;
      }
    }
  }
  ::testing::Test::RecordProperty("combinations", static_cast<int>(combinations));
  EXPECT_EQ(combinations, 280 * 64) << "sum of the numbers of divisors of 1..64, times 64";
}

TEST(TokenPlaces, LocalLengthsOfAllRanksAddUpToTheSequence) {
  for (std::int64_t dcp = 1; dcp <= 16; ++dcp) {
    for (const std::int64_t interleave : {1, 2, 4, 8}) {
      const Geometry g = resolved({.groups = {mla(8)}, .parallel = dcp_of(dcp, interleave)});
      for (std::int64_t length = 0; length <= 3 * 8 * dcp; ++length) {
        std::int64_t sum = 0;
        for (std::int64_t rank = 0; rank < dcp; ++rank) {
          sum += g.local_length_tokens(GroupIndex{0}, length, rank);
        }
        ASSERT_EQ(sum, length) << "dcp " << dcp << " interleave " << interleave;
      }
    }
  }
}

TEST(TokenPlaces, RefuseEveryInterleaveUpTo64ThatDoesNotDivideTheBlock) {
  for (std::int64_t block = 1; block <= kLimit; ++block) {
    for (std::int64_t interleave = 1; interleave <= kLimit; ++interleave) {
      const Result<Geometry> made = Geometry::resolve({.groups = {full(block)}, .parallel = dcp_of(2, interleave)});
      ASSERT_EQ(made.has_value(), block % interleave == 0) << "block " << block << " interleave " << interleave;
    }
  }
}

}  // namespace
}  // namespace hostkv::testing
