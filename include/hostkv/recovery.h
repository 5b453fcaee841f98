#ifndef HOSTKV_INCLUDE_HOSTKV_RECOVERY_H_
#define HOSTKV_INCLUDE_HOSTKV_RECOVERY_H_

// Recovery: after failed loads, the longest boundary at which every group on every rank can go on (R12).
//
// Purpose: an engine hands over what its requests hold and which blocks failed to load; it gets, for each request that
// is touched, the boundary to resume at, the blocks that stay, what has to leave the prefix cache, and what to do with
// the request. Needs no connector of ours: any engine with block tables per group can ask.
//
// The rule. Candidates of a request with C settled tokens are c = floor(C / A) * A, .., A, 0 with A the hit alignment
// of the geometry. A candidate is safe when every block that a group needs at c (Geometry::needs; for recurrent groups
// the one state after exactly c tokens) is there and failed on no rank. Zero is always safe, the answer is the largest
// safe one. The unit that draft groups drop at a lookup is not dropped again. Groups that take no part in lookups (not
// cacheable, scratch) take no part here. The safe sets of the ranks are intersected; the least of the ranks' own
// answers is something else, and wrong: a window that moves left may need blocks that are gone.
//
// A block is (group, number): the same number in another group is another block. The null block neither fails nor is
// evicted. Whose load a block was matters for eviction alone: a request is touched by every failed block in its table.
//
// What a failed load leads to. A synchronous request has run on it: what its steps wrote behind the settled tokens is
// void, and so is what others found of it in the prefix cache and went on from. Both are told by the tables, so an
// engine that runs ahead hands over tables from before the steps in flight gave blocks back (a window that moved on),
// or evicts those blocks itself; and it hands over a request that ends in such a step before its blocks are given back.
//
// Thread-safety: a planner is used by one thread at a time; several planners share a Geometry freely. Ownership: owns
// its scratch memory, views are read during the call only. Failure: a broken view is answered with kInvalidArgument
// that names request, group and size; failures that fit nothing (a block in no table, a repeat) change nothing. What is
// behind the end of a table is not held, as null is not.

#include <chrono>
#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "hostkv/geometry.h"
#include "hostkv/status.h"
#include "hostkv/types.h"

namespace hostkv {

// kAsynchronous: the request waits for its load, has not run on it, and its targets were never findable.
// kSynchronous: the request has run, or runs in a step in flight, on blocks of the load.
enum class LoadMode : std::uint8_t { kAsynchronous = 0, kSynchronous = 1 };

// kRecompute: what was lost is computed again. kFail: a request that lost something ends with an error.
enum class LoadFailurePolicy : std::uint8_t { kRecompute = 0, kFail = 1 };

// One load of one block that failed on one rank.
struct FailedLoad {
  RequestId request{};  // whose load it was
  GroupIndex group{};
  BlockId block{};
  RankIndex rank{};
  friend auto operator<=>(const FailedLoad&, const FailedLoad&) = default;
};

// What a request holds of one group.
struct HeldBlocks {
  std::span<const BlockId> table{};  // [n], by block index; null: not held
  // Recurrent groups: tokens folded into the state of each entry, 0: no state; of an entry that a step in flight
  // writes, those it will have. [n], in any order: the column of a state that was exported on the way does not tell its
  // tokens. Where several entries have as many tokens, the one counts that has its place by position ((tokens - 1) /
  // span), else the first. Empty for all other kinds.
  std::span<const std::int64_t> state_tokens{};
};

struct HeldRequest {
  RequestId id{};
  // Tokens that count as computed: found in a cache, loaded, or computed before the load. Without what steps computed
  // on the failed load: their outputs are void.
  std::int64_t settled_tokens = 0;
  LoadMode mode = LoadMode::kAsynchronous;
  std::span<const HeldBlocks> groups{};  // [num_groups]
};

// kRewind: goes on in place behind resume_tokens; blocks behind it stay the request's and are written again.
// kPreempt: gives all blocks back, outputs in flight are stale, the worker forgets its state; it is admitted again at
// the head of the queue, by a lookup. (Behind a synchronous load only requests of one group, full attention or MLA, can
// be rewound: a step in flight has already nulled what a window or a state left behind. And whoever holds a block that
// another request has filled on a failed load must not write into it: that one does, perhaps with other tokens.)
// kKeep: all that failed is shared with an earlier request of the same list, which is rewound and computes it again
// before this one reads it: it goes on behind settled_tokens. Where the earlier one cannot (it is aborted or preempted
// first), ask again without it.
// kEnd: ends with an error (LoadFailurePolicy::kFail).
enum class RecoveryAction : std::uint8_t { kRewind = 0, kPreempt = 1, kKeep = 2, kEnd = 3 };

struct RequestRecovery {
  RequestId id{};
  RecoveryAction action = RecoveryAction::kRewind;
  // The largest safe boundary, whatever the action: what the request's own table supports. After kPreempt the lookup
  // may find more. kKeep: settled_tokens. A synchronous request that is rewound counts on what an earlier one computes
  // again, as after kKeep.
  std::int64_t resume_tokens = 0;
  // [num_groups]: the blocks, by table index, that are needed at resume_tokens: what a rewound request keeps.
  // Empty ranges for groups that need nothing or take no part, and where the action keeps nothing (kPreempt, kEnd).
  std::vector<BlockIndexRange> kept{};
};

struct EvictedBlock {
  GroupIndex group{};
  BlockId block{};
  friend auto operator<=>(const EvictedBlock&, const EvictedBlock&) = default;
};

struct RecoveryPlan {
  std::vector<RequestRecovery> requests{};  // those that are touched, in the order of the call
  // What must leave the prefix cache, ascending, each once: of synchronous loads the blocks that failed and all that
  // hold tokens computed on them, also where the request goes on in place: nobody else may find them until they are
  // computed again. Never the targets of asynchronous loads (they were never in it), never null, never what a group
  // that takes no part holds, never a good block. A failed block whose load belongs to no request of the list counts as
  // synchronous where a request holds it.
  std::vector<EvictedBlock> evicted{};
};

class Collective;

class RecoveryPlanner {
 public:
  explicit RecoveryPlanner(Geometry geometry, LoadFailurePolicy policy = LoadFailurePolicy::kRecompute);
  ~RecoveryPlanner();
  RecoveryPlanner(RecoveryPlanner&&) noexcept;
  RecoveryPlanner& operator=(RecoveryPlanner&&) noexcept;

  // The largest safe boundary of one request. `failed`: of all ranks together, or of one.
  // Cost: one pass from the top candidate down to the answer, jumping over what a failed block rules out; O(blocks in
  // the tables + failed) in the worst case; memory is kept between calls, none of it grows with the candidates.
  Result<std::int64_t> safe_boundary(const HeldRequest& request, std::span<const FailedLoad> failed);

  // All requests that are touched, where one scheduler knows the failures of all ranks. `requests` in the order in
  // which the engine runs them: of several that share a failed block the first computes it again. A failure that names
  // a group which the geometry does not have tells that the ranks disagree about the shape: its request resumes at 0,
  // and if it is synchronous, every block of it counts as failed.
  Result<RecoveryPlan> plan(std::span<const HeldRequest> requests, std::span<const FailedLoad> failed);

  // For engines without one scheduler: byte i of `safe` [num_candidates(request)] is 1 where candidate i * A is safe
  // judging by `failed`, else 0. Byte 0 is always 1. The ranks' bytes are intersected by their minimum.
  Status mark_safe(const HeldRequest& request, std::span<const FailedLoad> failed, std::span<std::uint8_t> safe);
  [[nodiscard]] std::size_t num_candidates(const HeldRequest& request) const;  // floor(C / A) + 1

 private:
  friend Result<RecoveryPlan> plan_together(RecoveryPlanner& planner, Collective& collective,
                                            std::span<const HeldRequest> requests,
                                            std::span<const FailedLoad> own_failed);
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// A minimum over all ranks, byte by byte.
//
// Contract: all ranks call with the same number of bytes, the same number of times, in the same order (R22). A call
// returns when all ranks have called, with the minimum in `bytes` on every rank; or with kDeadlineExceeded when a rank
// did not come in time, kUnavailable once a rank is lost or left, kInvalidArgument when ranks came with different
// sizes. After any failure the collective is broken on every rank and every further call answers kUnavailable: a rank
// cannot know how far the others got. Thread-safety: one thread a rank. Ownership: the caller's bytes.
class Collective {
 public:
  virtual ~Collective() = default;
  [[nodiscard]] virtual std::int64_t num_ranks() const = 0;
  [[nodiscard]] virtual RankIndex rank() const = 0;
  virtual Status all_reduce_min(std::span<std::uint8_t> bytes) = 0;
};

// The ranks of one process, one thread each. Destroying a rank's end while others wait or will call breaks it for them.
// `timeout`: how long a call waits for the others. kInvalidArgument: num_ranks not in 1 .. 2^20, timeout <= 0.
Result<std::vector<std::unique_ptr<Collective>>> create_in_process_collective(std::int64_t num_ranks,
                                                                              std::chrono::nanoseconds timeout);

// plan() where every rank knows its own failures only. All ranks call it in the same step with the same requests (their
// tables are alike on all ranks), also a rank without failures. At most two collective calls (none without requests):
// which requests are touched, and if any is, their safe candidates or, where the prefix cache may hold what failed,
// which entries of their tables. Every rank gets the same plan: the one that plan() makes of all failures together.
// Failure: the collective's; nothing may be assumed then, and none of the requests may go on. Besides, before the first
// collective call, what plan() refuses, and a request with more than 2^28 candidates (kInvalidArgument).
Result<RecoveryPlan> plan_together(RecoveryPlanner& planner, Collective& collective,
                                   std::span<const HeldRequest> requests, std::span<const FailedLoad> own_failed);

}  // namespace hostkv

#endif  // HOSTKV_INCLUDE_HOSTKV_RECOVERY_H_
