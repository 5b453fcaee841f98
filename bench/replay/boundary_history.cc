#include "bench/replay/boundary_history.h"

#include <algorithm>

#include "bench/replay/expected_hit.h"

namespace hostkv::bench {

BoundaryHistory::BoundaryHistory(const Geometry& geometry, std::int64_t step_tokens)
    : unit_(geometry.hit_alignment_tokens()), step_tokens_(step_tokens), can_hit_(can_hit_on_device(geometry.spec())) {
  for (const KvCacheGroup& group : geometry.spec().groups) {
    sparse_ = sparse_ || (group.kind == GroupKind::kMamba && group.mamba_mode == MambaMode::kAlign);
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
  const std::int64_t last = (prompt_tokens - 1) / unit_ * unit_;
  const std::int64_t stride = std::max(unit_, step_tokens_ / unit_ * unit_);
  for (std::int64_t boundary = hit_tokens + stride; boundary < last; boundary += stride) {
    remember(block_ids, block_tokens, boundary);
  }
  if (last > hit_tokens) remember(block_ids, block_tokens, last);
  return kept;
}

void BoundaryHistory::remember(std::span<const std::int64_t> block_ids, std::int64_t block_tokens,
                               std::int64_t boundary) {
  std::vector<std::int64_t>& kept = kept_[block_ids[static_cast<std::size_t>((boundary - 1) / block_tokens)]];
  const auto place = std::ranges::lower_bound(kept, boundary);
  if (place == kept.end() || *place != boundary) kept.insert(place, boundary);
}

}  // namespace hostkv::bench
