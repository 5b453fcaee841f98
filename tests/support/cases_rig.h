#ifndef HOSTKV_TESTS_SUPPORT_CASES_RIG_H_
#define HOSTKV_TESTS_SUPPORT_CASES_RIG_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "connector/step_metadata.h"
#include "hostkv/connector.h"
#include "tests/support/connector_harness.h"
#include "tests/support/geometry_builders.h"

namespace hostkv::testing {

// An engine's block pool with its prefix cache, written plainly: blocks with counts, keys, and a free queue.
//
// Purpose: what the connector sees of the device. Thread-safety: one thread. Ownership: owns its tables. Cost: maps.
// Failure: what a connector must never do is an error of the test.
class CacheBlocks final : public EngineBlocks {
 public:
  using Key = std::pair<std::uint32_t, std::string>;  // group, hash

  explicit CacheBlocks(std::uint32_t num_blocks) {
    for (std::uint32_t block = 1; block <= num_blocks; ++block) {
      free_.emplace_back(block);
    }
  }

  // A block from the head of the free queue; what was cached in it is lost.
  BlockId take() {
    const BlockId block = free_.front();
    free_.pop_front();
    keys_.erase(block);
    ++references_[block];
    ++num_handed_out_;
    return block;
  }
  // Its owner leaves it: to the end of the queue.
  void leave(BlockId block) {
    if (release(block)) {
      free_.push_back(block);
    }
  }
  void cache(BlockId block, std::uint32_t group, std::span<const std::byte> hash) {
    keys_[block].push_back(key(group, hash));
  }
  void drop_keys(BlockId block) { keys_.erase(block); }
  void set_table(RequestId id, std::uint32_t group, std::vector<BlockId> blocks) {
    tables_[{id, group}] = std::move(blocks);
  }
  [[nodiscard]] const std::deque<BlockId>& free_queue() const { return free_; }
  [[nodiscard]] std::int64_t num_pins() const { return num_pins_; }

  void pin(std::span<const BlockId> blocks) override {
    num_pins_ += std::ssize(blocks);
    for (const BlockId block : blocks) {
      EXPECT_NE(block, kNullBlock);
      ++references_[block];
      std::erase(free_, block);
    }
  }
  void unpin(std::span<const BlockId> blocks) override {
    num_pins_ -= std::ssize(blocks);
    for (const BlockId block : blocks) {
      if (release(block)) {
        free_.push_back(block);
      }
    }
  }
  void unpin_to_front(std::span<const BlockId> blocks) override {
    num_pins_ -= std::ssize(blocks);
    for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
      if (release(*block)) {
        free_.push_front(*block);
      }
    }
  }
  [[nodiscard]] GroupTable block_table(RequestId id, GroupIndex group, std::int64_t /*first_block*/) override {
    return tables_[{id, group.value()}];
  }
  [[nodiscard]] bool shows_cache() const override { return true; }
  void find_cached(GroupIndex group, std::span<const std::byte> hashes, std::size_t hash_size_bytes,
                   std::span<BlockId> blocks) override {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      blocks[i] = find(key(group.value(), hashes.subspan(i * hash_size_bytes, hash_size_bytes)));
    }
  }
  [[nodiscard]] bool carries_key(BlockId block, GroupIndex group, std::span<const std::byte> hash) override {
    const auto at = keys_.find(block);
    return at != keys_.end() && std::ranges::count(at->second, key(group.value(), hash)) > 0;
  }
  [[nodiscard]] std::int64_t num_free_blocks() const override { return std::ssize(free_); }
  [[nodiscard]] std::uint64_t num_handed_out() const override { return num_handed_out_; }
  void next_victims(std::size_t max_blocks, std::vector<CachedBlock>& victims) override {
    for (std::size_t i = 0; i < std::min(max_blocks, free_.size()); ++i) {
      const auto at = keys_.find(free_[i]);
      for (std::size_t k = 0; at != keys_.end() && k < at->second.size(); ++k) {
        const auto& [group, hash] = at->second[k];
        victims.push_back({free_[i], GroupIndex{group}, std::as_bytes(std::span(hash))});
      }
      if (at == keys_.end()) {
        victims.push_back({free_[i], GroupIndex{}, {}});
      }
    }
  }

 private:
  static Key key(std::uint32_t group, std::span<const std::byte> hash) {
    return {group, std::string(reinterpret_cast<const char*>(hash.data()), hash.size())};
  }
  [[nodiscard]] BlockId find(const Key& wanted) const {
    for (const auto& [block, keys] : keys_) {
      if (std::ranges::count(keys, wanted) > 0) {
        return block;
      }
    }
    return kNullBlock;
  }
  bool release(BlockId block) {
    EXPECT_GT(references_[block], 0) << "block " << block.value() << " is let go, but nobody has it";
    return --references_[block] == 0;
  }

  std::deque<BlockId> free_;
  std::map<BlockId, std::int64_t> references_;
  std::map<BlockId, std::vector<Key>> keys_;
  std::map<std::pair<RequestId, std::uint32_t>, std::vector<BlockId>> tables_;
  std::uint64_t num_handed_out_ = 0;
  std::int64_t num_pins_ = 0;
};

// A scheduler side with a device cache. Texts are as those of hashes_of: one letter a hash block, the last goes on.
struct CasesRig {
  static constexpr std::size_t kHashBytes = 32;

  explicit CasesRig(GeometrySpec spec, ConnectorOptions options = {}, std::uint64_t num_slots = 4096,
                    std::uint32_t num_device_blocks = 4096, EngineTraits traits = {})
      : device(num_device_blocks), num_ranks(static_cast<std::uint32_t>(spec.parallel.tp)) {
    auto made = SchedulerConnector::create(resolved(std::move(spec)), std::move(options), num_ranks, device, traits);
    EXPECT_TRUE(made.has_value()) << (made ? "" : made.error().message());
    connector = std::move(*made);
    const Geometry& geometry = connector->geometry();
    for (std::uint32_t rank = 0; rank < num_ranks; ++rank) {
      WorkerCapacity capacity{.rank = RankIndex{rank},
                              .num_slabs = num_slots,
                              .slab_bytes = 128,
                              .slots_per_slab = {},
                              .fingerprint = geometry.fingerprint()};
      for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
        capacity.slots_per_slab.push_back(geometry.offloadable(GroupIndex{g}) ? 1 : 0);
      }
      EXPECT_EQ(connector->on_worker_capacity(capacity), Status());
    }
  }

  [[nodiscard]] std::vector<std::byte> hash(const std::string& text, std::int64_t boundary) const {
    const std::int64_t index = boundary / connector->geometry().hash_block_tokens();
    const std::vector<std::byte> all = hashes_of(text, index);
    return {all.end() - kHashBytes, all.end()};
  }
  // `block` is what the device caches of the text's prefix.
  void cache(const std::string& text, std::uint32_t group, std::int64_t boundary, BlockId block) {
    device.cache(block, group, hash(text, boundary));
  }
  // Cached, of no owner.
  BlockId cache_new(const std::string& text, std::uint32_t group, std::int64_t boundary) {
    const BlockId block = device.take();
    cache(text, group, boundary, block);
    device.leave(block);
    return block;
  }

  void add(std::uint64_t id, const std::string& text, std::int64_t num_tokens, bool skips_cache = false) {
    EXPECT_EQ(connector->add_request(
                  {.id = RequestId{id}, .num_prompt_tokens = num_tokens, .skip_reading_cache = skips_cache}),
              Status());
    const auto hashes = hashes_of(text, num_tokens / connector->geometry().hash_block_tokens());
    EXPECT_EQ(connector->append_block_hashes(RequestId{id}, hashes, kHashBytes), Status());
  }
  MatchResult match(std::uint64_t id, std::int64_t num_tokens, std::int64_t num_local_tokens = 0) {
    const Result<MatchResult> made = connector->match_prefix(RequestId{id}, num_tokens, num_local_tokens);
    EXPECT_TRUE(made.has_value()) << (made ? "" : made.error().message());
    return made ? *made : MatchResult{};
  }
  std::int64_t hit(std::uint64_t id, std::int64_t num_tokens, std::int64_t num_local_tokens = 0) {
    return match(id, num_tokens, num_local_tokens).num_external_tokens;
  }
  void cancel(std::uint64_t id) { EXPECT_EQ(connector->cancel_match(RequestId{id}), Status()); }
  // Tables of fresh blocks for all tokens, except of those at the front that a hit of so many tokens leaves null.
  Status admit(std::uint64_t id, std::int64_t num_tokens, std::int64_t num_external_tokens = 0,
               std::int64_t num_local_tokens = 0) {
    const Geometry& geometry = connector->geometry();
    std::vector<std::vector<BlockId>>& blocks = tables[id];
    blocks.assign(geometry.num_groups(), {});
    for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
      const std::int64_t span = geometry.span_tokens(GroupIndex{g});
      const std::int64_t first = geometry.needs(GroupIndex{g}, num_local_tokens + num_external_tokens).first_block;
      for (std::int64_t i = 0; i < (num_tokens + span - 1) / span; ++i) {
        blocks[g].push_back(i < first ? kNullBlock : device.take());
      }
    }
    return tell(id, num_external_tokens);
  }
  Status tell(std::uint64_t id, std::int64_t num_external_tokens) {
    std::vector<GroupTable> views;
    for (std::uint32_t g = 0; g < tables[id].size(); ++g) {
      device.set_table(RequestId{id}, g, tables[id][g]);
      views.emplace_back(tables[id][g]);
    }
    return connector->on_blocks_allocated(RequestId{id}, views, num_external_tokens);
  }

  StepMetadata step(const StepInput& input = {}) {
    const Result<std::vector<std::byte>> bytes = connector->build_step_metadata(input);
    EXPECT_TRUE(bytes.has_value()) << (bytes ? "" : bytes.error().message());
    return bytes ? decode_step_metadata(*bytes).value() : StepMetadata{};
  }
  // One step in which `id` computes its tokens [from, to).
  StepMetadata step(std::uint64_t id, std::int64_t from, std::int64_t to, std::vector<BoundaryHandOff> hand_offs = {}) {
    const ScheduledRequest scheduled{RequestId{id}, from, to - from};
    return step({.scheduled = {&scheduled, 1}, .hand_offs = hand_offs, .preempted = {}});
  }
  // A state in a block of the device that carries the key of its boundary.
  BoundaryHandOff hand_off(std::uint64_t id, const std::string& text, std::uint32_t group, std::int64_t boundary) {
    const BlockId block = device.take();
    cache(text, group, boundary, block);
    return {RequestId{id}, GroupIndex{group}, block, boundary};
  }
  void answer(const StepMetadata& metadata, const StepJob& job, StatusCode status = StatusCode::kOk) {
    for (std::uint32_t rank = 0; rank < num_ranks; ++rank) {
      const JobResult result{metadata.epoch, job.id, RankIndex{rank}, status, {}};
      connector->on_worker_results({&result, 1});
    }
  }
  void answer_all(const StepMetadata& metadata) {
    for (const StepJob& job : metadata.jobs) {
      answer(metadata, job);
    }
  }
  void finish(std::uint64_t id, std::int64_t num_computed_tokens, std::vector<BoundaryHandOff> hand_offs = {}) {
    EXPECT_EQ(connector->request_finished(RequestId{id}, num_computed_tokens, hand_offs), Status());
    tables.erase(id);
  }
  // Computes the text in one step, hands off the states at `boundaries` of `group`, and finishes; all copies end. The
  // device forgets all of it.
  void store(std::uint64_t id, const std::string& text, std::int64_t num_tokens, std::uint32_t group = 0,
             const std::vector<std::int64_t>& boundaries = {}) {
    add(id, text, num_tokens);
    EXPECT_EQ(admit(id, num_tokens), Status());
    std::vector<BoundaryHandOff> hand_offs;
    for (const std::int64_t boundary : boundaries) {
      hand_offs.push_back(hand_off(id, text, group, boundary));
    }
    answer_all(step(id, 0, num_tokens, hand_offs));
    finish(id, num_tokens);
    answer_all(step());
    for (const BoundaryHandOff& hand_off : hand_offs) {  // evicted
      device.drop_keys(hand_off.block);
      device.leave(hand_off.block);
    }
    EXPECT_GT(connector->metrics().stored_blocks, 0);
  }

  void expect_consistent() const {
    const Status status = connector->check_conservation();
    EXPECT_TRUE(status.ok()) << status.message();
  }
  // Nothing is pinned, in flight or to be taken.
  void expect_idle() const {
    expect_consistent();
    const SchedulerMetrics metrics = connector->metrics();
    EXPECT_EQ(metrics.pinned_slots, 0);
    EXPECT_EQ(metrics.pinned_device_blocks, 0);
    EXPECT_EQ(metrics.jobs_in_flight, 0);
    EXPECT_FALSE(connector->has_pending_work());
  }

  CacheBlocks device;
  std::uint32_t num_ranks;
  std::unique_ptr<SchedulerConnector> connector;
  std::map<std::uint64_t, std::vector<std::vector<BlockId>>> tables;  // [num_groups][block index] by request
};

inline std::int64_t blocks_of_group(const StepMetadata& step, std::uint32_t group, Direction direction) {
  std::int64_t count = 0;
  for (const StepJob& job : step.jobs) {
    count += job.direction == direction ? std::ranges::count(job.blocks, GroupIndex{group}, &StepBlock::group) : 0;
  }
  return count;
}

inline ConnectorOptions coarse_options() {
  ConnectorOptions options;
  options.boundaries = Boundaries::kCoarse;
  return options;
}

}  // namespace hostkv::testing

#endif  // HOSTKV_TESTS_SUPPORT_CASES_RIG_H_
