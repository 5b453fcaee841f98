#ifndef HOSTKV_CONNECTOR_SCHEDULER_CONNECTOR_H_
#define HOSTKV_CONNECTOR_SCHEDULER_CONNECTOR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "connector/job_table.h"
#include "connector/prefix_search.h"
#include "connector/request_state.h"
#include "connector/store_planner.h"
#include "hostkv/connector.h"
#include "offload/offload_cache.h"

namespace hostkv {

// SchedulerConnector as hostkv/connector.h promises. What waits for the ranks' capacities (cache, search, planner) is
// made when the last one has reported; until then lookups answer 0 and nothing is stored.
class SchedulerConnectorImpl final : public SchedulerConnector {
 public:
  SchedulerConnectorImpl(Geometry geometry, ConnectorOptions options, std::int64_t num_ranks, EngineBlocks& engine,
                         EngineTraits traits);
  ~SchedulerConnectorImpl() override;

  Status on_worker_capacity(const WorkerCapacity& capacity) override;
  Status add_request(const RequestInfo& request) override;
  Status append_block_hashes(RequestId id, std::span<const std::byte> hashes, std::size_t hash_size_bytes) override;
  Status truncate_block_hashes(RequestId id, std::int64_t num_hashes) override;
  Result<MatchResult> match_prefix(RequestId id, std::int64_t num_tokens, std::int64_t num_local_tokens) override;
  Status on_blocks_allocated(RequestId id, std::span<const GroupTable> tables,
                             std::int64_t num_external_tokens) override;
  Status cancel_match(RequestId id) override;
  Result<std::vector<std::byte>> build_step_metadata(const StepInput& step) override;
  void on_worker_results(std::span<const JobResult> results) override;
  std::vector<LoadOutcome> take_load_outcomes() override;
  Status request_finished(RequestId id, std::int64_t num_computed_tokens,
                          std::span<const BoundaryHandOff> hand_offs) override;
  bool reset() override;
  [[nodiscard]] bool has_pending_work() const override;
  void shutdown() override;
  [[nodiscard]] SchedulerMetrics metrics() const override;
  [[nodiscard]] std::vector<std::int64_t> lost_tokens_by_group() const override { return lost_tokens_; }
  [[nodiscard]] std::uint64_t epoch() const override { return epoch_; }
  [[nodiscard]] const Geometry& geometry() const override { return geometry_; }
  [[nodiscard]] Status check_conservation() const override;

 private:
  // What hangs on the agreed capacity.
  struct Pool {
    Pool(OffloadCache made, const Geometry& geometry, EngineBlocks& engine, SchedulerMetrics& metrics,
         std::uint64_t namespace_fingerprint, std::vector<std::uint32_t> class_of_group);

    OffloadCache cache;
    PrefixSearch search;
    StorePlanner planner;
    std::int64_t slab_bytes = 0;
    std::uint64_t num_slabs = 0;
  };
  // The stored blocks of one admission, in order, so that the chain can be put into eviction order when it is whole.
  struct Chain {
    std::vector<EntryId> entries;
    std::uint32_t jobs_in_flight = 0;
    std::uint32_t num_jobs = 0;
    bool ended = false;
  };

  [[nodiscard]] Status check_alive() const;
  RequestState* find_request(RequestId id);
  Status check_tables(const RequestState& request, std::span<const GroupTable> tables) const;
  void make_pool();

  void drop_promise(RequestState& request);
  void lose_blocks(RequestState& request);
  void plan_load(RequestState& request, std::span<const GroupTable> tables);

  Status check_step(const StepInput& step);
  // The step voids the tables of this admission. One that was made since the last step came after the preemption.
  [[nodiscard]] bool preempted(const RequestState& request, const StepInput& step) const;
  void forget_preempted(const StepInput& step);
  void take_hand_offs(const StepInput& step);
  [[nodiscard]] bool usable(const BoundaryHandOff& hand_off, const StepInput& step);
  void plan_stores(RequestState& request, std::int64_t storable_tokens);

  PlannedJob new_job(Direction direction, RequestId request);
  PlannedJob& queue_job(PlannedJob job);
  void finish_job(PlannedJob& job);
  void finish_store(PlannedJob& job);
  void finish_load(PlannedJob& job);
  void end_load(const PlannedJob& job, StatusCode status);
  // Pins of the job go back; stores are aborted, loads end with `status`.
  void abandon_job(PlannedJob& job, StatusCode status);
  void release_device_pins(const PlannedJob& job);
  void end_chain(std::uint32_t chain);
  void order_chain(std::uint32_t chain);
  void drop_unsent_jobs(StatusCode status);

  Geometry geometry_;
  ConnectorOptions options_;
  std::int64_t num_ranks_;
  EngineBlocks& engine_;
  EngineTraits traits_;
  std::vector<std::optional<WorkerCapacity>> capacities_;  // [num_ranks]
  std::optional<Pool> pool_;
  std::uint64_t namespace_fingerprint_ = 0;

  std::unordered_map<RequestId, RequestState> requests_;
  std::unordered_map<JobId, PlannedJob> jobs_;
  std::vector<JobId> unsent_;  // in planning order
  std::vector<LoadOutcome> outcomes_;
  std::unordered_set<RequestId> loading_;  // planned loads, also of requests that ended meanwhile
  std::unordered_map<std::uint32_t, Chain> chains_;
  std::vector<RequestState*> scheduled_;   // of the step being planned
  std::vector<RequestId> with_hand_offs_;  // of the step being planned

  std::uint64_t epoch_ = 1;
  std::uint64_t sequence_ = 0;
  std::uint64_t last_job_ = 0;
  std::uint32_t last_chain_ = 0;
  std::int64_t pinned_device_blocks_ = 0;
  bool shut_down_ = false;
  SchedulerMetrics metrics_;
  std::vector<std::int64_t> lost_tokens_;  // [num_groups]
};

}  // namespace hostkv

#endif  // HOSTKV_CONNECTOR_SCHEDULER_CONNECTOR_H_
