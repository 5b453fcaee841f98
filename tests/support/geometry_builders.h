#ifndef HOSTKV_TESTS_SUPPORT_GEOMETRY_BUILDERS_H_
#define HOSTKV_TESTS_SUPPORT_GEOMETRY_BUILDERS_H_

// Short ways to write geometries in tests: `resolved({.groups = {full(16), mamba(16)}, .parallel = dcp_of(2)})`.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "hostkv/geometry.h"

namespace hostkv::testing {

inline KvCacheGroup full(std::int64_t block, bool sharded = true) {
  return {.kind = GroupKind::kFullAttention, .block_tokens = block, .sharded = sharded};
}
inline KvCacheGroup mla(std::int64_t block, bool sharded = true) {
  return {.kind = GroupKind::kMla, .block_tokens = block, .sharded = sharded};
}
inline KvCacheGroup window(std::int64_t block, std::int64_t window_tokens, std::int64_t extra = 0) {
  return {.kind = GroupKind::kSlidingWindow,
          .block_tokens = block,
          .window_tokens = window_tokens,
          .extra_retained_tokens = extra};
}
inline KvCacheGroup chunked(std::int64_t block, std::int64_t chunk) {
  return {.kind = GroupKind::kChunkedLocal, .block_tokens = block, .chunk_tokens = chunk};
}
inline KvCacheGroup mamba(std::int64_t block, MambaMode mode = MambaMode::kAlign) {
  return {.kind = GroupKind::kMamba, .block_tokens = block, .mamba_mode = mode};
}
inline KvCacheGroup ring(std::int64_t block) {
  return {.kind = GroupKind::kScratch, .block_tokens = block, .cacheable = false};
}
inline KvCacheGroup draft(KvCacheGroup group) {
  group.eagle = true;
  return group;
}

inline ParallelLayout dcp_of(std::int64_t dcp, std::int64_t interleave = 1) {
  return {.tp = dcp, .dcp = dcp, .interleave_tokens = interleave};
}

inline Geometry resolved(GeometrySpec spec) {
  Result<Geometry> made = Geometry::resolve(std::move(spec));
  EXPECT_TRUE(made.has_value()) << (made ? "" : made.error().message());
  return made ? *std::move(made) : *Geometry::resolve({.groups = {full(1)}});
}

// "" when it resolves.
inline std::string refusal_of(GeometrySpec spec) {
  const Result<Geometry> made = Geometry::resolve(std::move(spec));
  if (made) {
    return "";
  }
  EXPECT_EQ(made.error().code(), StatusCode::kInvalidArgument);
  return made.error().message();
}

// What a cache of a test holds: of each group the boundaries at which its blocks are keyed.
using CachedKeys = std::vector<std::set<std::int64_t>>;

// Keys of whole blocks.
inline std::set<std::int64_t> block_keys(std::int64_t span, const std::vector<std::int64_t>& blocks) {
  std::set<std::int64_t> keys;
  for (const std::int64_t block : blocks) {
    keys.insert((block + 1) * span);
  }
  return keys;
}

inline bool holds(const Geometry& geometry, GroupIndex g, const LookupNeed& need, const std::set<std::int64_t>& keys) {
  for (std::int64_t i = need.blocks.first_block; i < need.blocks.end_block; ++i) {
    const bool last = i + 1 == need.blocks.end_block;
    if (!keys.contains(last ? need.tail_boundary_tokens : (i + 1) * geometry.span_tokens(g))) {
      return false;
    }
  }
  return true;
}

// The longest boundary up to `limit_tokens` that every group answers: one try per candidate, from the top.
inline std::int64_t longest_hit(const Geometry& geometry, const CachedKeys& cached, std::int64_t limit_tokens) {
  const std::int64_t step = geometry.hit_alignment_tokens();
  for (std::int64_t boundary = limit_tokens / step * step; boundary > 0; boundary -= step) {
    bool everywhere = true;
    for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
      const auto need = geometry.lookup_need(GroupIndex{g}, boundary);
      everywhere = everywhere && need && holds(geometry, GroupIndex{g}, *need, cached[g]);
    }
    if (everywhere) {
      return boundary;
    }
  }
  return 0;
}

// The same cache on `num_workers` workers, all of them TP ranks.
inline Geometry with_workers(const Geometry& geometry, std::int64_t num_workers) {
  GeometrySpec spec = geometry.spec();
  spec.parallel.tp = num_workers;
  return Geometry::resolve(std::move(spec)).value();
}

inline std::uint64_t number_from_environment(const char* name, std::uint64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
}
inline std::uint64_t test_seed() {
  return number_from_environment("HOSTKV_TEST_SEED", 20260211);
}
inline std::uint64_t test_rounds(std::uint64_t fallback) {
  return number_from_environment("HOSTKV_TEST_ROUNDS", fallback);
}
// Long runs are for builds at full speed; fewer rounds where every access is watched.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(NDEBUG)
inline constexpr bool kIsWatched = true;
#else
inline constexpr bool kIsWatched = false;
#endif
inline std::uint64_t test_rounds(std::uint64_t fallback, std::uint64_t watched) {
  return test_rounds(kIsWatched ? watched : fallback);
}

}  // namespace hostkv::testing

#endif  // HOSTKV_TESTS_SUPPORT_GEOMETRY_BUILDERS_H_
