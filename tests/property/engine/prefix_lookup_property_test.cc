// The device lookup against a model that asks for every boundary and every token what attention would read.

#include <gtest/gtest.h>

#include <set>

#include "bench/engine/prefix_lookup.h"
#include "tests/support/engine_support.h"

namespace hostkv::bench::testing {
namespace {

struct Model {
  std::vector<KvCacheGroup> groups;
  std::vector<std::set<std::int64_t>> present;  // [groups] block indices in the cache
  std::int64_t scheduler_block = 0;
  std::int64_t num_tokens = 0;

  [[nodiscard]] bool has_token(std::size_t g, std::int64_t token) const {
    return present[g].contains(token / groups[g].block_tokens);
  }
  [[nodiscard]] bool serves(std::size_t g, std::int64_t boundary) const {
    const KvCacheGroup& group = groups[g];
    if (group.kind == GroupKind::kScratch) return true;
    if (group.kind == GroupKind::kMamba) return present[g].contains(boundary / group.block_tokens - 1);
    // A draft group must see one block more than it answers.
    const std::int64_t end = boundary + (group.eagle ? group.block_tokens : 0);
    // One group never looks behind the last token but one, several look at every whole block.
    if (end > (groups.size() == 1 ? num_tokens - 1 : num_tokens)) return false;
    std::int64_t begin = 0;
    if (group.kind == GroupKind::kSlidingWindow) begin = std::max<std::int64_t>(0, boundary - group.window_tokens + 1);
    if (group.kind == GroupKind::kChunkedLocal) begin = boundary / group.chunk_tokens * group.chunk_tokens;
    for (std::int64_t token = begin; token < end; ++token) {
      if (!has_token(g, token)) return false;
    }
    return true;
  }
  [[nodiscard]] std::int64_t longest() const {
    for (std::int64_t b = (num_tokens - 1) / scheduler_block * scheduler_block; b > 0; b -= scheduler_block) {
      bool all = true;
      for (std::size_t g = 0; g < groups.size(); ++g) all = all && serves(g, b);
      if (all) return b;
    }
    return 0;
  }
};

class LookupCase {
 public:
  explicit LookupCase(std::uint64_t seed) : random_(seed) {}

  void run() {
    Model model;
    model.groups = pick_groups();
    GeometrySpec spec;
    spec.groups = model.groups;
    spec.fine_hits = false;
    const Result<Geometry> geometry = Geometry::resolve(spec);
    ASSERT_TRUE(geometry) << geometry.error().to_string();
    model.scheduler_block = geometry->scheduler_block_tokens();
    model.num_tokens = pick(1, 12 * model.scheduler_block);
    BlockPool pool(1000);
    Request request;
    request.tokens = make_prompt(model.num_tokens);
    extend_prefix_hashes(request.tokens, geometry->hash_block_tokens(), request.hashes);
    fill(*geometry, request, pool, model);
    const PrefixHit hit = find_longest_prefix(*geometry, pool, request);
    EXPECT_EQ(hit.boundary_tokens, model.longest());
    for (std::uint32_t g = 0; g < geometry->num_groups(); ++g) {
      if (hit.boundary_tokens == 0) continue;
      const BlockIndexRange needed = geometry->needs(GroupIndex{g}, hit.boundary_tokens);
      EXPECT_EQ(std::ssize(hit.groups[g].blocks), std::max<std::int64_t>(0, needed.end_block - needed.first_block));
    }
  }

 private:
  std::int64_t pick(std::int64_t low, std::int64_t high) { return hostkv::testing::pick(random_, low, high); }
  std::vector<KvCacheGroup> pick_groups() {
    std::vector<KvCacheGroup> groups{full(4 * pick(1, 2))};
    groups[0].eagle = pick(0, 3) == 0;
    if (pick(0, 1) == 1) groups.push_back(window(4, pick(1, 20)));
    if (pick(0, 1) == 1) groups.push_back(mamba(8));
    if (pick(0, 1) == 1) groups.push_back(chunked(8, 8 * pick(1, 3)));
    if (pick(0, 1) == 1) groups.push_back(ring(4));
    return groups;
  }
  void fill(const Geometry& geometry, const Request& request, BlockPool& pool, Model& model) {
    model.present.resize(model.groups.size());
    for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
      if (!is_cached_group(geometry, GroupIndex{g})) continue;
      const std::int64_t span = geometry.span_tokens(GroupIndex{g});
      const std::int64_t one_in = pick(2, 12);
      for (std::int64_t i = 0; i < model.num_tokens / span; ++i) {
        if (pick(1, one_in) == 1) continue;
        std::vector<BlockId> block;
        pool.allocate(1, block);
        const auto hash = static_cast<std::size_t>((i + 1) * span / geometry.hash_block_tokens() - 1);
        pool.insert(CacheKey{request.hashes[hash], GroupIndex{g}}, block[0]);
        model.present[g].insert(i);
      }
    }
  }
  Random random_;
};

TEST(PrefixLookupProperty, AnswersTheLongestBoundaryThatEveryGroupServes) {
  const std::uint64_t first_seed = first_test_seed();
  const std::uint64_t rounds = 20 * test_rounds(20);
  for (std::uint64_t seed = first_seed; seed < first_seed + rounds && !HasFailure(); ++seed) {
    SCOPED_TRACE("HOSTKV_TEST_SEED=" + std::to_string(seed));
    LookupCase(seed).run();
  }
}

}  // namespace
}  // namespace hostkv::bench::testing
