// R2, R3: the joint lookup over device and host finds the largest boundary that exists, over random geometries (every
// kind of group, DCP 1 to 8, drafts, fine and coarse boundaries) and random holes in both caches.

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/property/connector/joint_case.h"

namespace hostkv::testing {
namespace {

// Keys of whole blocks in runs, and, where hits are fine, some inside blocks.
std::set<std::int64_t> random_keys(Random& random, const Geometry& geometry, std::uint32_t g, std::int64_t hashed) {
  constexpr double kShares[] = {0.0, 0.5, 0.9, 0.97, 1.0, 1.0};
  const double share = kShares[pick(random, 0, 5)];
  const double inner_share = geometry.fine_hits() ? kShares[pick(random, 0, 2)] : 0.0;
  const std::int64_t span = geometry.span_tokens(GroupIndex{g});
  const std::int64_t unit = geometry.hash_block_tokens();
  std::set<std::int64_t> keys;
  for (std::int64_t key = unit; key <= hashed; key += unit) {
    if (happens(random, key % span == 0 ? share : inner_share)) {
      keys.insert(key);
    }
  }
  return keys;
}

// Each key to the host, to the device or to both.
void deal(Random& random, const std::set<std::int64_t>& keys, std::int64_t way, JointCase& c) {
  std::set<std::int64_t>& host = c.host.emplace_back();
  std::set<std::int64_t>& device = c.device.emplace_back();
  for (const std::int64_t key : keys) {
    const std::int64_t drawn = way < 3 ? way : pick(random, 0, 2);
    if (drawn != 1) {
      host.insert(key);
    }
    if (drawn != 0) {
      device.insert(key);
    }
  }
}

TEST(JointLookup, AgreesWithTryingEveryBoundaryOnEveryDealOfTheKeys) {
  const std::uint64_t seed = test_seed();
  RecordProperty("seed", std::to_string(seed));
  Random random(seed);
  std::uint64_t num_cases = 0;
  std::uint64_t num_hits = 0;
  std::uint64_t num_inside_blocks = 0;
  const std::uint64_t rounds = test_rounds(100'000, 4'000);
  while (num_cases < rounds) {
    const std::optional<Geometry> geometry = random_joint_geometry(random);
    if (!geometry) {
      continue;
    }
    const std::int64_t unit = geometry->hash_block_tokens();
    const std::int64_t step = geometry->hit_alignment_tokens();
    for (int i = 0; i < 8; ++i, ++num_cases) {
      JointCase c{.geometry = *geometry, .host = {}, .device = {}};
      c.hashed_tokens =
          pick(random, 0, std::min<std::int64_t>(4 * geometry->scheduler_block_tokens(), 240)) / unit * unit;
      c.num_tokens = pick(random, 1, c.hashed_tokens + unit);
      c.num_local_tokens = one_in(random, 2) ? 0 : pick(random, 0, (c.num_tokens - 1) / step) * step;
      const std::int64_t way = pick(random, 0, 5);  // host alone, device alone, both, and three times mixed
      for (std::uint32_t g = 0; g < geometry->num_groups(); ++g) {
        deal(random, random_keys(random, *geometry, g, c.hashed_tokens), way, c);
      }
      if (!problem_of(c).empty()) {
        const JointCase least = shrunk(c);
        FAIL() << "seed " << seed << " case " << num_cases << ": " << problem_of(least) << "\n" << described(least);
      }
      const std::int64_t hit = longest_by_trying_all(c);
      num_hits += hit > c.num_local_tokens ? 1U : 0U;
      num_inside_blocks += hit > c.num_local_tokens && hit % geometry->scheduler_block_tokens() != 0 ? 1U : 0U;
    }
  }
  RecordProperty("cases", std::to_string(num_cases));
  RecordProperty("hits", std::to_string(num_hits));
  RecordProperty("inside_blocks", std::to_string(num_inside_blocks));
  EXPECT_GT(num_hits, num_cases / 10);
  EXPECT_GT(num_inside_blocks, num_cases / 200);
  EXPECT_GT(num_known_early, num_cases / 10) << "no lookup was answered by its first hashes";
}

}  // namespace
}  // namespace hostkv::testing
