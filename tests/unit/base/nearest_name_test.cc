#include "base/nearest_name.h"

#include <gtest/gtest.h>

#include <array>
#include <string_view>

namespace hostkv {
namespace {

constexpr std::array<std::string_view, 4> kOptions = {"cpu_bytes_to_use", "cpu_bytes_to_use_per_rank", "store_mode",
                                                      "eviction_policy"};

TEST(NearestName, FindsTheNameBehindATypingError) {
  EXPECT_EQ(nearest_name("cpu_byte_to_use", kOptions), "cpu_bytes_to_use");
  EXPECT_EQ(nearest_name("storemode", kOptions), "store_mode");
  EXPECT_EQ(nearest_name("evicton_polcy", kOptions), "eviction_policy");
}

TEST(NearestName, TakesCaseAndDashesForEqual) {
  EXPECT_EQ(nearest_name("STORE-MODE", kOptions), "store_mode");
  EXPECT_EQ(nearest_name("cpu-bytes-to-use-per-rank", kOptions), "cpu_bytes_to_use_per_rank");
}

TEST(NearestName, AnswersNothingWhenNoNameIsNear) {
  EXPECT_EQ(nearest_name("temperature", kOptions), "");
  EXPECT_EQ(nearest_name("x", kOptions), "");
}

TEST(NearestName, AnswersNothingWithoutCandidates) {
  EXPECT_EQ(nearest_name("store_mode", {}), "");
}

TEST(NearestName, AllowsTwoEditsInShortNamesAndAThirdOfLongOnes) {
  constexpr std::array<std::string_view, 1> kShort = {"lazy"};
  EXPECT_EQ(nearest_name("lzay", kShort), "lazy");
  EXPECT_EQ(nearest_name("eager", kShort), "");
  constexpr std::array<std::string_view, 1> kLong = {"abcdefghijkl"};
  EXPECT_EQ(nearest_name("abcdefgh----", kLong), "abcdefghijkl");
  EXPECT_EQ(nearest_name("abcdefg-----", kLong), "");
}

TEST(NearestName, CountsSwappedNeighboursOnceAndPrefersTheSameLength) {
  constexpr std::array<std::string_view, 2> kAlike = {"mode", "model"};
  EXPECT_EQ(nearest_name("modle", kAlike), "model");
  EXPECT_EQ(nearest_name("mdoe", kAlike), "mode");
}

TEST(NearestName, PrefersTheFirstOfEquallyNearNames) {
  constexpr std::array<std::string_view, 2> kTwins = {"load", "loan"};
  EXPECT_EQ(nearest_name("loaf", kTwins), "load");
}

}  // namespace
}  // namespace hostkv
