// The worked examples V1 to V5 of the engine's semantics, on the device cache alone.

#include "bench/engine/prefix_lookup.h"

#include <gtest/gtest.h>

#include "tests/support/engine_support.h"

namespace hostkv::bench::testing {
namespace {

class DeviceCache {
 public:
  explicit DeviceCache(std::vector<KvCacheGroup> groups) : pool_(100), geometry_(resolve(std::move(groups))) {}

  void set_prompt(std::int64_t num_tokens) {
    request_.tokens = make_prompt(num_tokens);
    request_.num_prompt_tokens = num_tokens;
    request_.hashes.clear();
    extend_prefix_hashes(request_.tokens, geometry_.hash_block_tokens(), request_.hashes);
  }
  // Block `index` of a group is in the cache.
  void put(std::uint32_t group, std::initializer_list<std::int64_t> indices) {
    for (const std::int64_t index : indices) {
      std::vector<BlockId> block;
      pool_.allocate(1, block);
      const GroupIndex g{group};
      const std::int64_t end = (index + 1) * geometry_.span_tokens(g);
      pool_.insert(CacheKey{request_.hashes[static_cast<std::size_t>(end / geometry_.hash_block_tokens() - 1)], g},
                   block[0]);
    }
  }
  [[nodiscard]] PrefixHit find() const { return find_longest_prefix(geometry_, pool_, request_); }

 private:
  static Geometry resolve(std::vector<KvCacheGroup> groups) {
    GeometrySpec spec;
    spec.groups = std::move(groups);
    spec.fine_hits = false;
    return *Geometry::resolve(spec);
  }
  BlockPool pool_;
  Geometry geometry_;
  Request request_;
};

TEST(PrefixLookup, V1AnswersWholeBlocksAndLeavesOneTokenToCompute) {
  for (const auto& [prompt, hit] : {std::pair{100, 96}, std::pair{96, 80}, std::pair{97, 96}}) {
    DeviceCache cache({full(16)});
    cache.set_prompt(prompt);
    cache.put(0, {0, 1, 2, 3, 4, 5});
    EXPECT_EQ(cache.find().boundary_tokens, hit) << prompt;
    EXPECT_EQ(cache.find().groups[0].blocks.size(), static_cast<std::size_t>(hit / 16));
  }
}

TEST(PrefixLookup, V2DropsOneBlockOfADraftGroup) {
  KvCacheGroup draft = full(16);
  draft.eagle = true;
  DeviceCache cache({draft});
  cache.set_prompt(100);
  cache.put(0, {0, 1, 2, 3, 4, 5});
  EXPECT_EQ(cache.find().boundary_tokens, 80);
  EXPECT_EQ(cache.find().groups[0].blocks.size(), 5U);
}

TEST(PrefixLookup, ADraftUnitMayEndWithThePromptBesideOtherGroupsButNotAlone) {
  KvCacheGroup draft = full(16);
  draft.eagle = true;
  DeviceCache alone({draft});
  alone.set_prompt(96);
  alone.put(0, {0, 1, 2, 3, 4, 5});
  EXPECT_EQ(alone.find().boundary_tokens, 64);
  DeviceCache beside({full(16), draft});
  beside.set_prompt(96);
  beside.put(0, {0, 1, 2, 3, 4, 5});
  beside.put(1, {0, 1, 2, 3, 4, 5});
  EXPECT_EQ(beside.find().boundary_tokens, 80);
}

TEST(PrefixLookup, V3AWindowNeedsItsLastBlocksOnly) {
  const auto hit_with = [](std::initializer_list<std::int64_t> blocks) {
    DeviceCache cache({window(16, 40)});
    cache.set_prompt(100);
    cache.put(0, blocks);
    return cache.find();
  };
  EXPECT_EQ(hit_with({3, 4, 5}).boundary_tokens, 96);
  EXPECT_EQ(hit_with({3, 4, 5}).groups[0].first_block, 3);
  EXPECT_EQ(hit_with({0, 1}).boundary_tokens, 32);
  EXPECT_EQ(hit_with({1, 2}).boundary_tokens, 0);
}

TEST(PrefixLookup, V4AWindowLimitsFullAttention) {
  DeviceCache cache({full(16), window(16, 40)});
  cache.set_prompt(100);
  cache.put(0, {0, 1, 2, 3, 4, 5});
  cache.put(1, {1, 2, 3});
  const PrefixHit hit = cache.find();
  EXPECT_EQ(hit.boundary_tokens, 64);
  EXPECT_EQ(hit.groups[0].blocks.size(), 4U);
  EXPECT_EQ(hit.groups[1].first_block, 1);
  EXPECT_EQ(hit.junction_tokens, 96);
}

TEST(PrefixLookup, V5AStateMustBeThereAtTheBoundary) {
  DeviceCache with_both({full(32), mamba(32)});
  with_both.set_prompt(160);
  with_both.put(0, {0, 1, 2, 3, 4});
  with_both.put(1, {1, 3});
  const PrefixHit hit = with_both.find();
  EXPECT_EQ(hit.boundary_tokens, 128);
  EXPECT_EQ(hit.groups[0].blocks.size(), 4U);
  EXPECT_EQ(hit.groups[1].first_block, 3);
  EXPECT_EQ(hit.groups[1].blocks.size(), 1U);

  DeviceCache without_last({full(32), mamba(32)});
  without_last.set_prompt(160);
  without_last.put(0, {0, 1, 2, 3, 4});
  without_last.put(1, {1});
  EXPECT_EQ(without_last.find().boundary_tokens, 64);
  EXPECT_EQ(without_last.find().junction_tokens, 128);
}

TEST(PrefixLookup, ARecurrentGroupWithoutStatesAllowsNoHit) {
  DeviceCache cache({full(16), mamba(16, MambaMode::kNone)});
  cache.set_prompt(100);
  cache.put(0, {0, 1, 2, 3, 4, 5});
  EXPECT_EQ(cache.find().boundary_tokens, 0);
}

TEST(PrefixLookup, AScratchGroupTakesNoPart) {
  DeviceCache cache({full(16), ring(16)});
  cache.set_prompt(100);
  cache.put(0, {0, 1, 2, 3, 4, 5});
  EXPECT_EQ(cache.find().boundary_tokens, 96);
}

}  // namespace
}  // namespace hostkv::bench::testing
