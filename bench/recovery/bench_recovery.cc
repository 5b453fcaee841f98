// Recover, RecoverMark and RecoverPlan: from failed loads to a boundary, to bytes for the other ranks, to a plan.
//
// One request of 1,000,000 tokens, hash block 16, fine hits (62,500 candidates), 8 ranks, six groups: full attention,
// MLA, windows of 1,024 and 4,096 tokens, chunks of 8,192, recurrent states every 1,024. dealt:1 shards attention over
// the ranks (DCP 8: 7,813 blocks a group), dealt:0 leaves all 62,500 on each. held:0: windows and chunk have moved on,
// what lies before is null; held:1: every block is still there. failed: 0 nothing, 1 the last block of full attention,
// 2 one in ten blocks on each rank, 3 all blocks on all ranks, 4 all states. The floor is one plain pass over the same
// tables in the same run.
//
// Counters: microseconds, the best iteration; ratio_to_floor; failures, loads in the list; answer, tokens.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "hostkv/recovery.h"

namespace hostkv::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kTokens = 1'000'000;
constexpr std::int64_t kStateDistance = 1'024;
constexpr std::uint32_t kRanks = 8;
constexpr std::uint32_t kStates = 5;  // the group

enum class Failures : std::int64_t { kNone, kOne, kTenth, kAll, kAllStates };

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Geometry six_groups(bool is_dealt) {
  GeometrySpec spec;
  spec.groups.resize(6);
  for (KvCacheGroup& group : spec.groups) {
    group.block_tokens = 16;
  }
  spec.groups[0].sharded = is_dealt;
  spec.groups[1].kind = GroupKind::kMla;
  spec.groups[1].sharded = is_dealt;
  spec.groups[2].kind = GroupKind::kSlidingWindow;
  spec.groups[2].window_tokens = 1'024;
  spec.groups[3].kind = GroupKind::kSlidingWindow;
  spec.groups[3].window_tokens = 4'096;
  spec.groups[4].kind = GroupKind::kChunkedLocal;
  spec.groups[4].chunk_tokens = 8'192;
  spec.groups[kStates].kind = GroupKind::kMamba;
  spec.groups[kStates].block_tokens = 64;
  spec.parallel.tp = kRanks;
  spec.parallel.dcp = is_dealt ? kRanks : 1;
  Result<Geometry> geometry = Geometry::resolve(spec);
  if (!geometry || geometry->hit_alignment_tokens() != 16) {
    std::fprintf(stderr, "the geometry is not the one that is measured\n");
    std::exit(1);
  }
  return *std::move(geometry);
}

class Rig {
 public:
  explicit Rig(const benchmark::State& state)
      : geometry_(six_groups(state.range(0) == 1)), planner_(geometry_), tables_(6), held_(6) {
    std::uint32_t last = 0;
    for (std::uint32_t i = 0; i < 6; ++i) {
      const GroupIndex g{i};
      const std::int64_t span = geometry_.span_tokens(g);
      const std::int64_t first = state.range(1) == 1 ? 0 : geometry_.needs(g, kTokens).first_block;
      for (std::int64_t block = 0; block < (kTokens + span - 1) / span; ++block) {
        const std::int64_t end = (block + 1) * span;
        const bool is_there = i == kStates ? end % kStateDistance == 0 : block >= first;
        tables_[i].push_back(is_there ? BlockId{++last} : kNullBlock);
        if (i == kStates) {
          states_.push_back(is_there ? end : 0);
        }
      }
      held_[i].table = tables_[i];
    }
    // The boundary of the load: its state is in the last column.
    tables_[kStates].back() = BlockId{++last};
    states_.back() = kTokens;
    held_[kStates].state_tokens = states_;
    request_ = {.id = RequestId{1}, .settled_tokens = kTokens, .groups = held_};
    fail(static_cast<Failures>(state.range(2)));
  }

  [[nodiscard]] RecoveryPlanner& planner() { return planner_; }
  [[nodiscard]] const HeldRequest& request() const { return request_; }
  [[nodiscard]] std::span<const FailedLoad> failed() const { return failed_; }

  [[nodiscard]] double floor_seconds() const {
    double best = 1e9;
    for (int turn = 0; turn < 21; ++turn) {
      const auto start = Clock::now();
      std::uint64_t sum = 0;
      for (const auto& table : tables_) {
        for (const BlockId block : table) {
          sum += block.value();
        }
      }
      benchmark::DoNotOptimize(sum);
      best = std::min(best, seconds_since(start));
    }
    return best;
  }

 private:
  void fail(Failures which) {
    if (which == Failures::kOne) {
      failed_.push_back({RequestId{1}, GroupIndex{0}, tables_[0].back(), RankIndex{3}});
    }
    if (which == Failures::kNone || which == Failures::kOne) {
      return;
    }
    std::mt19937 random(1);
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      for (std::uint32_t g = which == Failures::kAllStates ? kStates : 0; g < 6; ++g) {
        fail_blocks(GroupIndex{g}, RankIndex{rank}, [&] { return which != Failures::kTenth || random() % 10 == 0; });
      }
    }
  }

  template <class Fails>
  void fail_blocks(GroupIndex group, RankIndex rank, Fails fails) {
    for (const BlockId block : tables_[group.value()]) {
      if (block != kNullBlock && fails()) {
        failed_.push_back({RequestId{1}, group, block, rank});
      }
    }
  }

  Geometry geometry_;
  RecoveryPlanner planner_;
  std::vector<std::vector<BlockId>> tables_;
  std::vector<std::int64_t> states_;
  std::vector<HeldBlocks> held_;
  HeldRequest request_;
  std::vector<FailedLoad> failed_;
};

// `ask` answers the boundary.
template <class Ask>
void time_calls(benchmark::State& state, Rig& rig, Ask ask) {
  double best = 1e9;
  std::int64_t answer = 0;
  for ([[maybe_unused]] auto iteration : state) {
    const auto start = Clock::now();
    answer = ask();
    const double seconds = seconds_since(start);
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
  }
  state.counters["microseconds"] = best * 1e6;
  state.counters["ratio_to_floor"] = best / rig.floor_seconds();
  state.counters["failures"] = static_cast<double>(rig.failed().size());
  state.counters["answer"] = static_cast<double>(answer);
}

void recover(benchmark::State& state) {
  Rig rig(state);
  time_calls(state, rig, [&] { return rig.planner().safe_boundary(rig.request(), rig.failed()).value(); });
}

void mark(benchmark::State& state) {
  Rig rig(state);
  std::vector<std::uint8_t> safe(rig.planner().num_candidates(rig.request()));
  time_calls(state, rig, [&] {
    const Status status = rig.planner().mark_safe(rig.request(), rig.failed(), safe);
    return status.ok() ? std::int64_t{safe.back()} : -1;
  });
}

void plan(benchmark::State& state) {
  Rig rig(state);
  time_calls(state, rig, [&] {
    const RecoveryPlan made = rig.planner().plan(std::span(&rig.request(), 1), rig.failed()).value();
    return made.requests.empty() ? -1 : made.requests[0].resume_tokens;
  });
}

BENCHMARK(recover)
    ->Name("Recover")
    ->ArgNames({"dealt", "held", "failed"})
    ->ArgsProduct({{1, 0}, {0, 1}, {0, 1, 2, 3, 4}})
    ->Iterations(61)
    ->UseManualTime();
BENCHMARK(mark)
    ->Name("RecoverMark")
    ->ArgNames({"dealt", "held", "failed"})
    ->ArgsProduct({{1}, {0, 1}, {0, 1, 2, 3, 4}})
    ->Iterations(61)
    ->UseManualTime();
BENCHMARK(plan)
    ->Name("RecoverPlan")
    ->ArgNames({"dealt", "held", "failed"})
    ->ArgsProduct({{1}, {0, 1}, {0, 1, 2, 3, 4}})
    ->Iterations(61)
    ->UseManualTime();

}  // namespace
}  // namespace hostkv::bench

BENCHMARK_MAIN();
