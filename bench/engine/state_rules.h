#ifndef HOSTKV_BENCH_ENGINE_STATE_RULES_H_
#define HOSTKV_BENCH_ENGINE_STATE_RULES_H_

#include <cstdint>
#include <optional>

#include "bench/engine/engine.h"
#include "bench/engine/request.h"
#include "hostkv/geometry.h"

namespace hostkv::bench {

// At which boundaries a request's recurrent states and windows are kept findable on the device (vLLM's
// _mamba_block_aligned_split, get_replay_boundaries and retention). Thread-safety: immutable. Cost: O(groups).
class StateRules {
 public:
  StateRules(const Geometry& geometry, const EngineConfig& config);

  // Distance of the states that are kept at block ends; 0: no align group.
  [[nodiscard]] std::int64_t state_span_tokens() const { return state_span_tokens_; }
  // The boundary that a repeated prompt asks for; 0: none.
  [[nodiscard]] std::int64_t tail_boundary(const Request& request) const;
  // The state at the end of a chunk gets a key.
  [[nodiscard]] bool keeps_state(const Request& request, GroupIndex g, std::int64_t boundary_tokens) const;
  [[nodiscard]] bool keeps_window_block(const Request& request, GroupIndex g, std::int64_t block_index) const;
  // Where a chunk [begin, end) of a prefill ends instead, so that states exist. `exports`: the tail needs no stop.
  [[nodiscard]] std::int64_t clip(const Request& request, std::int64_t begin, std::int64_t end, bool exports) const;

 private:
  [[nodiscard]] bool is_retained(const Request& request, std::int64_t boundary_tokens) const;

  const Geometry& geometry_;
  TailRule tail_rule_;
  std::optional<std::int64_t> retention_interval_tokens_;
  std::int64_t max_batched_tokens_;
  std::int64_t state_span_tokens_ = 0;
  bool drops_unit_ = false;
};

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_ENGINE_STATE_RULES_H_
