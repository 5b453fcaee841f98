#ifndef HOSTKV_BENCH_ENGINE_SCHEDULER_H_
#define HOSTKV_BENCH_ENGINE_SCHEDULER_H_

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "bench/engine/block_pool.h"
#include "bench/engine/engine.h"
#include "bench/engine/kv_cache_manager.h"
#include "bench/engine/rank_forward.h"
#include "bench/engine/request.h"
#include "hostkv/connector.h"
#include "hostkv/geometry.h"
#include "hostkv/status.h"

namespace hostkv::bench {

// The forward of one request of a step. `scheduled` of the same step says what the connector is told.
struct ChunkPlan {
  std::int64_t begin_tokens = 0;         // drafts in flight are counted as accepted
  std::int64_t end_tokens = 0;           // known ones, or placeholders of outputs in flight
  std::int64_t num_drafts = 0;           // computed behind them
  std::int64_t checkpoint_tokens = 0;    // a state is exported there; 0: none
  std::int64_t replay_begin_tokens = 0;  // scratch groups are filled from here on; begin_tokens: no replay
  bool is_exact = true;                  // all of its known tokens are known by value, so begin and end are right
};

// A chunk whose forward was launched, with what its results will say: `forward` has the tokens that it really computes.
struct LaunchedChunk {
  RequestId id;
  std::int64_t admission = 0;  // preemptions of the request before: with more of them the results come to nothing
  ChunkPlan plan;
  ForwardChunk forward;                      // its request is null where no forward runs
  std::vector<std::int64_t> running_column;  // as in the request
};

// Blocks that a step in flight uses after their request has lost them.
struct DeferredFrees {
  std::uint64_t last_step = 0;  // free when its results are in
  std::vector<std::vector<BlockId>> blocks;
};

// What one pass decided.
struct StepPlan {
  std::uint64_t number = 0;                 // 1 ..
  std::vector<ChunkPlan> chunks;            // [scheduled]
  std::vector<BlockCopy> copies;            // before everything else
  std::vector<ScheduledRequest> scheduled;  // in the order of their forwards
  std::vector<BoundaryHandOff> hand_offs;
  std::vector<RequestId> preempted;
  std::vector<FailedBlock> load_targets;  // blocks that a load planned in this pass will fill
};

// vLLM's V1 scheduler: running requests first, then admissions, under a token budget, first come first served.
//
// Purpose: decides chunks, admissions with device and host hits, preemptions, and the life of requests. A request's age
// is its place in the order of add(). Blocks become findable in the pass whose forward fills them, or with the results
// where only these tell the tokens. A pass may be planned while earlier steps are in flight (Scheduling::kAsync): what
// these use stays theirs until they have ended. Thread-safety: one thread. Ownership: pool, geometry, requests and
// connector are the caller's and outlive it. Cost: O(running + admitted + their lookups) a pass. Failure: a connector's
// error ends the pass and is answered.
class Scheduler {
 public:
  Scheduler(const EngineConfig& config, const Geometry& geometry, BlockPool& pool, RequestMap& requests);
  void set_connector(SchedulerConnector* connector) { connector_ = connector; }  // null: none

  Result<RequestId> add(RequestSpec spec);
  Status abort(RequestId id);

  Result<StepPlan> plan_step();
  // Adds to the step that is being planned who was loaded meanwhile (LoadMode::kSynchronous).
  Status admit_loads(StepPlan& plan);
  // The results of a step: its forwards have run. Steps in order, each once.
  Status complete_step(std::uint64_t number, std::span<const LaunchedChunk> chunks);
  Status apply_load_outcomes(std::span<const LoadOutcome> outcomes);

  [[nodiscard]] bool has_requests() const { return !requests_.empty(); }
  [[nodiscard]] bool is_loading() const { return !loading_.empty(); }
  [[nodiscard]] bool is_keyed_in_this_pass(BlockId block) const { return cache_.is_keyed_in_this_pass(block); }
  [[nodiscard]] const std::deque<DeferredFrees>& deferred_frees() const { return deferred_frees_; }
  [[nodiscard]] std::int64_t num_preemptions() const { return num_preemptions_; }
  // Times that a request got further than ever before, or ended. Computing again what was lost is no progress.
  [[nodiscard]] std::int64_t num_progress() const { return num_progress_; }
  [[nodiscard]] std::int64_t num_computed_tokens() const { return num_computed_tokens_; }
  std::vector<RequestReport> take_reports();
  [[nodiscard]] std::string describe_requests() const;

 private:
  enum class Admission : std::uint8_t { kAdmitted, kSkipped, kStopped };

  // schedule_pass.cc
  Status schedule_running(StepPlan& plan);
  [[nodiscard]] Request& youngest_owner() const;
  [[nodiscard]] bool make_room(Request& request, const ChunkEnd& end, StepPlan& plan);
  Status admit_queue(std::deque<Request*>& queue, StepPlan& plan, bool& is_stopped);
  Result<Admission> admit(Request& request, StepPlan& plan);
  Result<Admission> admit_loaded(Request& request, StepPlan& plan);
  Result<Admission> start_load(Request& request, const PrefixHit& hit, std::int64_t num_external, StepPlan& plan);
  Result<MatchResult> match_host(const Request& request, std::int64_t num_local_tokens);
  Status tell_allocated(const Request& request, std::int64_t num_external_tokens);
  Status run(Request& request, const ChunkPlan& chunk, StepPlan& plan);
  Status record_chunk(Request& request, ChunkPlan chunk, StepPlan& plan);
  [[nodiscard]] ScheduledRequest told(const Request& request, const ChunkPlan& chunk) const;
  Status trust_drafts(Request& request, const ChunkPlan& chunk);
  void free_a_claim(StepPlan& plan);
  [[nodiscard]] std::int64_t next_chunk(const Request& request, std::int64_t begin_tokens) const;
  [[nodiscard]] ChunkPlan plan_chunk(const Request& request, std::int64_t num_tokens) const;
  [[nodiscard]] std::int64_t external_tokens(const Request& request, std::int64_t local, std::int64_t offered) const;
  [[nodiscard]] std::int64_t near_end(const Request& request) const;
  [[nodiscard]] BlockReserve reserve_for(const Request& request) const;

  // scheduler.cc
  void preempt(Request& request, StepPlan& plan);
  Status append_hashes(Request& request, std::size_t first_new);
  Status tell_hashes(const Request& request, std::size_t first_new);
  static void insert_by_age(std::deque<Request*>& queue, Request& request);
  void advance_to(Request& request, std::int64_t num_tokens);
  Status settle_chunk(const LaunchedChunk& chunk);
  void release_blocks(Request& request);
  Status finish(Request& request, bool aborted);
  void remove_from_queue(const Request& request);
  [[nodiscard]] Status validate(const RequestSpec& spec) const;

  const EngineConfig& config_;
  const Geometry& geometry_;
  BlockPool& pool_;
  RequestMap& requests_;
  KvCacheManager cache_;
  SchedulerConnector* connector_ = nullptr;
  StateRules rules_;
  bool has_scratch_ = false;
  bool host_can_serve_ = true;  // false: some group never comes back from the host
  // Oldest first, whatever came between: who is older gets its tokens first and is never preempted for a younger one.
  // So the oldest owner of blocks gets on in every step that no copy holds up, and in the end everyone does (R18).
  std::deque<Request*> waiting_;
  std::deque<Request*> loaded_;  // own loaded blocks, so they go before those that wait
  std::deque<Request*> running_;
  std::vector<Request*> loading_;  // in any order
  std::deque<DeferredFrees> deferred_frees_;
  std::int64_t budget_tokens_ = 0;  // left in this pass
  bool waits_for_frees_ = false;    // in this pass: someone who runs found no block, but some are deferred
  std::uint64_t num_planned_steps_ = 0;
  std::uint64_t num_settled_steps_ = 0;
  std::uint64_t next_id_ = 1;
  std::vector<RequestReport> reports_;
  std::int64_t num_preemptions_ = 0;
  std::int64_t num_progress_ = 0;
  std::int64_t num_computed_tokens_ = 0;
};

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_ENGINE_SCHEDULER_H_
