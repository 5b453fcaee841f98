// What a group no longer reads, must hold, and must show to a lookup at a boundary.

#include <algorithm>

#include "base/check.h"
#include "geometry/group_rules.h"
#include "hostkv/geometry.h"

namespace hostkv {
namespace {

// A boundary behind this is no request's: keeps sums of a boundary and a unit inside 64 bits.
constexpr std::int64_t kMaxBoundaryTokens = std::int64_t{1} << 60U;

std::int64_t window_blocks(const KvCacheGroup& group, std::int64_t span) {
  return detail::ceil_div(group.window_tokens - 1, span);
}

}  // namespace

std::int64_t Geometry::skipped_tokens(GroupIndex g, std::int64_t boundary_tokens) const {
  HOSTKV_DCHECK(g.value() < num_groups() && boundary_tokens >= 0, "group in range, tokens >= 0");
  const KvCacheGroup& group = spec_.groups[g.value()];
  switch (group.kind) {
    case GroupKind::kSlidingWindow:
      return std::max<std::int64_t>(0, boundary_tokens - (group.window_tokens - 1) - group.extra_retained_tokens);
    case GroupKind::kChunkedLocal:
      return boundary_tokens - boundary_tokens % group.chunk_tokens;
    case GroupKind::kMamba:
      return std::max<std::int64_t>(0, boundary_tokens - 1);
    case GroupKind::kFullAttention:
    case GroupKind::kMla:
    case GroupKind::kScratch:
      return 0;
  }
  return 0;
}

BlockIndexRange Geometry::needs(GroupIndex g, std::int64_t boundary_tokens) const {
  HOSTKV_DCHECK(g.value() < num_groups() && boundary_tokens >= 0, "group in range, tokens >= 0");
  if (boundary_tokens == 0 || !detail::takes_part(spec_.groups[g.value()])) {
    return {};
  }
  const std::int64_t skipped = skipped_tokens(g, boundary_tokens);
  const std::int64_t end = detail::ceil_div(boundary_tokens, spans_[g.value()]);
  // A block under construction of which nothing is read is not needed.
  return skipped >= boundary_tokens ? BlockIndexRange{end, end} : BlockIndexRange{skipped / spans_[g.value()], end};
}

std::int64_t Geometry::lookup_run_blocks(GroupIndex g) const {
  HOSTKV_DCHECK(g.value() < num_groups(), "group in range");
  const KvCacheGroup& group = spec_.groups[g.value()];
  if (group.kind != GroupKind::kSlidingWindow) {
    return 0;
  }
  return window_blocks(group, spans_[g.value()]) + (drops_unit_[g.value()] ? 1 : 0);
}

std::optional<LookupNeed> Geometry::lookup_need(GroupIndex g, std::int64_t boundary_tokens) const {
  HOSTKV_DCHECK(g.value() < num_groups() && boundary_tokens >= 0, "group in range, tokens >= 0");
  if (boundary_tokens < 0 || boundary_tokens > kMaxBoundaryTokens || boundary_tokens % hit_alignment_tokens_ != 0) {
    return std::nullopt;
  }
  const KvCacheGroup& group = spec_.groups[g.value()];
  if (boundary_tokens == 0 || !detail::takes_part(group)) {
    return LookupNeed{.blocks = {}, .tail_boundary_tokens = boundary_tokens};
  }
  const std::int64_t span = spans_[g.value()];
  const std::int64_t block = boundary_tokens / span;
  const std::int64_t dropped_blocks = drops_unit_[g.value()] ? 1 : 0;
  switch (group.kind) {
    case GroupKind::kFullAttention:
    case GroupKind::kMla: {
      const std::int64_t tail = boundary_tokens + dropped_blocks * std::min(hit_alignment_tokens_, span);
      return LookupNeed{{0, detail::ceil_div(tail, span)}, tail};
    }
    case GroupKind::kSlidingWindow: {
      const std::int64_t first = std::max<std::int64_t>(0, block - window_blocks(group, span));
      return LookupNeed{{first, block + dropped_blocks}, boundary_tokens + dropped_blocks * span};
    }
    case GroupKind::kChunkedLocal:
      return LookupNeed{{skipped_tokens(g, boundary_tokens) / span, block}, boundary_tokens};
    case GroupKind::kMamba: {
      if (group.mamba_mode == MambaMode::kNone) {
        return std::nullopt;
      }
      const std::int64_t state = (boundary_tokens - 1) / span;
      return LookupNeed{{state, state + 1}, boundary_tokens};
    }
    case GroupKind::kScratch:
      break;
  }
  return std::nullopt;
}

BlockIndexRange Geometry::blocks_of_tokens(GroupIndex g, std::int64_t begin_tokens, std::int64_t end_tokens) const {
  HOSTKV_DCHECK(g.value() < num_groups() && begin_tokens >= 0, "group in range, tokens >= 0");
  const std::int64_t span = spans_[g.value()];
  const std::int64_t first = begin_tokens / span;
  return {first, end_tokens > begin_tokens ? detail::ceil_div(end_tokens, span) : first};
}

}  // namespace hostkv
