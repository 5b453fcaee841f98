// C3, R20: what is stored is what a lookup wants at every boundary that could be planned, no more and no less, over
// random geometries and steps; D12: what evictions took out of a running request's chain comes back.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/property/connector/joint_case.h"
#include "tests/property/connector/planner_harness.h"
#include "tests/support/random_geometry.h"

namespace hostkv::testing {
namespace {

using Moment = StorePlanner::Moment;

// One request from its first token to its last, in random steps, with tables as an engine has them.
class FullRun {
 public:
  FullRun(Random& random, const Geometry& geometry)
      : random_(random),
        geometry_(geometry),
        step_(geometry.hit_alignment_tokens()),
        num_tokens_(pick(random, 1, 6 * geometry.scheduler_block_tokens())),
        host_(geometry, 5000),
        request_(host_.request(1, num_tokens_)) {
    for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
      has_align_states_ = has_align_states_ || is_align(g);
    }
  }

  void run() {
    while (computed_ < num_tokens_) {
      const std::int64_t next =
          std::min(num_tokens_, computed_ + pick(random_, 1, 3 * geometry_.scheduler_block_tokens()));
      update_tables(next);
      host_.plan(request_, next, hand_offs(next));
      computed_ = next;
      if (one_in(random_, 2)) {
        host_.finish_copies();
      }
    }
    host_.plan(request_, computed_, {}, Moment::kEnd);
    host_.finish_copies();
  }

  // Without evictions.
  void check() {
    const CachedKeys expected = expected_keys();
    for (std::uint32_t g = 0; g < geometry_.num_groups(); ++g) {
      for (std::int64_t key = geometry_.hash_block_tokens(); key <= request_.hashes.hashed_tokens();
           key += geometry_.hash_block_tokens()) {
        EXPECT_EQ(host_.holds(request_.hashes, g, key), expected[g].contains(key)) << "group " << g << " key " << key;
      }
    }
    JointCase repeat{.geometry = geometry_, .host = expected, .device = CachedKeys(geometry_.num_groups())};
    repeat.hashed_tokens = request_.hashes.hashed_tokens();
    repeat.num_tokens = num_tokens_ + pick(random_, 0, 2);
    const std::int64_t hit = host_.hit(request_.hashes, repeat.num_tokens);
    EXPECT_EQ(hit, longest_by_trying_all(repeat)) << "tokens " << num_tokens_;
    EXPECT_EQ(host_.metrics.dropped_full_blocks, 0);
    EXPECT_EQ(host_.metrics.unstorable_boundaries, 0);
    num_hits += hit > 0 ? 1 : 0;
    num_inside_blocks += hit % geometry_.scheduler_block_tokens() != 0 ? 1 : 0;
  }

  int num_hits = 0;
  int num_inside_blocks = 0;

 private:
  [[nodiscard]] bool is_align(std::uint32_t g) const {
    const KvCacheGroup& group = geometry_.group(GroupIndex{g});
    return geometry_.offloadable(GroupIndex{g}) && group.kind == GroupKind::kMamba &&
           group.mamba_mode == MambaMode::kAlign;
  }

  // What was no longer read before this step is null; an align table is never to be read.
  void update_tables(std::int64_t next) {
    for (std::uint32_t g = 0; g < geometry_.num_groups(); ++g) {
      if (is_align(g)) {
        continue;
      }
      const std::int64_t span = geometry_.span_tokens(GroupIndex{g});
      host_.extend_table(request_, g, (next + span - 1) / span);
      std::vector<BlockId>& table = host_.engine.table(request_.id, g);
      const auto num_null = static_cast<std::size_t>(geometry_.skipped_tokens(GroupIndex{g}, computed_) / span);
      for (std::size_t i = 0; i < table.size() && i < num_null; ++i) {
        table[i] = kNullBlock;
      }
    }
  }

  // Some of the boundaries that this step passes, all align groups at each.
  std::vector<BoundaryHandOff> hand_offs(std::int64_t next) {
    std::vector<BoundaryHandOff> made;
    for (std::int64_t boundary = computed_ / step_ * step_ + step_; boundary <= next; boundary += step_) {
      if (has_align_states_ && one_in(random_, 3)) {
        continue;
      }
      boundaries_.insert(boundary);
      for (std::uint32_t g = 0; g < geometry_.num_groups(); ++g) {
        if (is_align(g)) {
          made.push_back(host_.hand_off(request_, g, ++last_state_, boundary));
        }
      }
    }
    return made;
  }

  // By the rules, a group at a time: the state; the window with its extra unit; all blocks, the last one under the key
  // that a lookup asks for.
  [[nodiscard]] CachedKeys expected_keys() const {
    CachedKeys keys(geometry_.num_groups());
    for (const std::int64_t boundary : boundaries_) {
      for (std::uint32_t g = 0; g < geometry_.num_groups(); ++g) {
        if (geometry_.offloadable(GroupIndex{g}) && boundary <= request_.hashes.hashed_tokens()) {
          add_keys(g, boundary, keys[g]);
        }
      }
    }
    return keys;
  }

  void add_keys(std::uint32_t g, std::int64_t boundary, std::set<std::int64_t>& keys) const {
    const KvCacheGroup& group = geometry_.group(GroupIndex{g});
    const std::int64_t span = geometry_.span_tokens(GroupIndex{g});
    const std::int64_t written = std::min(computed_, request_.hashes.hashed_tokens());
    const bool drops = geometry_.drops_unit(GroupIndex{g});
    if (group.kind == GroupKind::kMamba) {
      keys.insert(boundary);
      return;
    }
    if (group.kind == GroupKind::kFullAttention || group.kind == GroupKind::kMla) {
      const std::int64_t tail = boundary + (drops ? std::min(step_, span) : 0);
      const std::int64_t end = tail <= written ? tail : boundary / span * span;
      for (std::int64_t key = span; key <= end; key += span) {
        keys.insert(key);
      }
      if (end % span != 0) {
        keys.insert(end);
      }
      return;
    }
    std::int64_t first = boundary / std::max<std::int64_t>(group.chunk_tokens, 1) * group.chunk_tokens;
    std::int64_t end = boundary;
    if (group.kind == GroupKind::kSlidingWindow) {
      const std::int64_t read = boundary - (group.window_tokens - 1 + span - 1) / span * span;
      const std::int64_t kept = boundary - (group.window_tokens - 1) - group.extra_retained_tokens;
      const bool is_unit_there = drops && boundary + span <= written;
      end = boundary + (is_unit_there ? span : 0);
      // Without its unit the boundary cannot be answered yet: what a lookup wants more than a load does waits for it.
      const bool is_seen = !drops || is_unit_there;
      first = std::max<std::int64_t>(
          0, kept >= boundary ? (is_seen ? read : boundary) : (is_seen ? std::min(read, kept) : kept));
    }
    for (std::int64_t begin = first / span * span; begin < end; begin += span) {
      keys.insert(begin + span);
    }
  }

  Random& random_;
  const Geometry& geometry_;
  std::int64_t step_;
  std::int64_t num_tokens_;
  PlannerHarness host_;
  RequestState request_;
  bool has_align_states_ = false;
  std::int64_t computed_ = 0;
  std::set<std::int64_t> boundaries_;  // that were handed off, or passed
  std::uint32_t last_state_ = 500'000;
};

bool offloads_anything(const Geometry& geometry) {
  for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
    if (geometry.offloadable(GroupIndex{g})) {
      return true;
    }
  }
  return false;
}

TEST(StorePlanner, StoresExactlyWhatALookupWantsOverRandomGeometries) {
  const std::uint64_t seed = test_seed();
  RecordProperty("seed", std::to_string(seed));
  Random random(seed);
  std::uint64_t num_runs = 0;
  std::uint64_t num_hits = 0;
  std::uint64_t num_inside_blocks = 0;
  const std::uint64_t rounds = test_rounds(50'000, 4'000);
  for (std::uint64_t round = 0; num_runs < rounds; ++round) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " round " << round);
    const std::optional<Geometry> geometry = random_joint_geometry(random);
    if (!geometry || geometry->scheduler_block_tokens() > 200 || !offloads_anything(*geometry)) {
      continue;
    }
    SCOPED_TRACE(described(*geometry));
    FullRun full_run(random, *geometry);
    full_run.run();
    full_run.check();
    ++num_runs;
    num_hits += static_cast<std::uint64_t>(full_run.num_hits);
    num_inside_blocks += static_cast<std::uint64_t>(full_run.num_inside_blocks);
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
  RecordProperty("runs", std::to_string(num_runs));
  RecordProperty("hits", std::to_string(num_hits));
  RecordProperty("inside_blocks", std::to_string(num_inside_blocks));
  EXPECT_GT(num_hits, num_runs / 4);
  EXPECT_GT(num_inside_blocks, num_runs / 50);
}

// A long request and short ones that push its blocks out while it runs; the host has room for all of the long one.
TEST(StorePlanner, D12AtItsEndARequestFillsTheHolesThatEvictionsLeftInItsChain) {
  const std::uint64_t seed = test_seed();
  RecordProperty("seed", std::to_string(seed));
  Random random(seed);
  std::uint64_t num_refilled = 0;
  for (std::uint64_t round = 0; round < test_rounds(500); ++round) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " round " << round);
    const Geometry geometry = resolved({.groups = {full(4), mla(pick(random, 1, 3) * 4)}});
    const std::int64_t step = geometry.scheduler_block_tokens();
    const std::int64_t num_tokens = pick(random, 4, 12) * step + pick(random, 0, step - 1);
    const auto num_blocks =
        static_cast<std::uint64_t>(num_tokens / 4 + num_tokens / geometry.span_tokens(GroupIndex{1}));
    PlannerHarness host(geometry, num_blocks + static_cast<std::uint64_t>(step / 4 + 1));
    RequestState request = host.request(1, num_tokens, num_tokens / 4 + 1);
    std::uint64_t text = 1;
    bool had_hole = false;
    for (std::int64_t computed = 0; computed < num_tokens;) {
      computed = std::min(num_tokens, computed + pick(random, 1, 3 * step));
      host.plan(request, computed);
      host.finish_copies();
      RequestState other = host.request(++text, 2 * step, 2 * step / 4);
      host.plan(other, 2 * step, {}, Moment::kEnd);
      host.finish_copies();
      had_hole = had_hole || host.hit(request.hashes, computed + 1) < computed / step * step;
    }
    host.plan(request, num_tokens, {}, Moment::kEnd);
    host.finish_copies();
    ASSERT_EQ(host.hit(request.hashes, num_tokens + 1), num_tokens / step * step);
    num_refilled += had_hole ? 1U : 0U;
  }
  EXPECT_GT(num_refilled, test_rounds(500) / 4);
}

}  // namespace
}  // namespace hostkv::testing
