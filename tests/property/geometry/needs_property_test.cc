// Spans, ranges and needs against a model that looks at one token after the other.

#include <gtest/gtest.h>

#include <random>

#include "tests/support/geometry_builders.h"

namespace hostkv::testing {
namespace {

using Random = std::mt19937_64;

std::int64_t pick(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

KvCacheGroup random_group(Random& random, std::int64_t unit) {
  const std::int64_t block = unit * pick(random, 1, 4);
  switch (pick(random, 0, 4)) {
    case 0:
      return full(block, pick(random, 0, 1) == 1);
    case 1:
      return mla(block, pick(random, 0, 1) == 1);
    case 2:
      return window(block, pick(random, 1, 5 * block), pick(random, 0, 1) * pick(random, 0, 9));
    case 3:
      return chunked(block, block * pick(random, 1, 4));
    default:
      return mamba(block);
  }
}

GeometrySpec random_spec(Random& random) {
  GeometrySpec spec;
  const std::int64_t unit = pick(random, 1, 8);
  for (std::int64_t i = pick(random, 1, 4); i > 0; --i) {
    spec.groups.push_back(random_group(random, unit));
    KvCacheGroup& group = spec.groups.back();
    group.eagle = pick(random, 0, 3) == 0 && group.kind != GroupKind::kMamba && group.kind != GroupKind::kChunkedLocal;
  }
  spec.parallel = dcp_of(pick(random, 1, 4));
  return spec;
}

// Is token t read when the token at position B is computed?
bool model_reads(const KvCacheGroup& group, std::int64_t token, std::int64_t boundary) {
  switch (group.kind) {
    case GroupKind::kSlidingWindow:
      return token > boundary - group.window_tokens;
    case GroupKind::kChunkedLocal:
      return token / group.chunk_tokens == boundary / group.chunk_tokens;
    default:
      return true;
  }
}

// A token that the engine keeps although nothing reads it.
bool model_retains(const KvCacheGroup& group, std::int64_t token, std::int64_t boundary) {
  return model_reads(group, token + group.extra_retained_tokens, boundary);
}

std::set<std::int64_t> as_set(const BlockIndexRange& range) {
  std::set<std::int64_t> blocks;
  for (std::int64_t i = range.first_block; i < range.end_block; ++i) {
    blocks.insert(i);
  }
  return blocks;
}

class NeedsModel {
 public:
  NeedsModel(const Geometry& geometry, GroupIndex g)
      : geometry_(geometry), g_(g), group_(geometry.group(g)), span_(geometry.span_tokens(g)) {}

  // Blocks with a token that `wanted` names; of a recurrent group the one whose state is at the boundary.
  template <class Wanted>
  [[nodiscard]] std::set<std::int64_t> blocks(std::int64_t boundary, Wanted wanted) const {
    std::set<std::int64_t> out;
    for (std::int64_t token = 0; token < boundary; ++token) {
      const bool state = group_.kind != GroupKind::kMamba || token + 1 == boundary;
      if (state && wanted(group_, token, boundary)) {
        out.insert(token / span_);
      }
    }
    return out;
  }

  void check(std::int64_t boundary) const {
    const std::set<std::int64_t> needed = as_set(geometry_.needs(g_, boundary));
    EXPECT_EQ(needed, blocks(boundary, model_retains)) << "boundary " << boundary;
    const auto lookup = geometry_.lookup_need(g_, boundary);
    EXPECT_EQ(lookup.has_value(), boundary % geometry_.hit_alignment_tokens() == 0) << "boundary " << boundary;
    if (lookup) {
      check_lookup(boundary, *lookup);
    }
  }

 private:
  // R20: what a lookup sees contains what will be read; a group that drops sees exactly one unit more.
  void check_lookup(std::int64_t boundary, const LookupNeed& lookup) const {
    std::set<std::int64_t> expected = blocks(boundary, model_reads);
    std::int64_t tail = boundary;
    if (boundary > 0 && geometry_.drops_unit(g_)) {
      const bool whole_block = group_.kind == GroupKind::kSlidingWindow || !geometry_.fine_hits();
      tail += whole_block ? span_ : std::min(geometry_.hash_block_tokens(), span_);
      expected.insert((tail - 1) / span_);
    }
    EXPECT_EQ(as_set(lookup.blocks), expected) << "boundary " << boundary;
    EXPECT_EQ(lookup.tail_boundary_tokens, tail) << "boundary " << boundary;
    if (group_.kind == GroupKind::kSlidingWindow) {
      EXPECT_LE(lookup.blocks.end_block - lookup.blocks.first_block, geometry_.lookup_run_blocks(g_));
    }
  }

  const Geometry& geometry_;
  GroupIndex g_;
  const KvCacheGroup& group_;
  std::int64_t span_;
};

void check_sizes(const Geometry& geometry) {
  for (std::uint32_t i = 0; i < geometry.num_groups(); ++i) {
    const GroupIndex g{i};
    const std::int64_t ranks = geometry.group(g).sharded ? geometry.spec().parallel.dcp : 1;
    EXPECT_EQ(geometry.span_tokens(g), geometry.group(g).block_tokens * ranks);
    EXPECT_EQ(geometry.scheduler_block_tokens() % geometry.span_tokens(g), 0);
    EXPECT_EQ(geometry.span_tokens(g) % geometry.hash_block_tokens(), 0);
  }
}

void check_token_ranges(Random& random, const Geometry& geometry, GroupIndex g) {
  const std::int64_t begin = pick(random, 0, 300);
  const std::int64_t end = begin + pick(random, 0, 100);
  std::set<std::int64_t> touched;
  for (std::int64_t token = begin; token < end; ++token) {
    touched.insert(token / geometry.span_tokens(g));
  }
  EXPECT_EQ(as_set(geometry.blocks_of_tokens(g, begin, end)), touched) << begin << " to " << end;
}

TEST(Needs, AgreeWithATokenByTokenModelOverRandomGroups) {
  const std::uint64_t seed = test_seed();
  ::testing::Test::RecordProperty("seed", std::to_string(seed));
  Random random(seed);
  int accepted = 0;
  int fine = 0;
  int dropping = 0;
  for (std::uint64_t round = 0; round < test_rounds(400); ++round) {
    const Result<Geometry> geometry = Geometry::resolve(random_spec(random));
    if (!geometry) {
      continue;
    }
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " round " << round);
    ++accepted;
    fine += geometry->fine_hits() ? 1 : 0;
    check_sizes(*geometry);
    for (std::uint32_t i = 0; i < geometry->num_groups(); ++i) {
      SCOPED_TRACE(geometry->group_label(GroupIndex{i}));
      dropping += geometry->drops_unit(GroupIndex{i}) ? 1 : 0;
      const NeedsModel model(*geometry, GroupIndex{i});
      const std::int64_t step = geometry->hit_alignment_tokens();
      for (int probe = 0; probe < 6; ++probe) {
        model.check(probe == 0 ? 0 : pick(random, 1, 400));
        model.check(pick(random, 0, 600 / step + 2) * step);
        check_token_ranges(random, *geometry, GroupIndex{i});
      }
    }
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(fine, 0) << "of " << accepted;
  EXPECT_GT(dropping, 0);
}

}  // namespace
}  // namespace hostkv::testing
