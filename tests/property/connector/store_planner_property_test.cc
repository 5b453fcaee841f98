// C3, R20: everything that a lookup wants at a boundary that was planned is stored, over random geometries and steps.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/property/connector/planner_harness.h"
#include "tests/support/random_geometry.h"

namespace hostkv::testing {
namespace {

// One request from its first token to its last, in random steps, with tables as an engine has them.
class FullRun {
 public:
  FullRun(Random& random, const Geometry& geometry)
      : random_(random),
        geometry_(geometry),
        step_(geometry.scheduler_block_tokens()),
        num_tokens_(pick(random, 1, 8 * step_)),
        host_(geometry, 5000),
        request_(host_.request(1, num_tokens_)) {
    for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
      has_align_states_ = has_align_states_ || is_align(g);
    }
  }

  void run() {
    while (computed_ < num_tokens_) {
      const std::int64_t next = std::min(num_tokens_, computed_ + pick(random_, 1, 3 * step_));
      update_tables(next);
      host_.plan(request_, next, hand_offs(next));
      computed_ = next;
      if (one_in(random_, 2)) {
        host_.finish_copies();
      }
    }
    host_.finish_copies();
  }

  // Without evictions: the largest boundary whose every unit was written and whose states were handed off.
  void check() {
    const std::int64_t repeated = num_tokens_ + pick(random_, 0, 2);
    const std::int64_t expected = largest_storable(repeated);
    EXPECT_EQ(host_.hit(request_.hashes, repeated), expected) << "tokens " << num_tokens_;
    EXPECT_EQ(host_.metrics.dropped_full_blocks, 0);
    EXPECT_EQ(host_.metrics.unstorable_boundaries, 0);
    num_hits += expected > 0 ? 1 : 0;
  }

  int num_hits = 0;

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
      if (!has_align_states_ || one_in(random_, 3)) {
        continue;
      }
      handed_off_.insert(boundary);
      for (std::uint32_t g = 0; g < geometry_.num_groups(); ++g) {
        if (is_align(g)) {
          made.push_back(host_.hand_off(request_, g, ++last_state_, boundary));
        }
      }
    }
    return made;
  }

  [[nodiscard]] std::int64_t largest_storable(std::int64_t repeated) const {
    const std::int64_t hashed = request_.hashes.hashed_tokens();
    const std::int64_t reach = geometry_.num_groups() == 1 ? std::min(repeated - 1, hashed) : hashed;
    for (std::int64_t boundary = (repeated - 1) / step_ * step_; boundary > 0; boundary -= step_) {
      bool everywhere = !has_align_states_ || handed_off_.contains(boundary);
      for (std::uint32_t g = 0; g < geometry_.num_groups(); ++g) {
        everywhere = everywhere && (!geometry_.offloadable(GroupIndex{g}) ||
                                    geometry_.lookup_need(GroupIndex{g}, boundary)->tail_boundary_tokens <= reach);
      }
      if (everywhere) {
        return boundary;
      }
    }
    return 0;
  }

  Random& random_;
  const Geometry& geometry_;
  std::int64_t step_;
  std::int64_t num_tokens_;
  PlannerHarness host_;
  RequestState request_;
  bool has_align_states_ = false;
  std::int64_t computed_ = 0;
  std::set<std::int64_t> handed_off_;
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

TEST(StorePlanner, StoresWhatALookupWantsAtEveryBoundaryOverRandomGeometries) {
  const std::uint64_t seed = test_seed();
  RecordProperty("seed", std::to_string(seed));
  Random random(seed);
  int num_runs = 0;
  int num_hits = 0;
  for (std::uint64_t round = 0; round < test_rounds(3'000); ++round) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " round " << round);
    const Result<Geometry> fine = Geometry::resolve(random_spec(random));
    const Result<Geometry> geometry = fine ? working_geometry(*fine, Boundaries::kCoarse) : fine;
    if (!geometry || geometry->scheduler_block_tokens() > 200 || !offloads_anything(*geometry)) {
      continue;
    }
    SCOPED_TRACE(described(*geometry));
    FullRun full_run(random, *geometry);
    full_run.run();
    full_run.check();
    ++num_runs;
    num_hits += full_run.num_hits;
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
  RecordProperty("runs", num_runs);
  RecordProperty("hits", num_hits);
  EXPECT_GT(num_hits, num_runs / 4);
}

}  // namespace
}  // namespace hostkv::testing
