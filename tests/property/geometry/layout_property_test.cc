// Layouts and copy plans against a model that looks at one byte after the other.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "geometry/copy_plan.h"
#include "tests/support/geometry_builders.h"
#include "tests/support/layout_builders.h"

namespace hostkv::testing {
namespace {

using Random = std::mt19937_64;
constexpr GroupIndex kG0{0};

std::int64_t pick(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

std::vector<std::int64_t> random_sizes(Random& random) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t i = pick(random, 1, 5); i > 0; --i) {
    sizes.push_back(pick(random, 1, 12));
  }
  return sizes;
}

// Ranges of one stride anywhere in a region, rows apart or not.
OwnedLayout scattered_layout(Random& random) {
  OwnedLayout out;
  out.layout.num_blocks = pick(random, 2, 6);
  const std::int64_t stride = pick(random, 4, 16);
  const std::int64_t rows = pick(random, 0, 2 * out.layout.num_blocks);
  out.add_region((out.layout.num_blocks + rows + 1) * stride);
  out.layout.groups.emplace_back();
  for (std::int64_t i = pick(random, 2, 4); i > 0; --i) {
    out.layout.groups[0].push_back({0, pick(random, 0, rows * stride), stride, pick(random, 1, stride / 3)});
  }
  return out;
}

// Block-outermost with gaps that another group could own, or layer-outermost, or a mixture over two regions.
OwnedLayout random_layout(Random& random) {
  const std::int64_t num_blocks = pick(random, 2, 12);
  OwnedLayout out = pick(random, 0, 1) == 0 ? block_outermost(num_blocks, random_sizes(random))
                                            : layer_outermost(num_blocks, random_sizes(random));
  std::vector<KvBlockRange>& ranges = out.layout.groups[0];
  if (ranges.size() > 1 && pick(random, 0, 2) == 0) {
    ranges.erase(ranges.begin() + pick(random, 0, std::int64_t(ranges.size()) - 1));
  }
  if (pick(random, 0, 2) == 0) {
    const std::int64_t stride = pick(random, 4, 9);
    out.add_region(stride * num_blocks);
    ranges.push_back({1, 0, stride, pick(random, 1, stride)});
  }
  if (pick(random, 0, 2) == 0) {
    std::shuffle(ranges.begin(), ranges.end(), random);
  }
  return out;
}

// Every byte of every block, once; false if two share one or one is outside.
bool model_is_valid(const KvLayout& layout) {
  std::set<std::pair<std::uint32_t, std::int64_t>> bytes;
  for (const KvBlockRange& range : layout.groups[0]) {
    for (std::int64_t block = 0; block < layout.num_blocks; ++block) {
      for (std::int64_t i = 0; i < range.size_bytes; ++i) {
        const std::int64_t at = range.offset_bytes + block * range.block_stride_bytes + i;
        if (at < 0 || at >= layout.regions[range.region].size_bytes || !bytes.insert({range.region, at}).second) {
          return false;
        }
      }
    }
  }
  return true;
}

// R21: every byte of a block has its one place.
TEST(KvLayout, IsValidExactlyWhereAByteByByteModelFindsNoConflict) {
  const std::uint64_t seed = test_seed();
  ::testing::Test::RecordProperty("seed", std::to_string(seed));
  Random random(seed);
  const Geometry geometry = resolved({.groups = {full(16)}});
  int valid = 0;
  int refused = 0;
  for (std::uint64_t round = 0; round < test_rounds(3000); ++round) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " round " << round);
    OwnedLayout owned = round % 2 == 0 ? random_layout(random) : scattered_layout(random);
    KvBlockRange& range = owned.layout.groups[0].front();
    range.offset_bytes = std::max<std::int64_t>(0, range.offset_bytes + pick(random, -4, 4) * pick(random, 0, 1));
    range.size_bytes += pick(random, 0, 3) * pick(random, 0, 1);
    const bool expected = model_is_valid(owned.layout);
    (expected ? valid : refused) += 1;
    const Status status = owned.layout.validate(geometry);
    const bool mixed = status.message().find("unequal strides") != std::string::npos;
    ASSERT_TRUE(status.ok() == expected || (mixed && expected)) << status.message();
  }
  EXPECT_GT(valid, 0);
  EXPECT_GT(refused, 0);
}

std::vector<BlockPair> random_pairs(Random& random, const KvLayout& layout) {
  const std::int64_t bytes = layout.block_bytes(kG0);
  std::vector<std::uint32_t> blocks;
  std::vector<std::int64_t> slots;
  for (std::int64_t i = 1; i < layout.num_blocks; ++i) {
    blocks.push_back(static_cast<std::uint32_t>(i));
    slots.push_back(i - 1);
  }
  const std::int64_t order = pick(random, 0, 3);
  if (order == 1 || order == 3) {
    std::shuffle(blocks.begin(), blocks.end(), random);
  }
  if (order == 2 || order == 3) {
    std::shuffle(slots.begin(), slots.end(), random);
  }
  std::vector<BlockPair> pairs;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (pick(random, 0, 4) != 0) {
      pairs.push_back({BlockId{blocks[i]}, slots[i] * bytes});
    }
  }
  return pairs;
}

struct DeviceByte {
  std::uint32_t region = 0;
  std::int64_t offset = 0;
  friend auto operator<=>(const DeviceByte&, const DeviceByte&) = default;
};

// Host byte -> device byte, in the order of the copy.
std::vector<std::pair<std::int64_t, DeviceByte>> model_copy(const KvLayout& layout,
                                                            const std::vector<BlockPair>& pairs) {
  std::vector<std::pair<std::int64_t, DeviceByte>> out;
  for (const BlockPair& pair : pairs) {
    std::int64_t host = pair.host_offset_bytes;
    for (const KvBlockRange& range : layout.groups[0]) {
      for (std::int64_t i = 0; i < range.size_bytes; ++i) {
        out.push_back({host++, {range.region, range.offset_bytes + pair.block.value() * range.block_stride_bytes + i}});
      }
    }
  }
  return out;
}

// Runs that a copier needs that goes on for as long as both sides do.
std::size_t model_runs(const std::vector<std::pair<std::int64_t, DeviceByte>>& copy) {
  std::size_t runs = copy.empty() ? 0 : 1;
  for (std::size_t i = 1; i < copy.size(); ++i) {
    const auto& [host, device] = copy[i - 1];
    const bool goes_on = copy[i].first == host + 1 && copy[i].second == DeviceByte{device.region, device.offset + 1};
    runs += goes_on ? 0 : 1;
  }
  return runs;
}

// Every host byte of the plan, with the device byte behind it; no byte twice.
std::map<std::int64_t, DeviceByte> bytes_of(const std::vector<PlannedRun>& runs, std::size_t num_pairs) {
  std::map<std::int64_t, DeviceByte> out;
  std::uint32_t next_pair = 0;
  for (const PlannedRun& run : runs) {
    EXPECT_LE(run.first_pair + run.num_pairs, num_pairs);
    EXPECT_GE(run.num_pairs, 1U);
    EXPECT_LE(run.first_pair, next_pair) << "a pair is covered by no run";
    next_pair = std::max(next_pair, run.first_pair + run.num_pairs);
    for (std::int64_t i = 0; i < run.size_bytes; ++i) {
      const bool fresh =
          out.emplace(run.host_offset_bytes + i, DeviceByte{run.device_region, run.device_offset_bytes + i}).second;
      EXPECT_TRUE(fresh) << "a host byte is written twice";
    }
  }
  EXPECT_EQ(next_pair, num_pairs);
  return out;
}

TEST(CopyPlan, MovesTheBytesOfAByteByByteCopierInTheFewestRuns) {
  const std::uint64_t seed = test_seed();
  ::testing::Test::RecordProperty("seed", std::to_string(seed));
  Random random(seed);
  int merged_over_blocks = 0;
  int fewer_than_forward = 0;
  for (std::uint64_t round = 0; round < test_rounds(2000); ++round) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " round " << round);
    const OwnedLayout owned = random_layout(random);
    const std::vector<BlockPair> pairs = random_pairs(random, owned.layout);
    const auto copy = model_copy(owned.layout, pairs);
    std::vector<PlannedRun> runs;
    append_copy_runs(owned.layout, kG0, pairs, runs);
    ASSERT_EQ(bytes_of(runs, pairs.size()), (std::map<std::int64_t, DeviceByte>(copy.begin(), copy.end())));
    ASSERT_LE(runs.size(), model_runs(copy));
    fewer_than_forward += runs.size() < model_runs(copy) ? 1 : 0;
    merged_over_blocks += std::any_of(runs.begin(), runs.end(), [](const PlannedRun& r) { return r.num_pairs > 1; });
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
  EXPECT_GT(merged_over_blocks, 0);
  EXPECT_GT(fewer_than_forward, 0) << "descending neighbours merge too";
}

}  // namespace
}  // namespace hostkv::testing
