#include "bench/replay/replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <list>
#include <set>
#include <string>
#include <unordered_map>

#include "bench/models/model.h"
#include "bench/replay/theory.h"
#include "bench/replay/workload.h"

namespace hostkv::bench {
namespace {

// A bounded list of block ids, oldest first: the counting rule written down a second time, without engine or connector.
class LruModel {
 public:
  explicit LruModel(std::size_t capacity) : capacity_(capacity) {}
  [[nodiscard]] bool holds(std::int64_t id) const { return places_.contains(id); }
  void remove(std::int64_t id) {
    if (const auto found = places_.find(id); found != places_.end()) {
      order_.erase(found->second);
      places_.erase(found);
    }
  }
  void append(std::int64_t id) {
    remove(id);
    places_[id] = order_.insert(order_.end(), id);
  }
  // The oldest ids beyond `limit` go.
  void shrink(std::size_t limit) {
    while (order_.size() > limit) {
      places_.erase(order_.front());
      order_.pop_front();
    }
  }
  [[nodiscard]] std::size_t capacity() const { return capacity_; }

 private:
  std::size_t capacity_;
  std::list<std::int64_t> order_;
  std::unordered_map<std::int64_t, std::list<std::int64_t>::iterator> places_;
};

// One tier. A request takes its hits out of the list, new blocks push the oldest out (one more for the token behind the
// last id), and all of it comes back tail first: the head is the youngest.
std::int64_t device_hits(const Trace& trace, std::size_t capacity) {
  LruModel device(capacity);
  std::int64_t hits = 0;
  for (const TraceRequest& request : trace.requests) {
    const auto& ids = request.block_ids;
    std::size_t hit = 0;
    while (hit < ids.size() && device.holds(ids[hit])) ++hit;
    hits += static_cast<std::int64_t>(hit);
    for (const std::int64_t id : ids) device.remove(id);
    device.shrink(device.capacity() - ids.size() - 1);
    for (auto id = ids.rbegin(); id != ids.rend(); ++id) device.append(*id);
  }
  return hits;
}

ReplayCell cell_of(const Trace& trace, std::int64_t device_blocks, std::int64_t host_blocks) {
  ReplayCell cell;
  cell.trace = &trace;
  cell.geometry = trace_geometry(trace, 1, 1);
  cell.device_blocks = device_blocks;
  cell.host_blocks = host_blocks;
  cell.check = CheckBytes::kAll;
  return cell;
}

ReplayResult replay(const ReplayCell& cell) {
  const Result<ReplayResult> result = run_replay(cell, [](std::int64_t) {});
  EXPECT_TRUE(result) << result.error().message();
  return result ? *result : ReplayResult{};
}

// Workloads with small blocks, so that a whole replay takes a moment.
Trace small_trace(std::string_view name, std::uint64_t seed, std::int64_t requests) {
  Trace trace = *make_workload(name, seed, requests);
  trace.block_tokens = 4;
  return trace;
}

std::uint64_t test_seed() {
  const char* text = std::getenv("HOSTKV_TEST_SEED");
  return text == nullptr ? 20260101 : std::strtoull(text, nullptr, 10);
}

TEST(Replay, HitsWhatATailFirstLruOfTheDeviceHits) {
  const std::uint64_t seed = test_seed();
  testing::Test::RecordProperty("seed", std::to_string(seed));
  for (const std::string_view name : workload_names()) {
    for (const std::int64_t capacity : {100, 400}) {
      SCOPED_TRACE(std::string(name) + " seed " + std::to_string(seed) + " capacity " + std::to_string(capacity));
      const Trace trace = small_trace(name, seed, 150);
      const ReplayResult result = replay(cell_of(trace, capacity, 0));
      EXPECT_EQ(result.ledger.device_hit, 4 * device_hits(trace, static_cast<std::size_t>(capacity)));
      EXPECT_EQ(result.ledger.host_hit, 0);
      EXPECT_EQ(result.bytes_wrong, 0);
    }
  }
}

TEST(Replay, BooksEveryPromptTokenOnce) {
  const Trace trace = small_trace("chat", 1, 200);
  const ReplayResult result = replay(cell_of(trace, 150, 300));
  EXPECT_EQ(result.requests, 200);
  EXPECT_EQ(result.blocks, trace.num_block_refs());
  EXPECT_EQ(result.prompt_tokens, 4 * trace.num_block_refs() + 200);
  EXPECT_EQ(result.ledger.sum(), result.prompt_tokens);
  EXPECT_EQ(result.ledger.last_token, 200);
  EXPECT_EQ(result.ledger.alignment + result.ledger.boundary + result.ledger.load_failed, 0);
  EXPECT_DOUBLE_EQ(result.theoretical_hit_rate(), infinite_hit_rate(trace));
  EXPECT_GT(result.ledger.host_hit, 0);
  EXPECT_GT(result.loaded_blocks, 0);
  EXPECT_GT(result.bytes_checked, 0);
  EXPECT_EQ(result.bytes_wrong, 0);
}

TEST(Replay, HitsEverythingWhenTheHostHoldsEverything) {
  const Trace trace = small_trace("chat", 1, 200);
  const ReplayResult result = replay(cell_of(trace, 150, trace.num_block_refs()));
  EXPECT_EQ(result.ledger.capacity, 0);
  EXPECT_EQ(result.ledger.device_hit + result.ledger.host_hit, result.theoretical_tokens);
}

TEST(Replay, AddsHostHitsToUnchangedDeviceHits) {
  const Trace trace = small_trace("chat", 2, 200);
  const ReplayResult alone = replay(cell_of(trace, 150, 0));
  const ReplayResult both = replay(cell_of(trace, 150, 600));
  EXPECT_EQ(alone.ledger.host_hit, 0);
  EXPECT_GT(both.ledger.host_hit, 0);
  EXPECT_LT(both.ledger.capacity, alone.ledger.capacity);
}

TEST(Replay, BooksAlignmentUnderContextParallelism) {
  const Trace trace = small_trace("chat", 3, 60);
  ReplayCell cell = cell_of(trace, 150, 300);
  cell.geometry = trace_geometry(trace, 4, 2);
  const ReplayResult result = replay(cell);
  EXPECT_GT(result.ledger.alignment, 0);
  EXPECT_EQ(result.ledger.sum(), result.prompt_tokens);
  EXPECT_EQ(result.bytes_wrong, 0);
}

TEST(Replay, BooksWhatADraftDropsAsAlignment) {
  const Trace trace = small_trace("chat", 5, 60);
  ReplayCell cell = cell_of(trace, 4000, 0);
  cell.geometry.groups.front().eagle = true;
  const ReplayResult result = replay(cell);
  EXPECT_GT(result.ledger.device_hit, 0);
  EXPECT_GT(result.ledger.alignment, 0);
  EXPECT_EQ(result.ledger.capacity, 0);
}

TEST(Replay, BooksEverythingSharedAsBoundaryWhereHitsAreImpossible) {
  const Trace trace = small_trace("chat", 6, 60);
  ReplayCell cell = cell_of(trace, 4000, 4000);
  KvCacheGroup state;
  state.kind = GroupKind::kMamba;
  state.block_tokens = 4;
  state.mamba_mode = MambaMode::kNone;
  cell.geometry.groups.push_back(state);
  const ReplayResult result = replay(cell);
  EXPECT_EQ(result.ledger.device_hit + result.ledger.host_hit, 0);
  EXPECT_EQ(result.ledger.boundary, result.theoretical_tokens);
  EXPECT_EQ(result.ledger.capacity, 0);
}

TEST(Replay, BooksMissingStatesAsBoundaryNotAsCapacity) {
  const Trace trace = *make_workload("chat", 4, 30);
  ReplayCell cell = cell_of(trace, 4000, 8000);
  cell.geometry = load_model("qwen3.5-like")->with_parallel(1, 1);
  const ReplayResult result = replay(cell);
  EXPECT_GT(result.ledger.boundary, 0);
  EXPECT_EQ(result.ledger.capacity, 0);
  EXPECT_EQ(result.bytes_wrong, 0);
}

}  // namespace
}  // namespace hostkv::bench
