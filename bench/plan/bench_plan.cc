// Lookup, StorePlan and IdleStep: what the connector costs on the engine's scheduler thread.
//
// One full-attention group of 16 tokens a block, a request of 131,072 tokens (8,192 blocks), host_blocks:N blocks in
// the index. The floor is measured in the same run: one prefetched probe of a flat table of the same size per key, keys
// in the same order. Counters: ns_per_block; ratio_to_floor = ns_per_block / ns of the floor.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "connector/step_metadata.h"
#include "hostkv/connector.h"

namespace hostkv {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kBlockTokens = 16;
constexpr std::int64_t kRequestBlocks = 8192;
constexpr std::int64_t kRequestTokens = kRequestBlocks * kBlockTokens;
constexpr std::size_t kHashBytes = 32;
constexpr std::size_t kPrefetchDistance = 16;
constexpr std::int64_t kIdleRequests = 256;

using Hashes = std::vector<std::byte>;  // [n, kHashBytes]

[[noreturn]] void give_up(const std::string& why) {
  std::cerr << "bench_plan: " << why << '\n';
  std::exit(1);
}
void must(const Status& status) {
  if (!status.ok()) {
    give_up(status.to_string());
  }
}
template <class T>
T must(Result<T> result) {
  if (!result) {
    give_up(result.error().to_string());
  }
  return std::move(*result);
}

// Every request has the same table; pins are counted, nothing else.
class Blocks final : public EngineBlocks {
 public:
  Blocks() {
    for (std::uint32_t b = 1; b <= kRequestBlocks; ++b) {
      table_.emplace_back(b);
    }
  }
  void pin(std::span<const BlockId> blocks) override { pins_ += std::ssize(blocks); }
  void unpin(std::span<const BlockId> blocks) override { pins_ -= std::ssize(blocks); }
  [[nodiscard]] GroupTable block_table(RequestId, GroupIndex) override { return table_; }

 private:
  std::vector<BlockId> table_;
  std::int64_t pins_ = 0;
};

Geometry one_group() {
  GeometrySpec spec;
  spec.groups.push_back(
      {.name = "full", .kind = GroupKind::kFullAttention, .block_tokens = kBlockTokens, .sharded = true});
  return must(Geometry::resolve(std::move(spec)));
}

// A scheduler side whose index is full, and the requests that filled it.
class Rig {
 public:
  explicit Rig(std::int64_t host_blocks)
      : connector_(must(SchedulerConnector::create(one_group(), ConnectorOptions{}, 1, blocks_))) {
    must(connector_->on_worker_capacity({.rank = RankIndex{0},
                                         .num_slabs = static_cast<std::uint64_t>(host_blocks),
                                         .slab_bytes = 1,
                                         .slots_per_slab = {1},
                                         .fingerprint = connector_->geometry().fingerprint()}));
    for (std::int64_t stored = 0; stored < host_blocks; stored += kRequestBlocks) {
      last_stored_ = fresh_hashes();
      const RequestId id = admit(last_stored_);
      answer(plan(id));
      must(connector_->request_finished(id, kRequestTokens));
    }
  }

  Hashes fresh_hashes() {
    Hashes hashes(kRequestBlocks * kHashBytes);
    for (std::byte& byte : hashes) {
      byte = static_cast<std::byte>(random_());
    }
    return hashes;
  }

  RequestId add(const Hashes& hashes) {
    const RequestId id{++last_id_};
    must(connector_->add_request({.id = id, .num_prompt_tokens = kRequestTokens + 1, .skip_reading_cache = false}));
    must(connector_->append_block_hashes(id, hashes, kHashBytes));
    return id;
  }
  void allocate(RequestId id, std::int64_t num_external_tokens) {
    const GroupTable table = blocks_.block_table(id, GroupIndex{0});
    must(connector_->on_blocks_allocated(id, {&table, 1}, num_external_tokens));
  }
  RequestId admit(const Hashes& hashes) {
    const RequestId id = add(hashes);
    allocate(id, 0);
    return id;
  }
  // One step that computes the whole request.
  std::vector<std::byte> plan(RequestId id) {
    const ScheduledRequest scheduled{id, 0, kRequestTokens};
    return must(connector_->build_step_metadata({.scheduled = {&scheduled, 1}, .hand_offs = {}, .preempted = {}}));
  }
  void answer(const std::vector<std::byte>& metadata) {
    const StepMetadata step = must(decode_step_metadata(metadata));
    for (const StepJob& job : step.jobs) {
      const JobResult result{
          .epoch = step.epoch, .job = job.id, .rank = RankIndex{0}, .status = StatusCode::kOk, .failed = {}};
      connector_->on_worker_results({&result, 1});
    }
  }

  SchedulerConnector& connector() { return *connector_; }
  [[nodiscard]] const Hashes& last_stored() const { return last_stored_; }

 private:
  Blocks blocks_;
  std::unique_ptr<SchedulerConnector> connector_;
  std::mt19937_64 random_{20261130};
  std::uint64_t last_id_ = 0;
  Hashes last_stored_;
};

using FlatKey = std::array<std::uint64_t, 4>;  // 32 bytes, as the engine's hashes are; all zero: no key

// Nanoseconds of one prefetched probe of a flat table with `num_keys` keys of 32 bytes, best of several runs.
double floor_ns_per_key(std::int64_t num_keys) {
  std::mt19937_64 random(7);
  std::size_t size = 1;
  while (size < 2 * static_cast<std::size_t>(num_keys)) {
    size *= 2;
  }
  std::vector<FlatKey> table(size, FlatKey{});
  std::vector<FlatKey> keys;
  const auto home = [&](const FlatKey& key) { return key[0] & (size - 1); };
  const auto find = [&](const FlatKey& key) {
    std::size_t at = home(key);
    while (table[at] != key && table[at] != FlatKey{}) {
      at = (at + 1) & (size - 1);
    }
    return at;
  };
  for (std::int64_t i = 0; i < num_keys; ++i) {
    keys.push_back(FlatKey{random() | 1U, random(), random(), random()});
    table[find(keys.back())] = keys.back();
  }
  double best = 1e9;
  std::uint64_t found = 0;
  for (int round = 0; round < 15; ++round) {
    const std::size_t first = static_cast<std::size_t>(random()) % (keys.size() - kRequestBlocks);
    const auto start = Clock::now();
    for (std::size_t i = 0; i < kRequestBlocks; ++i) {
      __builtin_prefetch(&table[home(keys[first + std::min<std::size_t>(i + kPrefetchDistance, kRequestBlocks - 1)])]);
      found += find(keys[first + i]);
    }
    best = std::min(best, std::chrono::duration<double, std::nano>(Clock::now() - start).count() / kRequestBlocks);
  }
  benchmark::DoNotOptimize(found);
  return best;
}

void report(benchmark::State& state, double best_seconds, std::int64_t host_blocks) {
  const double ns_per_block = best_seconds * 1e9 / kRequestBlocks;
  state.counters["ns_per_block"] = ns_per_block;
  state.counters["ratio_to_floor"] = ns_per_block / floor_ns_per_key(host_blocks);
}

// match_prefix of a full hit, on_blocks_allocated, and the step's metadata: search, pin, pair, encode.
void lookup(benchmark::State& state) {
  Rig rig(state.range(0));
  double best = 1e9;
  for ([[maybe_unused]] auto iteration : state) {
    const RequestId id = rig.add(rig.last_stored());
    const auto start = Clock::now();
    const MatchResult match = must(rig.connector().match_prefix(id, kRequestTokens + 1, 0));
    rig.allocate(id, match.num_external_tokens);
    const std::vector<std::byte> metadata = must(rig.connector().build_step_metadata({}));
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
    if (match.num_external_tokens != kRequestTokens) {
      give_up("the lookup hit " + std::to_string(match.num_external_tokens) + " tokens");
    }
    rig.answer(metadata);
    must(rig.connector().request_finished(id, kRequestTokens));
    rig.connector().take_load_outcomes();
  }
  report(state, best, state.range(0));
}

// One step that completes 8,192 new blocks while the host is full: every block evicts one.
void store_plan(benchmark::State& state) {
  Rig rig(state.range(0));
  double best = 1e9;
  for ([[maybe_unused]] auto iteration : state) {
    const RequestId id = rig.admit(rig.fresh_hashes());
    const auto start = Clock::now();
    const std::vector<std::byte> metadata = rig.plan(id);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
    rig.answer(metadata);
    must(rig.connector().request_finished(id, kRequestTokens));
  }
  report(state, best, state.range(0));
}

// 256 running requests of 128k tokens, each computing one token that completes no block.
void idle_step(benchmark::State& state) {
  Rig rig(state.range(0));
  std::vector<ScheduledRequest> scheduled;
  for (std::int64_t i = 0; i < kIdleRequests; ++i) {
    const RequestId id = rig.admit(rig.last_stored());
    rig.answer(rig.plan(id));
    scheduled.push_back({id, kRequestTokens, 1});
  }
  double best = 1e9;
  for ([[maybe_unused]] auto iteration : state) {
    const auto start = Clock::now();
    const std::vector<std::byte> metadata =
        must(rig.connector().build_step_metadata({.scheduled = scheduled, .hand_offs = {}, .preempted = {}}));
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
    benchmark::DoNotOptimize(metadata.data());
  }
  state.counters["ns_per_request"] = best * 1e9 / kIdleRequests;
}

BENCHMARK(lookup)
    ->Name("Lookup")
    ->ArgName("host_blocks")
    ->Arg(200'000)
    ->Arg(1'000'000)
    ->Iterations(31)
    ->UseManualTime();
BENCHMARK(store_plan)
    ->Name("StorePlan")
    ->ArgName("host_blocks")
    ->Arg(200'000)
    ->Arg(1'000'000)
    ->Iterations(31)
    ->UseManualTime();
BENCHMARK(idle_step)->Name("IdleStep")->ArgName("host_blocks")->Arg(200'000)->Iterations(201)->UseManualTime();

}  // namespace
}  // namespace hostkv

BENCHMARK_MAIN();
