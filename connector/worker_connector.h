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
#include "recovery/block_checksums.h"

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
    std::optional<JobResult> copied{};     // the copy has ended so
    std::vector<std::uint32_t> checked{};  // places in job.blocks of the blocks whose checksums are taken
    std::vector<std::uint32_t> changed{};  // of these, places in job.blocks of those that did not pass
    bool in_check = false;
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
  // What has ended since the last call: copies, then checks.
  void collect();
  void end_copy(const TransferResult& result);
  static std::vector<bool> failed_blocks(const Accepted& accepted, std::span<const std::uint32_t> failed_runs);
  static std::vector<FailedBlock> list_of(const Accepted& accepted, const std::vector<bool>& failed);
  // worker_verification.cc
  [[nodiscard]] std::size_t place_of(const StepBlock& block) const;
  void record_stored(Accepted& accepted, const std::vector<bool>& failed);
  void verify_loaded(Accepted& accepted);
  std::vector<BlockChecksums::Block> blocks_to_check(Accepted& accepted, const std::vector<bool>& left_out) const;
  void end_check(const BlockChecksums::Result& result);
  void end_job(const Accepted& accepted);
  static std::vector<FailedBlock> failed_by_either(const Accepted& accepted);
  void log_changed(const Accepted& accepted) const;
  Status drain(std::chrono::nanoseconds timeout);
  void refuse_job(JobId id, StatusCode status);

  Geometry geometry_;
  ConnectorOptions options_;
  WorkerSpec spec_;
  std::unique_ptr<TransferBackend> backend_;

  KvLayout layout_;
  PoolPlan plan_;
  std::size_t places_per_slab_ = 0;
  std::unique_ptr<HostPool> pool_;
  std::vector<RegionId> device_regions_;  // [layout_.regions]
  std::optional<RegionId> pool_region_;
  std::unique_ptr<BlockChecksums> checksums_;  // null: nothing is checked
  std::vector<std::int64_t> block_bytes_;      // [num_groups]
  bool registered_ = false;                    // a layout was registered
  bool on_device_ = false;                     // it is registered now
  bool shut_down_ = false;

  std::uint64_t last_sequence_ = 0;
  std::uint64_t last_epoch_ = 0;
  bool step_bound_ = false;
  StreamHandle compute_;
  std::array<std::deque<JobId>, kNumDirections> waiting_;  // [direction]: not submitted yet
  std::unordered_map<JobId, Accepted> jobs_;
  std::vector<JobResult> results_;  // of jobs that have ended, not told yet
  std::vector<TransferResult> polled_;
  std::vector<BlockChecksums::Result> checked_;  // scratch
  WorkerMetrics metrics_;
};

}  // namespace hostkv

#endif  // HOSTKV_CONNECTOR_WORKER_CONNECTOR_H_
