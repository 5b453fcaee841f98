#include "bench/replay/state_steps.h"

#include <algorithm>
#include <numeric>

#include "bench/replay/expected_hit.h"

namespace hostkv::bench {

StateSteps::StateSteps(const GeometrySpec& spec, std::int64_t step_tokens)
    : unit_(boundary_unit(spec)), step_tokens_(step_tokens), is_fine_(ends_inside_blocks(spec)) {
  for (const KvCacheGroup& group : spec.groups) {
    drops_unit_ = drops_unit_ || group.eagle;
    if (group.kind != GroupKind::kMamba || group.mamba_mode != MambaMode::kAlign) continue;
    is_sparse_ = true;
    state_tokens_ = std::lcm(state_tokens_, group.block_tokens);
  }
}

std::int64_t StateSteps::step_end(std::int64_t begin, std::int64_t prompt_tokens) const {
  std::int64_t end = std::min(begin + step_tokens_, prompt_tokens);
  const std::int64_t floored = end / state_tokens_ * state_tokens_;
  if (end < prompt_tokens && floored > begin) end = floored;
  const std::int64_t last_block = prompt_tokens / state_tokens_ * state_tokens_ - (drops_unit_ ? state_tokens_ : 0);
  const std::int64_t next_block = begin % state_tokens_ == 0 ? 0 : (begin / state_tokens_ + 1) * state_tokens_;
  for (const std::int64_t stop : {last_block, next_block, tail_boundary(prompt_tokens)}) {
    if (stop > begin && stop < end) end = stop;
  }
  return end;
}

bool StateSteps::keeps(std::int64_t step_end_tokens, std::int64_t prompt_tokens) const {
  return step_end_tokens % state_tokens_ == 0 || step_end_tokens == tail_boundary(prompt_tokens);
}

std::int64_t StateSteps::tail_boundary(std::int64_t prompt_tokens) const {
  if (!is_fine_) return 0;
  return drops_unit_ ? prompt_tokens / unit_ * unit_ - unit_ : (prompt_tokens - 1) / unit_ * unit_;
}

}  // namespace hostkv::bench
