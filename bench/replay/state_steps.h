#ifndef HOSTKV_BENCH_REPLAY_STATE_STEPS_H_
#define HOSTKV_BENCH_REPLAY_STATE_STEPS_H_

// Where a prefill leaves recurrent states of mode align, by the rules of the engine: states are kept where a step ends.
//
// A step ends where the budget does, on a block of states; at the next block of states; at the prompt's last one (with
// a draft the one before); and, where hits end inside blocks, at the last hash block before the last token (with a
// draft the last one but one). A prompt that fills its last block of states exactly keeps the state behind it, and none
// a block earlier: where hits end on blocks only, the same prompt then hits less than one would think.
// Thread-safety: immutable. Cost: O(1) a call. Failure: none.

#include <cstdint>

#include "hostkv/geometry.h"

namespace hostkv::bench {

class StateSteps {
 public:
  // `step_tokens`: the engine's token budget of a step. REQUIRES: a geometry that resolves.
  StateSteps(const GeometrySpec& spec, std::int64_t step_tokens);

  // False: no group of the model keeps states at some boundaries only.
  [[nodiscard]] bool is_sparse() const { return is_sparse_; }
  // Where the step of a prefill that begins at `begin` ends.
  [[nodiscard]] std::int64_t step_end(std::int64_t begin, std::int64_t prompt_tokens) const;
  // Whether a state is kept where a step ends.
  [[nodiscard]] bool keeps(std::int64_t step_end_tokens, std::int64_t prompt_tokens) const;

 private:
  // The boundary inside a block that gets a state at the end of a prompt; 0: none.
  [[nodiscard]] std::int64_t tail_boundary(std::int64_t prompt_tokens) const;

  std::int64_t unit_;
  std::int64_t step_tokens_;
  bool is_fine_;
  bool is_sparse_ = false;
  bool drops_unit_ = false;        // some group is a draft
  std::int64_t state_tokens_ = 1;  // of one block of states, over all groups of them
};

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_REPLAY_STATE_STEPS_H_
