#include "bench/replay/boundary_history.h"

#include <algorithm>
#include <numeric>

#include "bench/replay/expected_hit.h"

namespace hostkv::bench {

BoundaryHistory::BoundaryHistory(const Geometry& geometry, std::int64_t step_tokens)
    : unit_(geometry.hit_alignment_tokens()), step_tokens_(step_tokens), can_hit_(can_hit_on_device(geometry.spec())) {
  for (const KvCacheGroup& group : geometry.spec().groups) {
    drops_unit_ = drops_unit_ || group.eagle;
    if (group.kind != GroupKind::kMamba || group.mamba_mode != MambaMode::kAlign) continue;
    sparse_ = true;
    state_tokens_ = std::lcm(state_tokens_, group.block_tokens);
  }
}

std::int64_t BoundaryHistory::visit(std::span<const std::int64_t> block_ids, std::int64_t block_tokens,
                                    std::int64_t shared_tokens, std::int64_t hit_tokens, std::int64_t prompt_tokens) {
  if (!can_hit_) return 0;
  if (!sparse_) return shared_tokens;
  std::int64_t kept = 0;
  for (std::int64_t boundary = shared_tokens; boundary > 0 && kept == 0; boundary -= unit_) {
    const auto found = kept_.find(block_ids[static_cast<std::size_t>((boundary - 1) / block_tokens)]);
    if (found != kept_.end() && std::ranges::binary_search(found->second, boundary)) kept = boundary;
  }
  const std::int64_t tail = tail_boundary(prompt_tokens);
  for (std::int64_t end = hit_tokens; end < prompt_tokens; end = step_end(end, prompt_tokens)) {
    const bool has_state = end > hit_tokens && (end % state_tokens_ == 0 || end == tail);
    if (has_state) remember(block_ids, block_tokens, end);
  }
  return kept;
}

std::int64_t BoundaryHistory::step_end(std::int64_t begin, std::int64_t prompt_tokens) const {
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

std::int64_t BoundaryHistory::tail_boundary(std::int64_t prompt_tokens) const {
  return drops_unit_ ? prompt_tokens / unit_ * unit_ - unit_ : (prompt_tokens - 1) / unit_ * unit_;
}

void BoundaryHistory::remember(std::span<const std::int64_t> block_ids, std::int64_t block_tokens,
                               std::int64_t boundary) {
  std::vector<std::int64_t>& kept = kept_[block_ids[static_cast<std::size_t>((boundary - 1) / block_tokens)]];
  const auto place = std::ranges::lower_bound(kept, boundary);
  if (place == kept.end() || *place != boundary) kept.insert(place, boundary);
}

}  // namespace hostkv::bench
