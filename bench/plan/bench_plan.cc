// Lookup, StorePlan and IdleStep: what the connector costs on the engine's scheduler thread.
//
// A request of 131,072 tokens; groups:1 is full attention with 16 tokens a block and rank, groups:2 has a sliding
// window of 1,024 tokens beside it, groups:3 recurrent states too (one handed off every 8,192 tokens). dcp:N shards
// full attention. host_blocks:N blocks are in the index, which is full. The floor is measured in the same run: one
// prefetched probe of a flat table of as many keys of 32 bytes, keys in the same order.
//
// Counters: blocks, of all groups of one iteration; ns_per_block, the time by the blocks of full attention, so that
// what other groups add is seen; ratio_to_floor = ns_per_block / ns of the floor.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "bench/plan/flat_floor.h"
#include "bench/plan/plan_rig.h"

namespace hostkv::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kIdleRequests = 256;
constexpr std::int64_t kTurns = 20;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void report(benchmark::State& state, const PlanRig& rig, double best_seconds, std::int64_t num_blocks) {
  const double ns_per_block = best_seconds * 1e9 / static_cast<double>(rig.full_blocks());
  state.counters["blocks"] = static_cast<double>(num_blocks);
  state.counters["ns_per_block"] = ns_per_block;
  state.counters["ratio_to_floor"] = ns_per_block / floor_ns_per_key(state.range(2), rig.full_blocks());
}

// match_prefix of a full hit, on_blocks_allocated, and the step's metadata: search, pin, pair, encode.
void time_lookups(benchmark::State& state, PlanRig& rig) {
  double best = 1e9;
  std::int64_t num_blocks = 0;
  for ([[maybe_unused]] auto iteration : state) {
    const RequestId id = rig.add(rig.last_stored());
    const auto start = Clock::now();
    const MatchResult match = must(rig.connector().match_prefix(id, kRequestTokens + 1, 0));
    rig.allocate(id, match.num_external_tokens);
    const std::vector<std::byte> metadata = must(rig.connector().build_step_metadata({}));
    const double seconds = seconds_since(start);
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
    if (match.num_external_tokens != kRequestTokens) {
      give_up("the lookup hit " + std::to_string(match.num_external_tokens) + " tokens");
    }
    num_blocks = rig.answer(metadata);
    rig.finish(id);
  }
  report(state, rig, best, num_blocks);
}

// The blocks of the request lie in the pool as one step has stored them: side by side.
void lookup(benchmark::State& state) {
  PlanRig rig({.num_groups = state.range(0), .dcp = state.range(1)}, state.range(2));
  time_lookups(state, rig);
}

// They were stored one a step, as 20 requests ran side by side: each lies far from the next.
void lookup_scattered(benchmark::State& state) {
  PlanRig rig({.num_groups = state.range(0), .dcp = state.range(1)}, state.range(2));
  rig.store_by_turns(kTurns);
  time_lookups(state, rig);
}

// One step that completes a whole new request while the host is full: every block evicts one.
void store_plan(benchmark::State& state) {
  PlanRig rig({.num_groups = state.range(0), .dcp = state.range(1)}, state.range(2));
  double best = 1e9;
  std::int64_t num_blocks = 0;
  for ([[maybe_unused]] auto iteration : state) {
    const RequestId id = rig.admit(rig.fresh_hashes());
    const auto start = Clock::now();
    const std::vector<std::byte> metadata = rig.plan(id);
    const double seconds = seconds_since(start);
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
    num_blocks = rig.answer(metadata);
    rig.finish(id);
  }
  report(state, rig, best, num_blocks);
}

// 256 running requests, each computing one token that completes no block. Their prompts must not matter.
void idle_step(benchmark::State& state) {
  const std::int64_t prompt_tokens = state.range(1);
  PlanRig rig({.num_groups = state.range(0), .dcp = 1}, 200'000, prompt_tokens);
  std::vector<ScheduledRequest> scheduled;
  for (std::int64_t i = 0; i < kIdleRequests; ++i) {
    const RequestId id = rig.admit(rig.last_stored());
    rig.answer(rig.plan(id));
    scheduled.push_back({id, prompt_tokens, 1});
  }
  double best = 1e9;
  for ([[maybe_unused]] auto iteration : state) {
    const auto start = Clock::now();
    const std::vector<std::byte> metadata =
        must(rig.connector().build_step_metadata({.scheduled = scheduled, .hand_offs = {}, .preempted = {}}));
    const double seconds = seconds_since(start);
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
    benchmark::DoNotOptimize(metadata.data());
  }
  state.counters["ns_per_request"] = best * 1e9 / kIdleRequests;
}

BENCHMARK(lookup)
    ->Name("Lookup")
    ->ArgNames({"groups", "dcp", "host_blocks"})
    ->ArgsProduct({{1, 2, 3}, {1, 4}, {200'000, 1'000'000}})
    ->Iterations(61)
    ->UseManualTime();
BENCHMARK(lookup_scattered)
    ->Name("LookupScattered")
    ->ArgNames({"groups", "dcp", "host_blocks"})
    ->ArgsProduct({{1}, {1, 4}, {200'000, 1'000'000}})
    ->Iterations(61)
    ->UseManualTime();
BENCHMARK(store_plan)
    ->Name("StorePlan")
    ->ArgNames({"groups", "dcp", "host_blocks"})
    ->ArgsProduct({{1, 2, 3}, {1, 4}, {200'000, 1'000'000}})
    ->Iterations(61)
    ->UseManualTime();
BENCHMARK(idle_step)
    ->Name("IdleStep")
    ->ArgNames({"groups", "prompt_tokens"})
    ->ArgsProduct({{1, 3}, {8'192, kRequestTokens}})
    ->Iterations(201)
    ->UseManualTime();

}  // namespace
}  // namespace hostkv::bench

BENCHMARK_MAIN();
