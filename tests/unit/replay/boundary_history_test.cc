#include "bench/replay/boundary_history.h"

#include <gtest/gtest.h>

namespace hostkv::bench {
namespace {

// One group of states every 1,024 tokens, or of attention.
Geometry geometry_of(GroupKind kind) {
  GeometrySpec spec;
  KvCacheGroup group;
  group.kind = kind;
  group.block_tokens = 1024;
  spec.groups.push_back(group);
  return *Geometry::resolve(spec);
}

const std::vector<std::int64_t> kIds = {0, 1, 2, 3, 4, 5, 6, 7};  // 4,096 tokens in blocks of 512

TEST(BoundaryHistory, FindsEveryBoundaryOfAttention) {
  const Geometry geometry = geometry_of(GroupKind::kFullAttention);
  BoundaryHistory history(geometry, 8192);
  EXPECT_EQ(history.visit(kIds, 512, 3072, 0, 4097), 3072);
}

TEST(BoundaryHistory, FindsOnlyStatesThatARequestLeft) {
  const Geometry geometry = geometry_of(GroupKind::kMamba);
  BoundaryHistory history(geometry, 8192);
  EXPECT_EQ(history.visit(kIds, 512, 0, 0, 4097), 0);
  EXPECT_EQ(history.visit(kIds, 512, 4096, 4096, 4097), 4096);
  EXPECT_EQ(history.visit(kIds, 512, 3072, 0, 4097), 0);
}

TEST(BoundaryHistory, CountsTheEndsOfSteps) {
  const Geometry geometry = geometry_of(GroupKind::kMamba);
  BoundaryHistory history(geometry, 2048 + 100);
  EXPECT_EQ(history.visit(kIds, 512, 0, 0, 4097), 0);
  EXPECT_EQ(history.visit(kIds, 512, 3072, 2048, 4097), 2048);
}

// Attention in blocks of 1,024 beside such states, and a hash every 128 tokens.
Geometry fine_geometry(bool is_draft) {
  GeometrySpec spec;
  KvCacheGroup group;
  group.block_tokens = 1024;
  group.eagle = is_draft;
  spec.groups.push_back(group);
  group.kind = GroupKind::kMamba;
  group.eagle = false;
  spec.groups.push_back(group);
  spec.hash_block_tokens = 128;
  return *Geometry::resolve(spec);
}

const std::vector<std::int64_t> kFewIds = {10, 11, 12, 13, 14};  // 2,560 tokens in blocks of 512

TEST(BoundaryHistory, CountsTheLastHashBlockAndTheLastWholeBlock) {
  const Geometry geometry = fine_geometry(false);
  BoundaryHistory history(geometry, 8192);
  EXPECT_EQ(history.visit(kFewIds, 512, 0, 0, 2561), 0);
  EXPECT_EQ(history.visit(kFewIds, 512, 2560, 2560, 2561), 2560);
  EXPECT_EQ(history.visit(kFewIds, 512, 2432, 2432, 2561), 2048) << "nothing was kept between the two";
  EXPECT_EQ(history.visit(kFewIds, 512, 1920, 1920, 2561), 0);
}

TEST(BoundaryHistory, CountsOneHashBlockLessForADraft) {
  const Geometry geometry = fine_geometry(true);
  BoundaryHistory history(geometry, 8192);
  EXPECT_EQ(history.visit(kFewIds, 512, 0, 0, 2561), 0);
  EXPECT_EQ(history.visit(kFewIds, 512, 2560, 2432, 2561), 2432);
  EXPECT_EQ(history.visit(kFewIds, 512, 2304, 2304, 2561), 1024);
}

TEST(BoundaryHistory, GoesOnAtTheNextBlockBehindAHitInsideOne) {
  const Geometry geometry = fine_geometry(false);
  BoundaryHistory history(geometry, 8192);
  EXPECT_EQ(history.visit(kFewIds, 512, 0, 256, 2561), 0);
  EXPECT_EQ(history.visit(kFewIds, 512, 1920, 1920, 2561), 1024);
}

}  // namespace
}  // namespace hostkv::bench
