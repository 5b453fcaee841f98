#ifndef HOSTKV_BENCH_ENGINE_REQUEST_H_
#define HOSTKV_BENCH_ENGINE_REQUEST_H_

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "bench/engine/engine.h"
#include "bench/engine/prefix_hash.h"
#include "hostkv/connector.h"
#include "hostkv/types.h"

namespace hostkv::bench {

enum class RequestState : std::uint8_t {
  kWaiting = 0,         // owns nothing
  kWaitingForLoad = 1,  // owns the targets of a load in flight
  kLoaded = 2,          // owns loaded blocks, waits to run
  kRunning = 3,
};

// A request that is alive. A value of the scheduler; forwards read it between launch and synchronisation only.
// An align state whose key ends inside a block: the next tokens would overwrite it.
struct PartialState {
  GroupIndex group;
  BlockId block;
  std::int64_t boundary_tokens = 0;
};

struct Request {
  RequestId id;
  RequestState state = RequestState::kWaiting;
  std::vector<std::int32_t> tokens;  // prompt, then the outputs so far
  std::int64_t num_prompt_tokens = 0;
  std::int64_t max_new_tokens = 0;
  bool skip_reading_cache = false;
  std::uint64_t output_seed = 0;      // outputs are a function of it
  std::vector<PrefixHash> hashes;     // [floor(tokens / hash block)]
  std::vector<std::uint64_t> states;  // chained prefix state after i tokens, as far as a forward needed it

  std::int64_t num_computed_tokens = 0;         // settled: written by a forward, hit or loaded
  std::int64_t furthest_tokens = 0;             // most tokens that were ever computed: more is progress
  std::int64_t own_start_tokens = 0;            // of this admission: the boundary behind which it computes by itself
  std::int64_t device_hit_tokens = 0;           // of the last lookup
  std::int64_t host_hit_tokens = 0;             // of the last lookup: what its load brings
  std::int64_t junction_tokens = 0;             // end of the prefix that some group shares beyond the hit; 0: none
  std::vector<std::vector<BlockId>> tables;     // [num_groups][block index]
  std::vector<std::int64_t> num_cached_blocks;  // [num_groups] table entries below it are in the prefix cache
  // Align groups, [num_groups]: the column of the state after num_computed_tokens, and of the one that the next forward
  // writes; -1: none. Behind the latter lie the speculative blocks.
  std::vector<std::int64_t> state_column;
  std::vector<std::int64_t> running_column;
  std::vector<BlockId> state_blocks;            // align, [num_groups]: the state after a forward; empty: by its column
  std::vector<BoundaryHandOff> late_hand_offs;  // of states that accepted drafts passed: for the next step
  std::vector<PartialState> partial_states;     // to be copied away before the next forward
  std::vector<std::int64_t> open_states;        // boundaries of states whose attention has no key there yet
  std::vector<BlockId> copied_states;           // blocks that hold them, owned until the next forward is planned

  bool has_run = false;  // the hits of the report stand
  RequestReport report;

  [[nodiscard]] std::int64_t num_tokens() const { return static_cast<std::int64_t>(tokens.size()); }
  // The last output is sampled and never written.
  [[nodiscard]] std::int64_t most_tokens() const { return num_prompt_tokens + max_new_tokens - 1; }
  [[nodiscard]] std::int64_t num_output_tokens() const { return num_tokens() - num_prompt_tokens; }
};

using RequestMap = std::unordered_map<RequestId, std::unique_ptr<Request>>;

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_ENGINE_REQUEST_H_
