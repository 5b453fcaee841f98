#ifndef HOSTKV_BENCH_REPLAY_BOUNDARY_HISTORY_H_
#define HOSTKV_BENCH_REPLAY_BOUNDARY_HISTORY_H_

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "bench/replay/state_steps.h"
#include "hostkv/geometry.h"

namespace hostkv::bench {

// Which boundaries of which prefixes an engine has ever kept whole, for telling "evicted" from "never kept".
//
// Attention of every kind is kept at each boundary that a request computes, recurrent states of mode align where the
// steps of a prefill leave them (state_steps.h). Thread-safety: one thread. Cost: one entry per kept state. Failure:
// none.
class BoundaryHistory {
 public:
  // `step_tokens`: the engine's token budget of a step.
  BoundaryHistory(const Geometry& geometry, std::int64_t step_tokens);

  // The largest boundary <= `shared_tokens` of this prompt at which everything was kept before; then remembers the
  // boundaries that the request itself leaves when it computes from `hit_tokens` on.
  std::int64_t visit(std::span<const std::int64_t> block_ids, std::int64_t block_tokens, std::int64_t shared_tokens,
                     std::int64_t hit_tokens, std::int64_t prompt_tokens);

 private:
  void remember(std::span<const std::int64_t> block_ids, std::int64_t block_tokens, std::int64_t boundary);

  std::int64_t unit_;
  StateSteps steps_;
  bool can_hit_;  // false: a state that is never kept is missing at every boundary
  // id of the block that holds the token before a boundary -> boundaries kept inside it, ascending
  std::unordered_map<std::int64_t, std::vector<std::int64_t>> kept_;
};

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_REPLAY_BOUNDARY_HISTORY_H_
