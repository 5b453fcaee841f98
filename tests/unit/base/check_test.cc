#include "base/check.h"

#include <gtest/gtest.h>

namespace hostkv {
namespace {

TEST(CheckDeathTest, AbortsWithConditionTextAndFileWhenBroken) {
  const int slots = 3;
  EXPECT_DEATH(HOSTKV_CHECK(slots == 4, "R15: a slot is lost"),
               "broken invariant: R15: a slot is lost \\(slots == 4\\) at .*check_test\\.cc:[0-9]+");
}

TEST(Check, EvaluatesItsConditionOnceAndGoesOnWhenItHolds) {
  int evaluations = 0;
  HOSTKV_CHECK(++evaluations == 1, "holds");
  EXPECT_EQ(evaluations, 1);
}

#ifdef NDEBUG
TEST(DebugCheck, DoesNotEvaluateItsConditionInReleaseBuilds) {
  int evaluations = 0;
  HOSTKV_DCHECK(++evaluations == 7, "would be broken");
  EXPECT_EQ(evaluations, 0);
}
#else
TEST(DebugCheckDeathTest, AbortsInDebugBuilds) {
  EXPECT_DEATH(HOSTKV_DCHECK(false, "R3: no token left"), "R3: no token left");
}
#endif

}  // namespace
}  // namespace hostkv
