#include "recovery/rank_merge.h"

#include <gtest/gtest.h>

namespace hostkv::testing {
namespace {

constexpr FailedBlock kFirst{GroupIndex{0}, BlockId{3}};
constexpr FailedBlock kSameBlockOtherGroup{GroupIndex{1}, BlockId{3}};
constexpr FailedBlock kSecond{GroupIndex{0}, BlockId{4}};

JobResult result_of(std::uint32_t rank, StatusCode status = StatusCode::kOk, std::vector<FailedBlock> failed = {}) {
  JobResult result;
  result.rank = RankIndex{rank};
  result.status = status;
  result.failed = std::move(failed);
  return result;
}

TEST(RankMerge, IsCompleteWhenEveryRankHasAnsweredOnce) {
  RankMerge merge(3);
  EXPECT_TRUE(merge.add(result_of(2)));
  EXPECT_TRUE(merge.add(result_of(0)));
  EXPECT_FALSE(merge.complete());
  EXPECT_FALSE(merge.add(result_of(2))) << "a repeat is not the missing rank's answer";
  EXPECT_FALSE(merge.complete());
  EXPECT_TRUE(merge.add(result_of(1)));
  EXPECT_TRUE(merge.complete());
  EXPECT_EQ(merge.status(), StatusCode::kOk);
  EXPECT_FALSE(merge.failed(kFirst));
}

TEST(RankMerge, RefusesARankThatDoesNotExist) {
  RankMerge merge(1);
  EXPECT_FALSE(merge.add(result_of(1, StatusCode::kDeviceError)));
  EXPECT_FALSE(merge.complete());
  EXPECT_EQ(merge.status(), StatusCode::kOk);
}

// R11: one rank's failure is the job's.
TEST(RankMerge, OneFailureIsTheFailureOfAll) {
  RankMerge merge(3);
  merge.add(result_of(0));
  merge.add(result_of(1, StatusCode::kDeadlineExceeded, {kFirst}));
  merge.add(result_of(2, StatusCode::kDeviceError, {kSecond}));
  EXPECT_EQ(merge.status(), StatusCode::kDeadlineExceeded) << "the first one is told";
  EXPECT_TRUE(merge.failed(kFirst));
  EXPECT_TRUE(merge.failed(kSecond));
}

// R12: a failure belongs to a group and a block.
TEST(RankMerge, AFailedBlockOfOneGroupIsNotTheOthers) {
  RankMerge merge(1);
  merge.add(result_of(0, StatusCode::kDataCorruption, {kFirst}));
  EXPECT_TRUE(merge.failed(kFirst));
  EXPECT_FALSE(merge.failed(kSameBlockOtherGroup));
}

TEST(RankMerge, AFailureWithoutNamesIsOfAllBlocks) {
  RankMerge merge(2);
  merge.add(result_of(0, StatusCode::kCanceled));
  merge.add(result_of(1));
  EXPECT_TRUE(merge.failed(kFirst));
  EXPECT_TRUE(merge.failed(kSecond));
}

TEST(RankMerge, ARepeatDoesNotTurnSuccessIntoFailure) {
  RankMerge merge(2);
  merge.add(result_of(0));
  EXPECT_FALSE(merge.add(result_of(0, StatusCode::kDeviceError)));
  EXPECT_EQ(merge.status(), StatusCode::kOk);
  EXPECT_FALSE(merge.failed(kFirst));
}

}  // namespace
}  // namespace hostkv::testing
