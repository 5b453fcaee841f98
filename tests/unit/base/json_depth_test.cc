#include "base/json_depth.h"

#include <gtest/gtest.h>

#include <string>

namespace hostkv {
namespace {

TEST(JsonDepth, CountsOpenBracketsOutsideOfStrings) {
  EXPECT_EQ(json_depth(""), 0U);
  EXPECT_EQ(json_depth("1"), 0U);
  EXPECT_EQ(json_depth("[]"), 1U);
  EXPECT_EQ(json_depth(R"({"a": [1, {"b": []}], "c": []})"), 4U);
  EXPECT_EQ(json_depth(R"(["[[[[", "\"[[[", {}])"), 2U);
}

TEST(JsonDepth, NamesTheDepthThatIsTooMuch) {
  EXPECT_EQ(json_depth_problem(std::string(64, '[')), "");
  EXPECT_EQ(json_depth_problem(std::string(65, '[')), "it nests 65 deep; at most 64 is allowed");
}

TEST(JsonDepth, TakesBrokenTexts) {
  EXPECT_EQ(json_depth("]]]["), 1U);
  EXPECT_EQ(json_depth("\"\\"), 0U);
  EXPECT_EQ(json_depth(std::string(1'000'000, '[')), 1'000'000U);
}

}  // namespace
}  // namespace hostkv
