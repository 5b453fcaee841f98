#ifndef HOSTKV_BENCH_ENGINE_ENGINE_H_
#define HOSTKV_BENCH_ENGINE_ENGINE_H_

// The reference engine: a faithful small model of vLLM's scheduler, block pool and model runner, without weights.
//
// Purpose: the engine on which HostKV is developed, proven and benchmarked. Its "model" writes into every row of every
// block bytes that are a function of (token prefix, group, rank, row), folds a recurrent state over the tokens, and
// before each forward checks every byte that attention would read and every state that it would continue from. A wrong,
// stale, torn or foreign byte is counted at the step in which a real model would have produced a wrong token.
// Thread-safety: one thread. Forwards run on one HostStream per rank (its compute stream), copies on the backends'
// threads. Ownership: owns its device memory, block pool, connector (scheduler side and one worker per rank). Failure:
// create() answers kInvalidArgument for a config out of range and kResourceExhausted for more memory than there is;
// calls for unknown requests kNotFound. A wrong byte is not an error of a call: it is in EngineStats::bytes_wrong and
// first_wrong.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hostkv/connector.h"
#include "hostkv/geometry.h"
#include "hostkv/metrics.h"
#include "hostkv/options.h"
#include "hostkv/recovery.h"
#include "hostkv/status.h"
#include "hostkv/transfer_backend.h"
#include "hostkv/types.h"

namespace hostkv::bench {

enum class CheckBytes : std::uint8_t { kAll, kSampled, kOff };  // kSampled: every 16th request, chosen by its id

// Faults that a run plants on purpose, to show that the check sees them (the negative control).
enum class Plant : std::uint8_t {
  kNone,
  kCorruptByte,         // one byte of the host pool of one rank is flipped between store and load
  kSwapBlocks,          // a load copies two slots into each other's targets
  kStoreBeforeCompute,  // a store copies its source before the forward that fills it has run
  kLoadBeforeLanded,    // a load is reported done before its bytes have moved
  kTrustDrafts,         // drafts in flight are hashed, and told to the connector, as if they were accepted
  kFreeInFlight,        // who ends or is preempted gives its blocks back at once, also while a step in flight uses them
};

// When a step is planned: once the results of the step before are known, or while steps before it are still running
// (vLLM's AsyncScheduler). Outputs that are not known yet are then placeholders, and drafts in flight are counted as
// accepted until their results come.
enum class Scheduling : std::uint8_t { kSync, kAsync };

// Where the state of a prompt's tail is kept, N tokens, hash blocks of h (fine hits): floor((N - 1) / h) x h, with a
// draft group floor(N / h) x h - h (vLLM from 0.32 on); or floor(N / h) x h (up to 0.31).
enum class TailRule : std::uint8_t { kBeforeLastToken, kLastHash };

struct EngineConfig {
  GeometrySpec geometry;                   // page_bytes is ignored: payload_bytes decides
  std::int64_t num_device_blocks = 0;      // usable blocks beside the null block; 1 ..
  std::int64_t max_batched_tokens = 8192;  // token budget of a step
  std::int64_t max_running_requests = 64;
  std::int64_t payload_bytes = 8;  // written per row and group: 1 .. 4096; a recurrent state has 8 x payload_bytes
  CheckBytes check = CheckBytes::kAll;
  bool offload = true;         // false: no connector at all
  ConnectorOptions connector;  // cpu_bytes_to_use(_per_rank) counts bytes of the payload
  std::uint64_t seed = 1;      // of the payload function
  TailRule tail_rule = TailRule::kBeforeLastToken;
  // Which recurrent states and window blocks the device keeps a key for: nullopt all that could be found, 0 those that
  // a repeated prompt asks for, n > 0 also those at multiples of n.
  std::optional<std::int64_t> retention_interval_tokens{};
  // Drafts of a decode step; how many are accepted is a function of the seed. 0 ..64.
  std::int64_t num_speculative_tokens = 0;
  // A prompt's last chunk goes to its end; the state of its tail is exported on the way into another column of the
  // table.
  bool prefill_checkpoints = false;
  // Behind a hit so many tokens are computed again to fill the scratch groups; cached attention is not rewritten.
  std::int64_t replay_tokens = 0;
  // The engine takes so many of the tokens that the connector offers behind `local_tokens`, 0 .. offered. Empty: all.
  std::function<std::int64_t(RequestId, std::int64_t local_tokens, std::int64_t offered_tokens)> cap_external{};
  Plant plant = Plant::kNone;
  // Each step waits for the copies that run and takes their results in the order of the jobs: a run then repeats
  // exactly. Otherwise completions fall into whatever step they fall into, as in a live engine. With kAsync it waits
  // when the next step has been planned, before it is launched.
  bool settle_copies = false;
  // Wraps the transfer backend of each rank, outside of `plant`. Empty: nothing is wrapped.
  std::function<std::unique_ptr<TransferBackend>(RankIndex, std::unique_ptr<TransferBackend>)> decorate_backend;
  Scheduling scheduling = Scheduling::kSync;
  std::int64_t steps_in_flight = 1;  // kAsync: a step is planned before the results of so many are known. 1 .. 2
  // When a request whose hit is on the host runs. kAsynchronous: in a step after its load has ended. kSynchronous: in
  // the step that plans the load, whose forward waits for it (vLLM's load_kv_async false). The engine then sends the
  // loads of a pass in a message of their own, waits for them, takes their outcomes, and only now schedules who was
  // loaded: to the connector these are loads as always, and nobody is scheduled before its outcome. A load that fails
  // leaves its request out of the step. With Scheduling::kAsync the forwards in flight are waited for as well.
  LoadMode load_mode = LoadMode::kAsynchronous;

  [[nodiscard]] std::int64_t steps_ahead() const { return scheduling == Scheduling::kAsync ? steps_in_flight : 0; }
};

// Bytes of one block of each group on one rank under `config.payload_bytes`, [num_groups]; what a host slot of that
// group holds.
std::vector<std::int64_t> payload_block_bytes(const EngineConfig& config);
// The host budget per rank that holds exactly `num_blocks` blocks of the largest group.
std::int64_t host_bytes_for_blocks(const EngineConfig& config, std::int64_t num_blocks);

struct RequestSpec {
  std::vector<std::int32_t> prompt_tokens;  // at least 1
  std::int64_t max_new_tokens = 1;          // >= 1; output tokens are a function of the prompt (deterministic)
  bool skip_reading_cache = false;
  // The answer ends by itself with so many tokens: the scheduler learns it with the last of them. 0: it does not.
  std::int64_t end_after_tokens = 0;
};

// One entry per finished or aborted request.
struct RequestReport {
  RequestId id;
  std::int64_t prompt_tokens = 0;
  std::int64_t device_hit_tokens = 0;  // of the first admission
  std::int64_t host_hit_tokens = 0;    // of the first admission; 0 where the load failed
  std::int64_t computed_tokens = 0;    // prompt tokens that a forward computed at the first admission
  std::int64_t num_preemptions = 0;
  std::int64_t failed_loads = 0;
  bool aborted = false;
};

struct WrongByte {  // the first mismatch of a run
  RequestId request;
  GroupIndex group;
  std::int64_t rank = 0;
  std::int64_t position = 0;  // token, or the boundary of a state
  std::string what;           // for people: expected and found
};

// Counted when a step's results are in: with kAsync a step in flight is in `steps` alone.
struct EngineStats {
  std::int64_t steps = 0;
  std::int64_t bytes_checked = 0;
  std::int64_t bytes_wrong = 0;
  std::optional<WrongByte> first_wrong;
  std::int64_t computed_tokens = 0;
  std::int64_t preemptions = 0;
  std::int64_t free_device_blocks = 0;    // cached or not, of no request, not used by a step in flight, not pinned
  std::int64_t pinned_device_blocks = 0;  // by the connector
};

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> create(EngineConfig config);
  virtual ~Engine() = default;

  virtual Result<RequestId> add_request(RequestSpec spec) = 0;
  virtual Status abort_request(RequestId id) = 0;  // any state; idempotent for finished ones
  // One scheduler step on all ranks: plans and launches it, then takes the results of the step that is due, which with
  // kAsync is one before it. Also when nothing is left to run: polls the connector.
  virtual Status step() = 0;
  // Steps until no request and no connector work is left. kDeadlineExceeded with the state of every request after
  // `max_steps` steps without progress: nothing hangs. Progress: a request got further than ever before, or ended.
  virtual Status run_until_idle(std::int64_t max_steps = 1'000'000) = 0;
  [[nodiscard]] virtual bool idle() const = 0;

  // Drops every cached block of the device (prefix cache only); running requests keep theirs.
  virtual void evict_device_cache() = 0;
  // vLLM's reset: device cache and, where asked, the connector's. False: something is in flight or owned, ask again.
  virtual bool reset_prefix_cache(bool reset_connector) = 0;

  // Reports of requests that ended since the last call, in the order they ended.
  virtual std::vector<RequestReport> take_reports() = 0;
  [[nodiscard]] virtual EngineStats stats() const = 0;
  [[nodiscard]] virtual SchedulerMetrics scheduler_metrics() const = 0;  // zeros without offload
  [[nodiscard]] virtual const Geometry& geometry() const = 0;
  // R15 on device and host: free + owned + pinned = all blocks on the device, and
  // SchedulerConnector::check_conservation. R13: what a forward in flight may touch still belongs to its request.
  [[nodiscard]] virtual Status check_conservation() const = 0;
};

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_ENGINE_ENGINE_H_
