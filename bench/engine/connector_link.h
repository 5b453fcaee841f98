#ifndef HOSTKV_BENCH_ENGINE_CONNECTOR_LINK_H_
#define HOSTKV_BENCH_ENGINE_CONNECTOR_LINK_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "bench/engine/block_pool.h"
#include "bench/engine/engine.h"
#include "bench/engine/model_runner.h"
#include "bench/engine/request.h"
#include "hostkv/connector.h"

namespace hostkv::bench {

// The engine's blocks as the connector sees them.
class ConnectorBlocks final : public EngineBlocks {
 public:
  ConnectorBlocks(const Geometry& geometry, BlockPool& pool, const RequestMap& requests)
      : geometry_(geometry), pool_(pool), requests_(requests) {}
  void pin(std::span<const BlockId> blocks) override { pool_.pin(blocks); }
  void unpin(std::span<const BlockId> blocks) override { pool_.unpin(blocks); }
  [[nodiscard]] GroupTable block_table(RequestId request, GroupIndex group, std::int64_t first_block) override;
  [[nodiscard]] std::int64_t num_blocks() const override { return pool_.num_usable(); }
  [[nodiscard]] bool shows_cache() const override { return true; }
  void find_cached(GroupIndex group, std::span<const std::byte> hashes, std::size_t hash_size_bytes,
                   std::span<BlockId> blocks) override;
  [[nodiscard]] bool carries_key(BlockId block, GroupIndex group, std::span<const std::byte> hash) override;
  [[nodiscard]] std::int64_t num_free_blocks() const override { return pool_.num_free(); }
  [[nodiscard]] std::uint64_t num_handed_out() const override { return pool_.num_handed_out(); }
  void next_victims(std::size_t max_blocks, std::vector<CachedBlock>& victims) override;
  void unpin_to_front(std::span<const BlockId> blocks) override { pool_.unpin_to_front(blocks); }
  // Blocks that are no source of a device copy now, whatever keys they carry.
  void set_hidden(std::function<bool(BlockId)> is_hidden) { is_hidden_ = std::move(is_hidden); }

 private:
  [[nodiscard]] bool may_be_written_over(GroupIndex group, BlockId block) const;

  const Geometry& geometry_;
  BlockPool& pool_;
  const RequestMap& requests_;
  std::function<bool(BlockId)> is_hidden_;  // empty: none is
};

// A connector's two sides, and the protocol of a step between them.
//
// Thread-safety: one thread. Ownership: owns the scheduler side and the workers; pool, runner and requests are the
// caller's. Cost: that of the connector's calls. Failure: their errors, passed on.
class ConnectorLink {
 public:
  static Result<std::unique_ptr<ConnectorLink>> create(const Geometry& geometry, const EngineConfig& config,
                                                       ModelRunner& runner, BlockPool& pool,
                                                       const RequestMap& requests);
  ~ConnectorLink();
  ConnectorLink(const ConnectorLink&) = delete;
  ConnectorLink& operator=(const ConnectorLink&) = delete;

  [[nodiscard]] SchedulerConnector& scheduler() { return *scheduler_; }
  [[nodiscard]] const SchedulerConnector& scheduler() const { return *scheduler_; }
  [[nodiscard]] ConnectorBlocks& blocks() { return blocks_; }

  // Before the forward: metadata to all ranks, loads submitted.
  Status begin_step(const StepInput& step);
  // Behind the launch of the forward.
  Status start_stores();
  // What all ranks have to report, once a step and before the next one begins.
  Result<std::vector<JobResult>> end_step();
  // Reports to the scheduler side; the loads that ended. Steps later, where the engine runs ahead.
  std::vector<LoadOutcome> deliver(std::span<const JobResult> results);
  // Until no rank copies; kDeadlineExceeded when a rank still does after `timeout`.
  Status wait_idle(std::chrono::nanoseconds timeout);

 private:
  ConnectorLink(const Geometry& geometry, ModelRunner& runner, BlockPool& pool, const RequestMap& requests)
      : runner_(runner), blocks_(geometry, pool, requests) {}
  Status add_workers(const Geometry& geometry, const EngineConfig& config);

  ModelRunner& runner_;
  ConnectorBlocks blocks_;
  std::unique_ptr<SchedulerConnector> scheduler_;
  std::vector<std::unique_ptr<WorkerConnector>> workers_;  // [num_ranks]
};

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_ENGINE_CONNECTOR_LINK_H_
