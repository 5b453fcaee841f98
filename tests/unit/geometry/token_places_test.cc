#include <gtest/gtest.h>

#include "tests/support/geometry_builders.h"

namespace hostkv::testing {
namespace {

constexpr GroupIndex kG0{0};

// V10: position 37 in a block of 16 over 4 ranks.
TEST(WorkedExampleV10, TokensGoRoundTheRanksInTurnsOfTheInterleave) {
  const auto place = [](std::int64_t interleave) {
    return resolved({.groups = {full(16)}, .parallel = dcp_of(4, interleave)}).place_of_token(kG0, 37);
  };
  EXPECT_EQ(place(1), (TokenPlace{1, 0, 9}));
  EXPECT_EQ(place(4), (TokenPlace{1, 0, 9}));
  EXPECT_EQ(place(16), (TokenPlace{2, 0, 5}));
}

TEST(TokenPlace, HasNoRankWhereEveryRankHoldsTheBlock) {
  const Geometry g = resolved({.groups = {window(16, 32)}, .parallel = dcp_of(4)});
  EXPECT_EQ(g.place_of_token(kG0, 37), (TokenPlace{-1, 2, 5}));
  EXPECT_EQ(g.token_at(kG0, {-1, 2, 5}), 37);
  EXPECT_EQ(g.local_length_tokens(kG0, 37, 3), 37);
}

TEST(TokenPlace, IsOnRankZeroOfAShardedGroupWithoutDcp) {
  const Geometry g = resolved({.groups = {full(16)}, .parallel = {.interleave_tokens = 5}});
  EXPECT_EQ(g.place_of_token(kG0, 37), (TokenPlace{0, 2, 5}));
  EXPECT_EQ(g.token_at(kG0, {0, 2, 5}), 37);
  EXPECT_EQ(g.local_length_tokens(kG0, 37, 0), 37);
}

TEST(TokenAt, AnswersNothingForPlacesThatHoldNoToken) {
  const Geometry g = resolved({.groups = {full(16)}, .parallel = dcp_of(4)});
  for (const TokenPlace& place : {TokenPlace{-1, 0, 0}, TokenPlace{4, 0, 0}, TokenPlace{0, -1, 0}, TokenPlace{0, 0, 16},
                                  TokenPlace{0, 0, -1}, TokenPlace{0, INT64_MAX, 0}}) {
    EXPECT_EQ(g.token_at(kG0, place), std::nullopt);
  }
}

}  // namespace
}  // namespace hostkv::testing
