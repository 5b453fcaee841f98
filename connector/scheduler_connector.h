#ifndef HOSTKV_CONNECTOR_SCHEDULER_CONNECTOR_H_
#define HOSTKV_CONNECTOR_SCHEDULER_CONNECTOR_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "connector/job_table.h"
#include "connector/prefix_search.h"
#include "connector/request_state.h"
#include "connector/store_planner.h"
#include "connector/victim_planner.h"
#include "hostkv/connector.h"
#include "offload/key_events.h"
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
  Result<MatchResult> match_prefix(RequestId id, std::int64_t num_tokens, std::int64_t num_local_tokens,
                                   bool has_more_hashes) override;
  Status on_blocks_allocated(RequestId id, std::span<const GroupTable> tables,
                             std::int64_t num_external_tokens) override;
  Status cancel_match(RequestId id) override;
  Result<std::vector<std::byte>> build_step_metadata(const StepInput& step) override;
  std::vector<StartedLoad> take_started_loads() override;
  void on_worker_results(std::span<const JobResult> results) override;
  std::vector<LoadOutcome> take_load_outcomes() override;
  Status resume_after_failed_load(RequestId id, std::int64_t num_tokens) override;
  std::vector<CacheEvent> take_cache_events() override;
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
    Pool(OffloadCache made, const std::function<StorePlanner::Context(OffloadCache&)>& context_of);

    OffloadCache cache;
    PrefixSearch search;
    StorePlanner planner;
    VictimPlanner victims;
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
  // What a chain of several jobs stored, from its last block on those that are still to be put into order.
  struct WholeChain {
    std::uint32_t chain = 0;
    std::vector<EntryId> entries;
  };
  // The jobs that together are one load; also of a request that has ended meanwhile.
  struct Load {
    std::uint32_t jobs_in_flight = 0;
    StatusCode status = StatusCode::kOk;  // the first that is not kOk
  };

  // scheduler_connector.cc
  [[nodiscard]] Status check_alive() const;
  RequestState* find_request(RequestId id);
  [[nodiscard]] Status check_capacity(const WorkerCapacity& capacity) const;
  void make_pool();
  void lose_blocks(RequestState& request);
  [[nodiscard]] bool engine_is_clean();
  void trust_device(bool trust);

  // scheduler_lookups.cc
  [[nodiscard]] Status check_lookup(const RequestState& request, std::int64_t num_tokens,
                                    std::int64_t num_local_tokens) const;
  [[nodiscard]] Status check_allocation(const RequestState& request, std::span<const GroupTable> tables,
                                        std::int64_t num_external_tokens) const;
  [[nodiscard]] bool may_use_device(const RequestState& request) const;
  [[nodiscard]] bool loads_fill_their_share() const;
  PrefixSearch::Answer find_and_promise(RequestState& request, std::int64_t num_tokens, std::int64_t num_local_tokens,
                                        bool has_more_hashes);
  void make_promise(RequestState& request, std::int64_t num_local_tokens, std::int64_t boundary_tokens,
                    std::vector<PromisedBlock> blocks);
  void count_lookup(RequestState& request, std::int64_t queried_tokens);
  void drop_promise(RequestState& request);
  void end_promise(RequestState& request);
  void list_device_promise(RequestState& request);
  void unlist_device_promise(const Promise& promise);
  void release_device_blocks(Promise& promise);
  void release_untaken_device_blocks();
  [[nodiscard]] Status check_targets(const RequestState& request, std::span<const GroupTable> tables,
                                     std::span<const PromisedBlock> blocks) const;
  [[nodiscard]] Status check_copies(const RequestState& request, std::span<const GroupTable> tables,
                                    std::span<const PromisedBlock> blocks) const;
  void begin_admission(RequestState& request);
  void plan_load(RequestState& request, std::span<const GroupTable> tables);
  void end_load_at_once(RequestState& request, StatusCode status);

  // scheduler_steps.cc
  Status check_step(const StepInput& step);
  // The step voids the tables of this admission. One that was made since the last step came after the preemption.
  [[nodiscard]] bool preempted(const RequestState& request, const StepInput& step) const;
  void forget_preempted(const StepInput& step);
  void take_hand_offs(const StepInput& step);
  [[nodiscard]] bool usable(const BoundaryHandOff& hand_off);
  void begin_run(RequestState& request, std::int64_t num_computed_tokens) const;
  [[nodiscard]] bool any_damaged(const RequestState& request, std::int64_t end_tokens) const;
  void note_damage(RequestState& request, std::int64_t computed_tokens);
  void add_damaged(const RequestState& request, std::int64_t begin_tokens, std::int64_t end_tokens);
  void forget_damage();
  void forget_damage_of(const RequestState& request);
  void note_living_damage();
  void plan_stores(RequestState& request, std::int64_t storable_tokens, StorePlanner::Moment moment);
  void judge_offload_limit(RequestState& request, std::int64_t computed_tokens);
  void withhold(const RequestState& request, std::int64_t begin_tokens, std::int64_t end_tokens);
  void forget_withheld();
  void plan_victims();
  std::vector<std::byte> write_metadata();
  PlannedJob new_job(Direction direction, RequestId request) const;
  void queue_job(PlannedJob job);

  // scheduler_results.cc
  void finish_job(PlannedJob& job);
  void finish_store(PlannedJob& job);
  void finish_load(PlannedJob& job);
  void end_load_job(const PlannedJob& job, StatusCode status);
  // Pins of the job go back; stores are aborted, loads end with `status`.
  void abandon_job(PlannedJob& job, StatusCode status);
  void release_device_pins(const PlannedJob& job);
  void end_chain(std::uint32_t chain);
  void order_chain(std::uint32_t chain);
  void order_some(std::size_t most);
  void drop_unsent_jobs(StatusCode status);

  Geometry geometry_;
  ConnectorOptions options_;
  std::int64_t num_ranks_;
  EngineBlocks& engine_;
  EngineTraits traits_;
  bool trusts_device_ = true;                              // false: its cache may hold what a reset has declared void
  std::vector<std::optional<WorkerCapacity>> capacities_;  // [num_ranks]
  KeyEvents events_;
  std::optional<WithheldHashes> withheld_;  // store_mode lazy
  std::optional<WithheldHashes> damaged_;   // EngineTraits::damages_fine_hits
  std::optional<Pool> pool_;
  std::uint64_t namespace_fingerprint_ = 0;

  std::unordered_map<RequestId, RequestState> requests_;
  std::unordered_map<JobId, PlannedJob> jobs_;
  std::vector<JobId> unsent_;  // in planning order
  std::vector<StartedLoad> started_loads_;
  std::vector<LoadOutcome> outcomes_;
  std::unordered_map<RequestId, Load> loads_;
  std::unordered_map<std::uint32_t, Chain> chains_;
  std::deque<WholeChain> whole_chains_;     // to be put into order, the first to end first
  std::vector<RequestState*> scheduled_;    // of the step being planned
  std::vector<RequestId> with_hand_offs_;   // of the step being planned
  std::vector<RequestId> device_promises_;  // requests whose promise pins device blocks

  // Scratch memory, so that a call allocates nothing once warm.
  std::vector<EntryId> entries_;
  std::vector<BlockId> device_blocks_;
  std::vector<PromisedBlock> spare_blocks_;

  std::uint64_t epoch_ = 1;
  std::uint64_t sequence_ = 0;
  std::uint64_t last_job_ = 0;
  std::uint32_t last_chain_ = 0;
  std::int64_t pinned_device_blocks_ = 0;
  std::int64_t loading_blocks_ = 0;  // targets of loads in flight
  bool shut_down_ = false;
  SchedulerMetrics metrics_;
  std::vector<std::int64_t> lost_tokens_;  // [num_groups]
};

}  // namespace hostkv

#endif  // HOSTKV_CONNECTOR_SCHEDULER_CONNECTOR_H_
