#ifndef HOSTKV_BENCH_REPLAY_BOUNDARY_HISTORY_H_
#define HOSTKV_BENCH_REPLAY_BOUNDARY_HISTORY_H_

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "hostkv/geometry.h"

namespace hostkv::bench {

// Which boundaries of which prefixes an engine has ever kept whole, for telling "evicted" from "never kept".
//
// Attention of every kind is kept at each boundary that a request computes. A recurrent state in align mode is kept
// where a step of a prefill ends on a block of states, and at the prompt's last boundary before its last token. Such
// steps end there, at the next block of states, at the prompt's last one, or where the budget does. Thread-safety: one
// thread. Cost: one entry per kept state. Failure: none.
class BoundaryHistory {
 public:
  // `step_tokens`: the engine's token budget of a step.
  BoundaryHistory(const Geometry& geometry, std::int64_t step_tokens);

  // The largest boundary <= `shared_tokens` of this prompt at which everything was kept before; then remembers the
  // boundaries that the request itself leaves when it computes from `hit_tokens` on.
  std::int64_t visit(std::span<const std::int64_t> block_ids, std::int64_t block_tokens, std::int64_t shared_tokens,
                     std::int64_t hit_tokens, std::int64_t prompt_tokens);

 private:
  // Where the step of a prefill that begins at `begin` ends, as the engine cuts it.
  [[nodiscard]] std::int64_t step_end(std::int64_t begin, std::int64_t prompt_tokens) const;
  // The last boundary that the same prompt can hit again; 0: none.
  [[nodiscard]] std::int64_t tail_boundary(std::int64_t prompt_tokens) const;
  void remember(std::span<const std::int64_t> block_ids, std::int64_t block_tokens, std::int64_t boundary);

  std::int64_t unit_;
  bool drops_unit_ = false;        // some group is a draft
  std::int64_t state_tokens_ = 1;  // of one block of states, over all groups of them
  std::int64_t step_tokens_;
  bool can_hit_;         // false: a state that is never kept is missing at every boundary
  bool sparse_ = false;  // some group keeps states at some boundaries only
  // id of the block that holds the token before a boundary -> boundaries kept inside it, ascending
  std::unordered_map<std::int64_t, std::vector<std::int64_t>> kept_;
};

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_REPLAY_BOUNDARY_HISTORY_H_
