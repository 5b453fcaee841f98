#include "bench/replay/boundary_history.h"

#include <algorithm>

#include "bench/replay/expected_hit.h"

namespace hostkv::bench {

BoundaryHistory::BoundaryHistory(const Geometry& geometry, std::int64_t step_tokens)
    : unit_(geometry.hit_alignment_tokens()),
      steps_(geometry.spec(), step_tokens),
      can_hit_(can_hit_on_device(geometry.spec())) {}

std::int64_t BoundaryHistory::visit(std::span<const std::int64_t> block_ids, std::int64_t block_tokens,
                                    std::int64_t shared_tokens, std::int64_t hit_tokens, std::int64_t prompt_tokens) {
  if (!can_hit_) return 0;
  if (!steps_.is_sparse()) return shared_tokens;
  std::int64_t kept = 0;
  for (std::int64_t boundary = shared_tokens; boundary > 0 && kept == 0; boundary -= unit_) {
    const auto found = kept_.find(block_ids[static_cast<std::size_t>((boundary - 1) / block_tokens)]);
    if (found != kept_.end() && std::ranges::binary_search(found->second, boundary)) kept = boundary;
  }
  for (std::int64_t end = hit_tokens; end < prompt_tokens; end = steps_.step_end(end, prompt_tokens)) {
    if (end > hit_tokens && steps_.keeps(end, prompt_tokens)) remember(block_ids, block_tokens, end);
  }
  return kept;
}

void BoundaryHistory::remember(std::span<const std::int64_t> block_ids, std::int64_t block_tokens,
                               std::int64_t boundary) {
  std::vector<std::int64_t>& kept = kept_[block_ids[static_cast<std::size_t>((boundary - 1) / block_tokens)]];
  const auto place = std::ranges::lower_bound(kept, boundary);
  if (place == kept.end() || *place != boundary) kept.insert(place, boundary);
}

}  // namespace hostkv::bench
