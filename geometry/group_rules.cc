#include "geometry/group_rules.h"

#include <fmt/format.h>

#include <array>
#include <string_view>
#include <tuple>

namespace hostkv::detail {
namespace {

Status refuse(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}

struct Bounds {
  std::int64_t low = 0;
  std::int64_t high = 0;
};

Status check_range(const std::string& label, std::string_view field, std::int64_t value, Bounds allowed) {
  if (value >= allowed.low && value <= allowed.high) {
    return {};
  }
  return refuse(
      fmt::format("{}: {} {} is out of range; allowed: {} to {}", label, field, value, allowed.low, allowed.high));
}

Status check_unused(const std::string& label, std::string_view field, std::int64_t value, std::string_view home) {
  if (value == 0) {
    return {};
  }
  return refuse(
      fmt::format("{}: {} {} has no meaning here; it belongs to kind {}, set it to 0", label, field, value, home));
}

Status check_sizes(const std::string& label, const KvCacheGroup& group) {
  const struct {
    std::string_view field;
    std::int64_t value;
    std::int64_t low;
  } fields[] = {{"block_tokens", group.block_tokens, 1},
                {"page_bytes", group.page_bytes, 0},
                {"tokens_per_entry", group.tokens_per_entry, 1},
                {"extra_retained_tokens", group.extra_retained_tokens, 0},
                {"window_tokens", group.window_tokens, group.kind == GroupKind::kSlidingWindow ? 1 : 0},
                {"chunk_tokens", group.chunk_tokens, group.kind == GroupKind::kChunkedLocal ? 1 : 0}};
  for (const auto& field : fields) {
    if (Status status = check_range(label, field.field, field.value, {field.low, kMaxQuantity}); !status.ok()) {
      return status;
    }
  }
  return {};
}

Status check_kind_fields(const std::string& label, const KvCacheGroup& group) {
  if (group.kind != GroupKind::kSlidingWindow) {
    if (Status status = check_unused(label, "window_tokens", group.window_tokens, "sliding_window"); !status.ok()) {
      return status;
    }
    if (Status status = check_unused(label, "extra_retained_tokens", group.extra_retained_tokens, "sliding_window");
        !status.ok()) {
      return status;
    }
  }
  if (group.kind != GroupKind::kChunkedLocal) {
    return check_unused(label, "chunk_tokens", group.chunk_tokens, "chunked_local");
  }
  if (group.chunk_tokens % group.block_tokens != 0) {
    return refuse(fmt::format(
        "{}: chunk_tokens {} is not a multiple of block_tokens {}: a chunk would begin inside a block whose first "
        "tokens are still read; make it a multiple of {}",
        label, group.chunk_tokens, group.block_tokens, group.block_tokens));
  }
  return {};
}

Status check_entries(const std::string& label, const KvCacheGroup& group) {
  if (group.block_tokens % group.tokens_per_entry != 0) {
    return refuse(fmt::format("{}: block_tokens {} is not a multiple of tokens_per_entry {}; make it a multiple of {}",
                              label, group.block_tokens, group.tokens_per_entry, group.tokens_per_entry));
  }
  return {};
}

Status check_flags(const std::string& label, const KvCacheGroup& group) {
  if (group.sharded && !is_attention_over_all(group.kind)) {
    return refuse(
        fmt::format("{}: sharded true is not allowed: only full and mla groups are dealt out over DCP ranks, every "
                    "rank holds the whole block of this kind; set it to false",
                    label));
  }
  if (group.eagle && !is_attention_over_all(group.kind) && group.kind != GroupKind::kSlidingWindow) {
    return refuse(fmt::format(
        "{}: eagle true is not allowed: a draft group is full, mla or sliding_window; set it to false", label));
  }
  return {};
}

}  // namespace

std::string make_group_label(std::size_t index, const KvCacheGroup& group) {
  const std::string_view kind = group_kind_name(group.kind);
  return group.name.empty() ? fmt::format("group {} ({})", index, kind)
                            : fmt::format("group {} '{}' ({})", index, group.name, kind);
}

bool are_looked_up_together(const KvCacheGroup& a, const KvCacheGroup& b) {
  const auto fields = [](const KvCacheGroup& g) {
    return std::tie(g.kind, g.block_tokens, g.sharded, g.page_bytes, g.window_tokens, g.extra_retained_tokens,
                    g.chunk_tokens, g.tokens_per_entry, g.cacheable, g.transferable, g.mamba_mode);
  };
  return fields(a) == fields(b);
}

Status check_group(const std::string& label, const KvCacheGroup& group) {
  if (group.kind > GroupKind::kScratch) {
    return refuse(fmt::format("{}: kind {} is unknown; the last one is {}", label, static_cast<int>(group.kind),
                              static_cast<int>(GroupKind::kScratch)));
  }
  if (group.mamba_mode > MambaMode::kAll) {
    return refuse(fmt::format("{}: mamba_mode {} is unknown; the last one is {}", label,
                              static_cast<int>(group.mamba_mode), static_cast<int>(MambaMode::kAll)));
  }
  for (const auto check : {check_sizes, check_kind_fields, check_entries, check_flags}) {
    if (Status status = check(label, group); !status.ok()) {
      return status;
    }
  }
  return {};
}

Status check_parallel(const ParallelLayout& parallel) {
  const struct {
    std::string_view field;
    std::int64_t value;
    std::int64_t high;
  } fields[] = {{"tp", parallel.tp, kMaxParallelSize},
                {"pp", parallel.pp, kMaxParallelSize},
                {"dcp", parallel.dcp, kMaxParallelSize},
                {"pcp", parallel.pcp, kMaxParallelSize},
                {"interleave_tokens", parallel.interleave_tokens, kMaxQuantity}};
  for (const auto& field : fields) {
    if (Status status = check_range("parallel layout", field.field, field.value, {1, field.high}); !status.ok()) {
      return status;
    }
  }
  if (parallel.pcp > 1) {
    const std::int64_t both = parallel.tp * parallel.pcp;
    if (parallel.dcp != 1 && parallel.dcp != parallel.pcp && parallel.dcp != both) {
      return refuse(
          fmt::format("parallel layout: dcp {} does not go with tp {} and pcp {}; allowed: 1, {} (pcp) or {} "
                      "(tp x pcp)",
                      parallel.dcp, parallel.tp, parallel.pcp, parallel.pcp, both));
    }
  } else if (parallel.tp % parallel.dcp != 0) {
    return refuse(
        fmt::format("parallel layout: tp {} is not a multiple of dcp {}, whose ranks are tp ranks; make tp a "
                    "multiple of {}",
                    parallel.tp, parallel.dcp, parallel.dcp));
  }
  return {};
}

Status check_interleave(const std::string& label, const KvCacheGroup& group, const ParallelLayout& parallel) {
  if (!group.sharded || parallel.dcp == 1 || group.block_tokens % parallel.interleave_tokens == 0) {
    return {};
  }
  return refuse(fmt::format(
      "{}: block_tokens {} is not a multiple of interleave_tokens {}: rows would land in the next block; make it a "
      "multiple of {} or choose an interleave that divides {}",
      label, group.block_tokens, parallel.interleave_tokens, parallel.interleave_tokens, group.block_tokens));
}

}  // namespace hostkv::detail
