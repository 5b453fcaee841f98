#include "bench/models/name_hint.h"

#include <gtest/gtest.h>

#include <array>

namespace hostkv::bench {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"kimi-like", "--host-bytes", "--host-blocks", "cat", "car"};

TEST(NameHint, FindsNamesThatBeginWithTheWord) {
  EXPECT_EQ(did_you_mean("kimi", kNames), "did you mean kimi-like?");
  EXPECT_EQ(did_you_mean("--host", kNames), "did you mean --host-bytes or --host-blocks?");
  EXPECT_EQ(did_you_mean("--", kNames), "");
}

TEST(NameHint, NamesAllThatAreEquallyNear) {
  EXPECT_EQ(did_you_mean("cas", kNames), "did you mean cat or car?");
  EXPECT_EQ(did_you_mean("kimi-lik", kNames, "\""), "did you mean \"kimi-like\"?");
  EXPECT_EQ(did_you_mean("something-else", kNames), "");
}

}  // namespace
}  // namespace hostkv::bench
