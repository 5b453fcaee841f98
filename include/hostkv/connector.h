#ifndef HOSTKV_INCLUDE_HOSTKV_CONNECTOR_H_
#define HOSTKV_INCLUDE_HOSTKV_CONNECTOR_H_

// The connector: what an engine calls. A scheduler side (one per engine) and a worker side (one per rank) that share no
// memory; step metadata goes down once a step, job results come up.
//
// One step of an engine, in order:
//   scheduler: match_prefix / on_blocks_allocated for requests that are admitted, then build_step_metadata(StepInput)
//   every worker: bind_step(metadata), start_loads(), [the forward is launched], start_stores(), poll()
//   scheduler: on_worker_results(results of all ranks), take_load_outcomes()
// Loads are asynchronous always: a request whose load is in flight must not be scheduled until its outcome has arrived.
// A store that a step's metadata carries becomes findable inside the on_worker_results call that brings the last rank's
// answer: at the earliest for the lookups of the next step.
// Across processes: step metadata is bytes (connector/step_metadata.h has its form); WorkerCapacity and JobResult are
// plain values that the engine carries as it carries its own.
//
// Hits end where the engine's own do: on hash blocks, also inside a block, where the model has such hits, else on the
// scheduler block (option boundaries: coarse makes it the scheduler block always). geometry() has what is in force, and
// its min_reusable_tokens() is the smallest prefix that can ever be found.
//
// Boundaries and tokens: see geometry.h. All groups are answered at one boundary (R2), at most num_tokens - 1 (R3).

#include <array>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "hostkv/geometry.h"
#include "hostkv/kv_layout.h"
#include "hostkv/metrics.h"
#include "hostkv/options.h"
#include "hostkv/status.h"
#include "hostkv/transfer_backend.h"
#include "hostkv/types.h"

namespace hostkv {

// The block table of one group of one request, by block index. Null blocks stand for what is not needed any more.
using GroupTable = std::span<const BlockId>;

// A block of the engine, and a key under which its own prefix cache keeps it.
struct CachedBlock {
  BlockId block;
  GroupIndex group;
  std::span<const std::byte> hash;  // the prefix hash of the key, empty: none; stays until the engine is asked again
};

// What the connector asks of the engine's block pool. The engine implements it; called only from inside
// SchedulerConnector calls, on the same thread. Must not call back into the connector.
//
// The second half shows what the engine's own prefix cache holds. With the defaults (shows_cache false, no block found,
// every key carried, no victims, no end of free blocks) nothing is known of it: lookups search the host alone, and
// store_mode lazy is refused. An engine that answers shows_cache with true overrides all of them. Cost: find_cached is
// asked for what the host lacks and for the blocks of an answer, in batches; carries_key once a hand-off, and in lazy
// mode once a new window block.
class EngineBlocks {
 public:
  virtual ~EngineBlocks() = default;
  // Keeps the blocks from being handed out or overwritten. Counted: each pin is undone by one unpin. Never the null
  // block.
  virtual void pin(std::span<const BlockId> blocks) = 0;
  // Undoes pin(); a block of no owner goes back to the free queue, the first of the list to be evicted first.
  virtual void unpin(std::span<const BlockId> blocks) = 0;
  // The request's current table of one group in its full length; it stays until the SchedulerConnector call ends or the
  // same table is asked for again. Entries below `first_block` are not read and may be stale, so that an engine of
  // another language converts only what is new; `first_block` may lie behind the end, and a table may be asked for
  // again with a smaller one in the same call. Empty for an unknown request.
  [[nodiscard]] virtual GroupTable block_table(RequestId request, GroupIndex group, std::int64_t first_block) = 0;

  // Blocks of the device that requests can own. 0: not known, and max_loading_share limits nothing.
  [[nodiscard]] virtual std::int64_t num_blocks() const { return 0; }

  // True: all of the following is implemented.
  [[nodiscard]] virtual bool shows_cache() const { return false; }
  // For each of `hashes` [n, hash_size_bytes] a block of `group` that carries that key; the null block where there is
  // none. `blocks` is [n]. What is answered may be copied while it is pinned: a recurrent state that its owner will
  // write over in place (its key ends inside the block, and its request runs) must not be answered.
  virtual void find_cached(GroupIndex group, std::span<const std::byte> hashes, std::size_t hash_size_bytes,
                           std::span<BlockId> blocks);
  // Does the block carry this key now, as the only one or beside others?
  [[nodiscard]] virtual bool carries_key(BlockId block, GroupIndex group, std::span<const std::byte> hash);
  // Blocks of no owner, cached or not: what requests and pins take from.
  [[nodiscard]] virtual std::int64_t num_free_blocks() const;
  // Blocks handed out since the engine began.
  [[nodiscard]] virtual std::uint64_t num_handed_out() const;
  // Appends the first `max_blocks` blocks of the free queue, the next victim first: one entry a key, one with an empty
  // hash for a block without a key. Asked when the walked part has been used up, and when saved blocks go back.
  virtual void next_victims(std::size_t max_blocks, std::vector<CachedBlock>& victims);
  // As unpin(), but a block of no owner goes back to the front of the free queue, the first of the list foremost: a
  // copy of what the engine is about to drop must not make it the last to be dropped.
  virtual void unpin_to_front(std::span<const BlockId> blocks);
};

// Habits of the engine that decide what may be stored.
struct EngineTraits {
  // A device hit that ends inside a block leaves wrong bytes behind it (vLLM's copy-on-write of the partial attention
  // block on padded hybrids): nothing that such a request computes is stored, nor what others compute behind a hit on
  // it, and no device block is a load's source.
  bool damages_fine_hits = false;
  // take_cache_events() tells what happens to keys on the host. False: nothing is recorded.
  bool record_events = false;
};

// What one rank can hold. Made by its worker at registration, carried to the scheduler side by the engine (R16).
struct WorkerCapacity {
  RankIndex rank;
  std::uint64_t num_slabs = 0;
  std::int64_t slab_bytes = 0;
  std::vector<std::uint32_t> slots_per_slab;  // [num_groups]; 0 for groups that are not offloadable
  std::uint64_t fingerprint = 0;              // Geometry::fingerprint of the worker; must equal the scheduler's
};

struct RequestInfo {
  RequestId id;
  std::int64_t num_prompt_tokens = 0;
  bool skip_reading_cache = false;  // lookups answer 0 (prompt log-probs); stores go on
  // Nothing of this request behind so many tokens is stored for it: no boundary or hand-off behind them, and of what it
  // computes or loads behind them nothing that the device drops (store_mode lazy), until a request that has no limit
  // there uses it. Where one without computes the same tokens at the same time, the later of the two decides. Lookups
  // are not affected. 0: nothing is stored.
  std::optional<std::int64_t> max_offload_tokens{};
};

struct MatchResult {
  // kRetry: loads in flight fill their share of the device (option max_loading_share) and there is a hit. Nothing is
  // promised: ask again next step. Never without a load in flight.
  // kMoreHashes: the answer, or what is known of damage (EngineTraits::damages_fine_hits), hangs on prefix hashes that
  // the engine has and did not append yet. Nothing is promised or counted: append more (all, to be asked at most twice)
  // and ask again. Only with `has_more_hashes`.
  enum class Kind : std::uint8_t { kMiss = 0, kHit = 1, kRetry = 2, kMoreHashes = 3 };
  Kind kind = Kind::kMiss;
  // Beyond the local tokens; > 0 for kHit, promised until allocated or cancelled (R4).
  std::int64_t num_external_tokens = 0;
  // Where the prefix ends that attention alone has, on device and host together, if that is behind the answer; else 0.
  // An engine that keeps a recurrent state there lets the next request resume there.
  std::int64_t shared_prefix_tokens = 0;
};

// A request that runs in this step.
struct ScheduledRequest {
  RequestId id;
  std::int64_t num_computed_tokens = 0;   // before this step
  std::int64_t num_scheduled_tokens = 0;  // this step's accepted tokens: known to the scheduler, no drafts (R7)
};

// After this step's forward, `block` holds the recurrent state of `group` after exactly `boundary_tokens` tokens of the
// request, under the key of that boundary. Blocks of the attention groups at the same boundary are read from the
// request's tables by position, the partly filled one included.
struct BoundaryHandOff {
  RequestId id;
  GroupIndex group;
  BlockId block;
  std::int64_t boundary_tokens = 0;
};

struct StepInput {
  std::span<const ScheduledRequest> scheduled = {};
  std::span<const BoundaryHandOff> hand_offs = {};
  // Since the last step; the tables that they had in it are void. One of them may have been admitted again meanwhile.
  std::span<const RequestId> preempted = {};
};

struct FailedBlock {
  GroupIndex group;
  BlockId block;
  friend auto operator<=>(const FailedBlock&, const FailedBlock&) = default;
};

// A load that a step's metadata carries, of the host or between blocks of the device.
struct StartedLoad {
  RequestId request;
  JobId job;
};

// What one rank says of one job. Results of different ranks may arrive in different steps.
struct JobResult {
  std::uint64_t epoch = 0;
  JobId job;
  RankIndex rank;
  StatusCode status = StatusCode::kOk;
  std::vector<FailedBlock> failed;  // empty with a status other than kOk: all blocks of the job
};

// The end of a request's load, on all ranks. Not kOk: the request looks up again, or goes on in place where the engine
// can tell what of it is whole (resume_after_failed_load).
struct LoadOutcome {
  RequestId request;
  StatusCode status = StatusCode::kOk;
};

// kPlanned: a store of the key was planned; it ends with kStored or kDropped. kStored: lookups find it. kDropped: it
// will not be stored (a rank failed, or a reset). kRemoved: it was stored and is no more (evicted, or a load of it
// failed). kCleared: a reset; no key is stored. Told once, in place of a kRemoved for each key.
enum class CacheEventKind : std::uint8_t { kPlanned = 0, kDropped = 1, kStored = 2, kRemoved = 3, kCleared = 4 };

// One key's change. Key: group and prefix hash.
struct CacheEvent {
  CacheEventKind kind = CacheEventKind::kCleared;
  GroupIndex group;
  // kPlanned: tokens of the prefix whose hash the key is. 0: not known, as in all other kinds.
  std::int64_t boundary_tokens = 0;
  // kPlanned: whose store it is. Without a request: the device was about to drop the block (store_mode lazy).
  RequestId request;
  bool has_request = false;
  // The engine's prefix hash. Of one of more than 32 bytes a digest of 32 bytes, the same in all events of the key.
  std::uint8_t hash_size_bytes = 0;
  std::array<std::byte, 32> hash{};

  [[nodiscard]] std::span<const std::byte> hash_bytes() const { return std::span(hash).first(hash_size_bytes); }
};

// Thread-safety: one thread, the engine's scheduler thread.
// Ownership: `blocks` is the engine's and must outlive the connector. Everything passed in is copied.
// Cost: match_prefix is proportional to the hit, build_step_metadata to what changed; neither waits for a copy or a
// lock. Failure: a call for an unknown request answers kNotFound (request_finished: kOk, it is idempotent), one in the
// wrong order kFailedPrecondition; both change nothing.
class SchedulerConnector {
 public:
  // `num_ranks`: the workers, TP x PP x PCP of the geometry (DCP ranks are TP ranks). kInvalidArgument: options out of
  // range, another num_ranks than the geometry has, blocks that end where no prefix hash does, store_mode lazy with an
  // engine that does not show its cache.
  static Result<std::unique_ptr<SchedulerConnector>> create(Geometry geometry, ConnectorOptions options,
                                                            std::int64_t num_ranks, EngineBlocks& blocks,
                                                            EngineTraits traits = {});
  virtual ~SchedulerConnector() = default;

  // Once per rank, before its first step. Lookups answer 0 and nothing is stored until every rank has reported.
  // kInvalidArgument: rank out of range, another fingerprint, too small for one boundary set (the message says how much
  // is needed). kFailedPrecondition: the rank has reported already.
  virtual Status on_worker_capacity(const WorkerCapacity& capacity) = 0;

  // kFailedPrecondition: the id is alive already, or the outcome of its last load was not taken yet. kInvalidArgument:
  // num_prompt_tokens < 1, max_offload_tokens < 0.
  virtual Status add_request(const RequestInfo& request) = 0;
  // Appends prefix hashes: hash i covers tokens [0, (i + 1) * hash_block_tokens). `hashes` is [n, hash_size_bytes],
  // opaque. kInvalidArgument: a size that is no multiple, hash_size_bytes 0 or over 64, another size than before.
  virtual Status append_block_hashes(RequestId id, std::span<const std::byte> hashes, std::size_t hash_size_bytes) = 0;

  // Keeps the first `num_hashes` and forgets the others: a session that went back. A promise that reaches behind them
  // is dropped. More than there are: nothing changes. kInvalidArgument: num_hashes < 0.
  virtual Status truncate_block_hashes(RequestId id, std::int64_t num_hashes) = 0;

  // The longest boundary behind the local (device) hit for which every group can be assembled from the host and from
  // what else the device still caches. `num_local_tokens` must be a multiple of the hit alignment. Drops an earlier
  // promise to this request first. May be repeated. A request that owns blocks has lost them when it is asked for
  // again. kFailedPrecondition: it is being loaded. kInvalidArgument: num_tokens not in 1 .. 2^40, num_local_tokens
  // negative, over num_tokens or between two alignments.
  // A promise pins its host slots until it is taken or dropped, its device blocks until the step's metadata is built:
  // taken later, they are looked up again. Device blocks are left out where they and the load's targets do not fit
  // beside each other, and in the lookup behind a promise of them that was not taken: the answer may then be shorter.
  // `has_more_hashes`: the engine has appended a part of the prefix hashes that it has. A prompt of which nothing is
  // stored is told by its first ones, so that a long miss costs no more than a short one.
  virtual Result<MatchResult> match_prefix(RequestId id, std::int64_t num_tokens, std::int64_t num_local_tokens,
                                           bool has_more_hashes = false) = 0;
  // The request owns its blocks now. `tables` is its complete table of every group [num_groups]; what the load fills
  // (from the block that the local tokens end inside of, where they do) is the request's alone. Entries below
  // floor(local tokens / span of the group) are not read; with num_external_tokens 0 none is, and each table may be an
  // empty span. num_external_tokens is the promised number or fewer (a load is planned, its targets pinned) or 0 (the
  // promise is dropped). A load to a
  // boundary that cannot be assembled (any more) ends at once, with an outcome of kUnavailable. kInvalidArgument: more
  // than was promised, a table without a block where the load needs one, or with one block twice beside a device copy,
  // another number of tables. kFailedPrecondition: it is being loaded.
  virtual Status on_blocks_allocated(RequestId id, std::span<const GroupTable> tables,
                                     std::int64_t num_external_tokens) = 0;
  // Drops the promise, if there is one. A no-op otherwise.
  virtual Status cancel_match(RequestId id) = 0;

  // Once a step, also when nothing is scheduled. The bytes go to every worker. kNotFound: an unknown request is
  // scheduled. kFailedPrecondition: one that owns no blocks or is being loaded. kInvalidArgument: token numbers not in
  // 0 .. 2^40, a request both scheduled and preempted.
  virtual Result<std::vector<std::byte>> build_step_metadata(const StepInput& step) = 0;

  // The load and device-copy jobs that the last build_step_metadata sent, in its order, so that a worker which reports
  // by request can be told whose load a job is. Each is told once; the next build_step_metadata forgets what was not
  // taken.
  virtual std::vector<StartedLoad> take_started_loads() = 0;

  // Results in any order, repeated, late or unknown: what does not fit is counted and ignored.
  virtual void on_worker_results(std::span<const JobResult> results) = 0;
  // Loads that ended on all ranks since the last call; one entry per planned load, exactly once (R10).
  virtual std::vector<LoadOutcome> take_load_outcomes() = 0;
  // Behind an outcome that is not kOk, in place of a new lookup: the request keeps its blocks and goes on behind
  // `num_tokens`, up to which every group's blocks are whole (recovery.h finds where). What lies behind is computed and
  // stored as if it had never been loaded. kFailedPrecondition: its last load did not fail, a reset has made it void,
  // or the request was preempted or asked for since. kInvalidArgument: num_tokens not in 0 .. the end of that load.
  virtual Status resume_after_failed_load(RequestId id, std::int64_t num_tokens) = 0;

  // With EngineTraits::record_events: what has happened to keys since the last call, in order. Replayed from the start
  // they give the keys that lookups find: kStored adds one, kRemoved takes it away, kCleared takes all. Grows until it
  // is called: once a step. Also after shutdown(), for what came before.
  virtual std::vector<CacheEvent> take_cache_events() = 0;

  // Finished or aborted, in any state; idempotent (R14). Call it while the request still owns its blocks. Blocks of the
  // request that are being copied stay pinned until the copies end. `num_computed_tokens`: positions written by a
  // forward pass; positions without a prefix hash are left out. `hand_offs`: states of this request that no step will
  // carry any more, such as that of the prompt's tail where the request ends on it; ids of others are ignored.
  // kInvalidArgument: num_computed_tokens < 0.
  virtual Status request_finished(RequestId id, std::int64_t num_computed_tokens,
                                  std::span<const BoundaryHandOff> hand_offs = {}) = 0;

  // Forgets every stored block at once, and never stores what the requests that own blocks now have computed or will
  // compute on top of it: the weights may have changed. They are stored again once they were admitted anew. True:
  // nothing is in flight any more; false: copies still run. Each call begins anew: to call again until it answers true,
  // admit nothing in between. Where the engine's own cache is not empty (or requests own blocks), no block of the
  // device is copied or stored lazily until a reset has found it empty. Cost: O(stored keys + free blocks).
  virtual bool reset() = 0;
  // Work is queued, in flight or due (store_mode lazy, blocks that have become the next to be dropped): the engine must
  // keep stepping although no request is left.
  [[nodiscard]] virtual bool has_pending_work() const = 0;
  // Pins drained, everything later answers kUnavailable. Idempotent. The workers are shut down first: they may still be
  // copying.
  virtual void shutdown() = 0;

  [[nodiscard]] virtual SchedulerMetrics metrics() const = 0;
  // [num_groups]: tokens that lookups gave up because this group lacked what the others had; once per admission.
  [[nodiscard]] virtual std::vector<std::int64_t> lost_tokens_by_group() const = 0;
  [[nodiscard]] virtual std::uint64_t epoch() const = 0;
  [[nodiscard]] virtual const Geometry& geometry() const = 0;
  // R15: slots free + cached + pinned = capacity, index and policy agree. kInternal with the difference. O(slots): for
  // tests.
  [[nodiscard]] virtual Status check_conservation() const = 0;
};

struct WorkerSpec {
  RankIndex rank;
  std::int64_t num_ranks = 1;
};

// Thread-safety: one thread, the worker's step thread. Copies run on the backend's threads, checksums (option
// checksums) on two of its own and what they share work with; a job has its result when both have ended. Ownership:
// owns its host pool and the backend. The regions of the layout are the engine's and must stay until shutdown(). Cost:
// each call is O(blocks of this step); none waits for a copy, except wait_idle and shutdown. Failure: garbage metadata
// is refused whole with kInvalidArgument and changes nothing.
class WorkerConnector {
 public:
  // A null `backend` is the host backend with options.copy_threads. kInvalidArgument: as SchedulerConnector::create, or
  // a rank outside of num_ranks.
  static Result<std::unique_ptr<WorkerConnector>> create(Geometry geometry, ConnectorOptions options, WorkerSpec spec,
                                                         std::unique_ptr<TransferBackend> backend);
  virtual ~WorkerConnector() = default;

  // Once, and after unregister_layout(). Validates the layout, maps the host pool within its budget (R17). The answer
  // goes to SchedulerConnector::on_worker_capacity. kInvalidArgument: the layout does not fit the geometry, a budget
  // that is too small; kFailedPrecondition: registered already; kResourceExhausted: the memory cannot be had.
  virtual Result<WorkerCapacity> register_layout(const KvLayout& layout) = 0;

  // For an engine that discards its device memory while it sleeps: waits for the copies, unregisters the device's
  // regions, keeps the pool and its bytes. Jobs that were not submitted yet, and those of later steps, end with
  // kUnavailable until register_layout() is called again: with blocks of the same sizes, else kInvalidArgument. What it
  // answers then is the capacity of before; the scheduler side is not told again. kFailedPrecondition: no layout is
  // registered, or a step is bound. kDeadlineExceeded: copies still run, nothing has changed. Other codes: the backend
  // could not let a region go; the layout is unregistered all the same.
  virtual Status unregister_layout(std::chrono::nanoseconds timeout) = 0;

  // Decodes this step's metadata. `compute` must stay until poll() has ended the step. kFailedPrecondition: not
  // registered, or the step before was not polled. kInvalidArgument: not a message of this version, cut, trailing
  // bytes, a group, block or slot out of range, a job twice, not newer than the last step.
  virtual Status bind_step(std::span<const std::byte> metadata, StreamHandle compute) = 0;
  // Submits the loads of the bound step, ordered after what was issued on the compute stream so far.
  // kFailedPrecondition, as of start_stores(): no step is bound.
  virtual Status start_loads() = 0;
  // Submits the stores, ordered after the forward. Call it behind the launch of the forward; poll() does where it was
  // not called.
  virtual Status start_stores() = 0;
  // Results since the last poll; ends the step.
  virtual Result<std::vector<JobResult>> poll() = 0;

  // Until no copy that was submitted is in flight, and no checksum is being taken; for engines that must not go on, and
  // for tests. Jobs that found the backend's queue full are submitted in later steps and not waited for.
  // kDeadlineExceeded after `timeout`.
  virtual Status wait_idle(std::chrono::nanoseconds timeout) = 0;
  // The bytes of one place of the pool, for tests and tools; until shutdown(). A copy in flight may be writing them.
  // kFailedPrecondition: no layout was registered yet. kInvalidArgument: the group has no such place.
  virtual Result<std::span<std::byte>> host_block(GroupIndex group, SlotId slot) = 0;
  // Drains, unregisters, frees the pool. Later calls answer kUnavailable. Idempotent. On kDeadlineExceeded the pool
  // stays mapped.
  virtual Status shutdown(std::chrono::nanoseconds timeout) = 0;

  [[nodiscard]] virtual WorkerMetrics metrics() const = 0;
};

}  // namespace hostkv

#endif  // HOSTKV_INCLUDE_HOSTKV_CONNECTOR_H_
