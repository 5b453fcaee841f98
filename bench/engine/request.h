#ifndef HOSTKV_BENCH_ENGINE_REQUEST_H_
#define HOSTKV_BENCH_ENGINE_REQUEST_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "bench/engine/engine.h"
#include "bench/engine/payload.h"
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

// An align state whose key ends inside a block: the next tokens would overwrite it.
struct PartialState {
  GroupIndex group;
  BlockId block;
  std::int64_t boundary_tokens = 0;
};

// How far the forwards that were launched take a request. Only the device knows: the scheduler learns it with the
// results of the steps.
struct DeviceProgress {
  std::int64_t num_tokens = 0;
  std::vector<BlockId> state_blocks;  // align groups, [num_groups]: where the state after them is
  PrefixStates states;                // chained prefix state after i tokens, as far as a forward needed it
};

// A request that is alive. A value of the scheduler; a forward gets what it needs of it when it is launched.
struct Request {
  RequestId id;
  RequestState state = RequestState::kWaiting;
  std::vector<std::int32_t> tokens;  // prompt, then the outputs so far
  std::int64_t num_prompt_tokens = 0;
  std::int64_t max_new_tokens = 0;
  std::int64_t end_after_tokens = 0;
  bool skip_reading_cache = false;
  std::uint64_t output_seed = 0;   // outputs are a function of it
  std::vector<PrefixHash> hashes;  // [floor(tokens / hash block)]

  std::int64_t num_computed_tokens = 0;         // settled: written by a forward whose results are in, hit or loaded
  std::int64_t num_planned_tokens = 0;          // and by the steps in flight, all their drafts counted as accepted
  std::int64_t num_drafts_in_flight = 0;        // of these
  std::int64_t num_placeholders = 0;            // outputs that the steps in flight bring, as many at most
  std::uint64_t last_step = 0;                  // the last one that uses its blocks; 0: none did
  std::int64_t furthest_tokens = 0;             // most tokens that were ever computed: more is progress
  std::int64_t own_start_tokens = 0;            // of this admission: the boundary behind which it computes by itself
  std::int64_t device_hit_tokens = 0;           // of the last lookup
  std::int64_t host_hit_tokens = 0;             // of the last lookup: what its load brings
  std::int64_t junction_tokens = 0;             // end of the prefix that some group shares beyond the hit; 0: none
  std::vector<std::vector<BlockId>> tables;     // [num_groups][block index]
  std::vector<std::int64_t> num_cached_blocks;  // [num_groups] table entries below it are in the prefix cache
  // Align groups, [num_groups]: the column of the state after num_computed_tokens, and of the one that the last planned
  // forward writes; -1: none. Behind the latter lie the speculative blocks.
  std::vector<std::int64_t> state_column;
  std::vector<std::int64_t> running_column;
  std::vector<BoundaryHandOff> late_hand_offs;  // of states that accepted drafts passed: for the next step
  std::vector<PartialState> partial_states;     // to be copied away before the next forward
  std::vector<std::int64_t> open_states;        // boundaries of states whose attention has no key there yet
  std::vector<BlockId> copied_states;           // blocks that hold them, owned until the next forward is planned

  DeviceProgress on_device;

  bool has_run = false;  // the hits of the report stand
  RequestReport report;

  [[nodiscard]] std::int64_t num_tokens() const { return static_cast<std::int64_t>(tokens.size()); }
  // The last output is sampled and never written.
  [[nodiscard]] std::int64_t most_tokens() const { return num_prompt_tokens + max_new_tokens - 1; }
  [[nodiscard]] std::int64_t num_output_tokens() const { return num_tokens() - num_prompt_tokens; }
  [[nodiscard]] bool has_ended() const {
    return num_output_tokens() == max_new_tokens || (end_after_tokens > 0 && num_output_tokens() == end_after_tokens);
  }
  // Also those that the steps in flight bring.
  [[nodiscard]] std::int64_t num_tokens_ahead() const { return num_tokens() + num_placeholders; }
  // Tokens that the scheduler knows, and that the steps planned so far surely write.
  [[nodiscard]] std::int64_t num_certain_tokens() const {
    return std::min(num_planned_tokens - num_drafts_in_flight, num_tokens());
  }
  // It goes on from here: nothing of it is in flight.
  void begin_at(std::int64_t boundary_tokens) {
    num_computed_tokens = num_planned_tokens = boundary_tokens;
    num_drafts_in_flight = num_placeholders = 0;
  }
};

using RequestMap = std::unordered_map<RequestId, std::unique_ptr<Request>>;

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_ENGINE_REQUEST_H_
