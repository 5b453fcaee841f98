#include <gtest/gtest.h>

#include <limits>

#include "tests/support/geometry_builders.h"
#include "tests/support/layout_builders.h"

namespace hostkv::testing {
namespace {

Geometry one_group(std::int64_t page_bytes) {
  KvCacheGroup group = full(16);
  group.page_bytes = page_bytes;
  return resolved({.groups = {group}});
}

void expect_refused(const KvLayout& layout, const Geometry& geometry, const std::vector<std::string>& parts) {
  const Status status = layout.validate(geometry);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  for (const std::string& part : parts) {
    EXPECT_NE(status.message().find(part), std::string::npos) << "want \"" << part << "\" in " << status.message();
  }
}

// Field case A18.
TEST(KvLayout, AddsUpTheBytesOfABlockOnceFromItsRanges) {
  std::vector<std::int64_t> layers(50, 65536);
  layers.insert(layers.end(), 10, 32768);
  const OwnedLayout owned = layer_outermost(3, layers);
  EXPECT_EQ(owned.layout.block_bytes(GroupIndex{0}), 3'604'480);
  EXPECT_EQ(36'044'800 / owned.layout.block_bytes(GroupIndex{0}), 10);
  EXPECT_TRUE(owned.layout.validate(one_group(3'604'480)).ok());
}

// Field case A17.
TEST(KvLayout, RefusesABlockThatLacksOneOfItsBuffers) {
  OwnedLayout owned = block_outermost(4, {256, 256, 32});
  EXPECT_TRUE(owned.layout.validate(one_group(544)).ok());
  owned.layout.groups[0].pop_back();
  expect_refused(owned.layout, one_group(544), {"group 0 (full)", "2 ranges", "512 bytes", "page_bytes is 544"});
  EXPECT_TRUE(owned.layout.validate(one_group(0)).ok()) << "an unknown page has nothing to compare with";
}

TEST(KvLayout, TakesGroupsThatOverlayEachOther) {
  OwnedLayout owned = block_outermost(4, {64, 64});
  owned.layout.groups.push_back(owned.layout.groups[0]);
  EXPECT_TRUE(owned.layout.validate(resolved({.groups = {full(16), window(16, 32)}})).ok());
}

TEST(KvLayout, RefusesRangesThatLeaveTheirRegion) {
  OwnedLayout owned = layer_outermost(4, {64, 64});
  owned.layout.groups[0][1].offset_bytes += 1;
  expect_refused(owned.layout, one_group(0), {"group 0 (full), range 1", "past the end of region 0 of 512 bytes"});
  owned.layout.groups[0][1].offset_bytes = -1;
  expect_refused(owned.layout, one_group(0), {"offset_bytes -1"});
  owned.layout.groups[0][1] = {0, 0, std::numeric_limits<std::int64_t>::max(), 64};
  expect_refused(owned.layout, one_group(0), {"range 1", "past the end"});
  owned.layout.groups[0][1] = {7, 0, 64, 64};
  expect_refused(owned.layout, one_group(0), {"range 1", "region 7 does not exist; there are 1"});
}

TEST(KvLayout, RefusesASizeOrStrideThatIsTooSmall) {
  OwnedLayout owned = layer_outermost(4, {64});
  owned.layout.groups[0][0].block_stride_bytes = 63;
  expect_refused(owned.layout, one_group(0), {"range 0", "block_stride_bytes 63", "size_bytes 64"});
  owned.layout.groups[0][0] = {0, 0, 64, 0};
  expect_refused(owned.layout, one_group(0), {"size_bytes 0"});
}

TEST(KvLayout, RefusesRangesOfAGroupThatShareBytes) {
  OwnedLayout owned = block_outermost(4, {64, 64});
  owned.layout.groups[0][1].offset_bytes = 63;
  expect_refused(owned.layout, one_group(0), {"group 0 (full)", "range 0 and range 1 of region 0", "share bytes"});
  owned.layout.groups[0][1].offset_bytes = 128;
  owned.layout.num_blocks = 2;
  expect_refused(owned.layout, one_group(0), {"range 0 and range 1"});
}

TEST(KvLayout, RefusesRangesOfUnequalStrideThatInterleave) {
  OwnedLayout owned = block_outermost(4, {64, 64});
  owned.layout.groups[0][1] = {0, 64, 96, 16};
  expect_refused(owned.layout, one_group(0), {"range 0 and range 1", "128", "96"});
}

TEST(KvLayout, RefusesGroupsThatDoNotMatchTheGeometry) {
  OwnedLayout owned = block_outermost(4, {64});
  const Geometry two = resolved({.groups = {full(16), ring(4)}});
  expect_refused(owned.layout, two, {"1 groups", "geometry has 2"});
  owned.layout.groups.emplace_back();
  EXPECT_TRUE(owned.layout.validate(two).ok());
  owned.layout.groups[1] = owned.layout.groups[0];
  expect_refused(owned.layout, two, {"group 1 (ring)", "never stored or loaded"});
  owned.layout.groups[1].clear();
  owned.layout.groups[0].clear();
  expect_refused(owned.layout, two, {"group 0 (full)", "has no range"});
}

TEST(KvLayout, RefusesRegionsAndCountsThatAreNotSet) {
  OwnedLayout owned = block_outermost(4, {64});
  owned.layout.num_blocks = 0;
  expect_refused(owned.layout, one_group(0), {"num_blocks 0"});
  owned.layout.num_blocks = 4;
  owned.layout.regions[0].size_bytes = 0;
  expect_refused(owned.layout, one_group(0), {"region 0", "size_bytes 0"});
  owned.layout.regions[0] = {nullptr, 256};
  expect_refused(owned.layout, one_group(0), {"region 0", "base"});
}

}  // namespace
}  // namespace hostkv::testing
