#include "bench/engine/state_rules.h"

#include <algorithm>
#include <numeric>

#include "bench/engine/group_rules.h"

namespace hostkv::bench {

StateRules::StateRules(const Geometry& geometry, const EngineConfig& config)
    : geometry_(geometry),
      tail_rule_(config.tail_rule),
      retention_interval_tokens_(config.retention_interval_tokens),
      max_batched_tokens_(config.max_batched_tokens) {
  for (std::uint32_t i = 0; i < geometry.num_groups(); ++i) {
    const GroupIndex g{i};
    drops_unit_ = drops_unit_ || geometry.drops_unit(g);
    if (!is_mamba(geometry.group(g), MambaMode::kAlign)) continue;
    const std::int64_t span = geometry.span_tokens(g);
    state_span_tokens_ = state_span_tokens_ == 0 ? span : std::lcm(state_span_tokens_, span);
  }
}

std::int64_t StateRules::tail_boundary(const Request& request) const {
  const std::int64_t unit = geometry_.hit_alignment_tokens();
  const std::int64_t last_hash = request.num_prompt_tokens / unit * unit;
  if (tail_rule_ == TailRule::kLastHash) return last_hash;
  if (drops_unit_) return std::max<std::int64_t>(0, last_hash - unit);
  return (request.num_prompt_tokens - 1) / unit * unit;
}

bool StateRules::is_retained(const Request& request, std::int64_t boundary_tokens) const {
  if (!retention_interval_tokens_) return true;
  const std::int64_t interval = *retention_interval_tokens_;
  const std::int64_t unit = geometry_.hit_alignment_tokens();
  const std::int64_t junction =
      request.junction_tokens / std::max(unit, state_span_tokens_) * std::max(unit, state_span_tokens_);
  return boundary_tokens == tail_boundary(request) || boundary_tokens == junction ||
         (interval > 0 && boundary_tokens % interval == 0);
}

// At block ends; inside a block only at the prompt's tail.
bool StateRules::keeps_state(const Request& request, GroupIndex g, std::int64_t boundary_tokens) const {
  if (boundary_tokens <= 0 || boundary_tokens % geometry_.hash_block_tokens() != 0) return false;
  const bool is_block_end = boundary_tokens % geometry_.span_tokens(g) == 0;
  const bool is_tail = geometry_.fine_hits() && boundary_tokens == tail_boundary(request);
  return (is_block_end || is_tail) && is_retained(request, boundary_tokens);
}

bool StateRules::keeps_window_block(const Request& request, GroupIndex g, std::int64_t block_index) const {
  if (!retention_interval_tokens_) return true;
  const std::int64_t unit = geometry_.hit_alignment_tokens();
  const std::int64_t span = geometry_.span_tokens(g);
  const std::int64_t block_end = (block_index + 1) * span;
  const auto serves = [&](std::int64_t boundary) {
    const std::optional<LookupNeed> need = geometry_.lookup_need(g, boundary / unit * unit);
    return need && block_index >= need->blocks.first_block && block_index < need->blocks.end_block;
  };
  if (serves(tail_boundary(request)) || serves(request.junction_tokens)) return true;
  const std::int64_t interval = *retention_interval_tokens_;
  if (interval <= 0) return false;
  const std::int64_t last = block_end + geometry_.group(g).window_tokens + span;
  for (std::int64_t boundary = block_end / interval * interval; boundary <= last; boundary += interval) {
    if (serves(boundary)) return true;
  }
  return false;
}

std::int64_t StateRules::clip(const Request& request, std::int64_t begin, std::int64_t end, bool exports) const {
  const std::int64_t span = state_span_tokens_;
  const std::int64_t prefill_end = std::max(request.num_prompt_tokens, request.num_tokens() - 1);
  if (span == 0 || begin >= prefill_end) return end;
  if (end < prefill_end) {
    const std::int64_t floored = end / span * span;
    if (floored > begin || span <= max_batched_tokens_) end = floored;
  }
  const std::int64_t last_state = request.num_tokens() / span * span - (drops_unit_ ? span : 0);
  const std::int64_t junction = request.junction_tokens / span * span;
  const std::int64_t next_boundary = begin % span == 0 ? 0 : (begin / span + 1) * span;
  const std::int64_t tail = exports ? 0 : tail_boundary(request);
  for (const std::int64_t stop : {exports ? 0 : last_state, tail, junction, exports ? 0 : next_boundary}) {
    if (stop > begin && stop < end) end = stop;
  }
  return end;
}

}  // namespace hostkv::bench
