#ifndef HOSTKV_CONNECTOR_WORKER_CONNECTOR_H_
#define HOSTKV_CONNECTOR_WORKER_CONNECTOR_H_

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "connector/step_metadata.h"
#include "geometry/copy_plan.h"
#include "hostkv/connector.h"
#include "offload/host_pool.h"
#include "offload/pool_plan.h"

namespace hostkv {

// WorkerConnector as hostkv/connector.h promises: turns a step's numbers into copies between this rank's device memory
// and its pool.
class WorkerConnectorImpl final : public WorkerConnector {
 public:
  WorkerConnectorImpl(Geometry geometry, ConnectorOptions options, WorkerSpec spec,
                      std::unique_ptr<TransferBackend> backend);
  ~WorkerConnectorImpl() override;

  Result<WorkerCapacity> register_layout(const KvLayout& layout) override;
  Status unregister_layout(std::chrono::nanoseconds timeout) override;
  Status bind_step(std::span<const std::byte> metadata, StreamHandle compute) override;
  Status start_loads() override;
  Status start_stores() override;
  Result<std::vector<JobResult>> poll() override;
  Status wait_idle(std::chrono::nanoseconds timeout) override;
  Result<std::span<std::byte>> host_block(GroupIndex group, SlotId slot) override;
  Status shutdown(std::chrono::nanoseconds timeout) override;
  [[nodiscard]] WorkerMetrics metrics() const override;

 private:
  // A job from its metadata to its result.
  struct Accepted {
    StepJob job;
    std::uint64_t epoch = 0;
    // [runs of the transfer]: the blocks it moves, as a range of job.blocks.
    struct RunBlocks {
      std::uint32_t first = 0;
      std::uint32_t count = 0;
    };
    std::vector<RunBlocks> runs;
  };

  [[nodiscard]] Status check_ready() const;
  [[nodiscard]] Status check_message(const StepMetadata& metadata) const;
  [[nodiscard]] Status check_job(const StepJob& job) const;
  [[nodiscard]] Status check_block(const StepJob& job, const StepBlock& block) const;
  [[nodiscard]] Status check_device_block(const StepJob& job, std::uint64_t block) const;
  [[nodiscard]] Status check_slot(const StepJob& job, const StepBlock& block) const;
  [[nodiscard]] static Status check_targets(const StepJob& job);
  // worker_layout.cc
  [[nodiscard]] std::vector<std::int64_t> block_bytes_of(const KvLayout& layout) const;
  [[nodiscard]] Status check_same_blocks(std::span<const std::int64_t> block_bytes) const;
  Status make_pool(std::span<const std::int64_t> block_bytes);
  Status register_regions(const KvLayout& layout);
  // What goes wrong is logged too.
  Status unregister(std::span<const RegionId> regions);

  void start(Direction direction);
  void start_behind_forward();
  // False: the backend's queue is full, the job stays and is tried again.
  bool submit(JobId id);
  TransferJob make_transfer(Accepted& accepted) const;
  // Appends the runs of blocks [begin, end), all of one group.
  void append_host_runs(Accepted& accepted, std::size_t begin, std::size_t end, std::vector<CopyRun>& runs) const;
  void append_device_runs(Accepted& accepted, std::size_t begin, std::size_t end, std::vector<CopyRun>& runs) const;
  std::int64_t& moved_bytes(Direction direction);
  void end_job(const TransferResult& result, std::vector<JobResult>& results);
  static std::vector<FailedBlock> failed_blocks(const Accepted& accepted, std::span<const std::uint32_t> failed_runs);
  void refuse_job(JobId id, StatusCode status);

  Geometry geometry_;
  ConnectorOptions options_;
  WorkerSpec spec_;
  std::unique_ptr<TransferBackend> backend_;

  KvLayout layout_;
  PoolPlan plan_;
  std::unique_ptr<HostPool> pool_;
  std::vector<RegionId> device_regions_;  // [layout_.regions]
  std::optional<RegionId> pool_region_;
  std::vector<std::int64_t> block_bytes_;  // [num_groups]
  bool registered_ = false;                // a layout was registered
  bool on_device_ = false;                 // it is registered now
  bool shut_down_ = false;

  std::uint64_t last_sequence_ = 0;
  std::uint64_t last_epoch_ = 0;
  bool step_bound_ = false;
  StreamHandle compute_;
  std::array<std::deque<JobId>, kNumDirections> waiting_;  // [direction]: not submitted yet
  std::unordered_map<JobId, Accepted> jobs_;
  std::vector<JobResult> refused_;  // results that the backend never saw
  std::vector<TransferResult> polled_;
  WorkerMetrics metrics_;
};

}  // namespace hostkv

#endif  // HOSTKV_CONNECTOR_WORKER_CONNECTOR_H_
