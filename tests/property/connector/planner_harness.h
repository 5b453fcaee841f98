#ifndef HOSTKV_TESTS_PROPERTY_CONNECTOR_PLANNER_HARNESS_H_
#define HOSTKV_TESTS_PROPERTY_CONNECTOR_PLANNER_HARNESS_H_

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "connector/prefix_search.h"
#include "connector/store_planner.h"
#include "tests/support/request_builders.h"

namespace hostkv::testing {

// Block tables and pin counts, written by the test. What need not be right in a table is wrong.
class TableEngine final : public EngineBlocks {
 public:
  void pin(std::span<const BlockId> blocks) override {
    for (const BlockId block : blocks) {
      EXPECT_NE(block, kNullBlock) << "the null block is never a source";
      EXPECT_NE(block, kStaleBlock) << "an entry below first_block was read";
      ++pins_[block];
    }
  }
  void unpin(std::span<const BlockId> blocks) override {
    for (const BlockId block : blocks) {
      EXPECT_GT(pins_[block], 0) << "block " << block.value();
      if (--pins_[block] == 0) {
        pins_.erase(block);
      }
    }
  }
  [[nodiscard]] GroupTable block_table(RequestId request, GroupIndex group, std::int64_t first_block) override {
    std::vector<BlockId>& shown = shown_[{request, group}];
    shown = tables_[{request, group}];
    std::fill_n(shown.begin(), std::clamp<std::int64_t>(first_block, 0, std::ssize(shown)), kStaleBlock);
    asked.push_back({group.value(), first_block});
    return shown;
  }

  std::vector<BlockId>& table(RequestId request, std::uint32_t group) { return tables_[{request, GroupIndex{group}}]; }
  void set_table(RequestId request, std::uint32_t group, const std::vector<std::uint32_t>& blocks) {
    table(request, group).clear();
    for (const std::uint32_t block : blocks) {
      table(request, group).emplace_back(block);
    }
  }
  static constexpr BlockId kStaleBlock{0xDEADBEEF};
  std::vector<std::pair<std::uint32_t, std::int64_t>> asked;  // group, first block: all calls

  [[nodiscard]] std::int64_t num_pins() const {
    std::int64_t pins = 0;
    for (const auto& [block, count] : pins_) {
      pins += count;
    }
    return pins;
  }

 private:
  std::map<std::pair<RequestId, GroupIndex>, std::vector<BlockId>> tables_;
  std::map<std::pair<RequestId, GroupIndex>, std::vector<BlockId>> shown_;
  std::map<BlockId, std::int64_t> pins_;
};

// A store planner with its cache; jobs end when the test says so.
class PlannerHarness {
 public:
  // Every group has a size class of its own, one slot a slab.
  PlannerHarness(const Geometry& geometry, std::uint64_t num_slots)
      : geometry_(geometry),
        cache_(lru_cache(std::vector<std::uint32_t>(geometry.num_groups(), 1), num_slots)),
        search_(geometry, cache_, nullptr, kTestNamespace),
        planner_(context()) {}

  // A text's prompt of so many tokens; every group's table is `table_blocks` fresh blocks long.
  RequestState request(std::uint64_t text, std::int64_t num_tokens, std::int64_t table_blocks = 0) {
    RequestState made;
    made.id = RequestId{++last_request_};
    made.num_prompt_tokens = num_tokens;
    made.hashes = hashes_of(geometry_, text, num_tokens);
    made.admitted = true;
    made.chain = static_cast<std::uint32_t>(last_request_);
    cache_.open_chain(made.chain);
    for (std::uint32_t g = 0; g < geometry_.num_groups(); ++g) {
      extend_table(made, g, table_blocks);
    }
    return made;
  }
  void extend_table(const RequestState& request, std::uint32_t group, std::int64_t num_blocks) {
    std::vector<BlockId>& table = engine.table(request.id, group);
    std::vector<BlockId> extended(table.begin(), table.end());
    extended.resize(std::max(table.size(), static_cast<std::size_t>(num_blocks)));
    for (std::size_t i = table.size(); i < extended.size(); ++i) {
      extended[i] = BlockId{++last_block_};
    }
    table = std::move(extended);
  }

  // One step: the blocks planned now.
  std::vector<JobBlock> plan(RequestState& request, std::int64_t storable_tokens,
                             std::vector<BoundaryHandOff> hand_offs = {},
                             StorePlanner::Moment moment = StorePlanner::Moment::kStep) {
    PlannedJob job{
        .id = JobId{1}, .epoch = 0, .request = request.id, .blocks = {}, .set_ends = {}, .merge = RankMerge(1)};
    request.hand_offs = std::move(hand_offs);
    planner_.plan(request, storable_tokens, moment, job);
    request.hand_offs.clear();
    EXPECT_EQ(job.blocks.empty(), job.set_ends.empty());
    EXPECT_TRUE(job.blocks.empty() || job.set_ends.back() == job.blocks.size());
    in_flight_.insert(in_flight_.end(), job.blocks.begin(), job.blocks.end());
    expect_accounted();
    return job.blocks;
  }
  BoundaryHandOff hand_off(const RequestState& request, std::uint32_t group, std::uint32_t block,
                           std::int64_t boundary) {
    return {.id = request.id, .group = GroupIndex{group}, .block = BlockId{block}, .boundary_tokens = boundary};
  }

  // All copies in flight end well, the last block first.
  // The copies of the last plan fail.
  void fail_copies(const std::vector<JobBlock>& blocks) {
    for (const JobBlock& block : blocks) {
      std::erase_if(in_flight_, [&](const JobBlock& other) { return other.entry == block.entry; });
      cache_.abort(block.entry);
      ++metrics.dropped_failed_blocks;
      engine.unpin(std::span(&block.block, 1));
    }
  }
  void finish_copies() {
    while (!in_flight_.empty()) {
      cache_.publish(in_flight_.back().entry);
      ++metrics.stored_blocks;
      engine.unpin(std::span(&in_flight_.back().block, 1));
      in_flight_.pop_back();
    }
    expect_accounted();
    EXPECT_EQ(engine.num_pins(), 0);
  }

  std::int64_t hit(const HashChain& hashes, std::int64_t num_tokens) {
    return search_.longest_boundary(hashes, num_tokens, 0).boundary_tokens;
  }
  [[nodiscard]] bool holds(const HashChain& hashes, std::uint32_t group, std::int64_t boundary) const {
    return is_ready(cache_, key_at(hashes, GroupIndex{group}, boundary));
  }
  OffloadCache& cache() { return cache_; }

  // R24, R15.
  void expect_accounted() {
    EXPECT_EQ(metrics.planned_store_blocks, metrics.stored_blocks + metrics.dropped_full_blocks +
                                                metrics.dropped_failed_blocks +
                                                static_cast<std::int64_t>(in_flight_.size()));
    expect_conserved(cache_);
    EXPECT_EQ(engine.num_pins(), static_cast<std::int64_t>(in_flight_.size()));
  }

  TableEngine engine;
  SchedulerMetrics metrics;

 private:
  StorePlanner::Context context() {
    std::vector<std::uint32_t> class_of_group(geometry_.num_groups());
    for (std::uint32_t g = 0; g < geometry_.num_groups(); ++g) {
      class_of_group[g] = g;
    }
    return {.geometry = geometry_,
            .cache = cache_,
            .engine = engine,
            .metrics = metrics,
            .namespace_fingerprint = kTestNamespace,
            .class_of_group = std::move(class_of_group)};
  }

  const Geometry& geometry_;
  OffloadCache cache_;
  PrefixSearch search_;
  StorePlanner planner_;
  std::vector<JobBlock> in_flight_;
  std::uint64_t last_request_ = 0;
  std::uint32_t last_block_ = 1000;
};

inline std::int64_t count_of_group(const std::vector<JobBlock>& blocks, std::uint32_t group) {
  return std::ranges::count(blocks, GroupIndex{group}, &JobBlock::group);
}

}  // namespace hostkv::testing

#endif  // HOSTKV_TESTS_PROPERTY_CONNECTOR_PLANNER_HARNESS_H_
