#include "geometry/lookup_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "geometry/group_rules.h"

namespace hostkv::detail {
namespace {

// The first group that can neither end a hit inside a block nor has blocks of one hash.
std::optional<std::size_t> first_coarse_group(const HitRules& rules) {
  for (std::size_t i = 0; i < rules.spec.groups.size(); ++i) {
    const KvCacheGroup& group = rules.spec.groups[i];
    if (takes_part(group) && !can_end_inside_block(group.kind) && rules.spans[i] != rules.hash_block_tokens) {
      return i;
    }
  }
  return std::nullopt;
}

// Without DCP a state of one hash block is as coarse as the attention beside it; with DCP it is finer.
bool has_state_finer_than_scheduler(const HitRules& rules) {
  const bool equal_is_enough = rules.spec.parallel.dcp > 1;
  return std::any_of(rules.spec.groups.begin(), rules.spec.groups.end(), [&](const KvCacheGroup& group) {
    return takes_part(group) && group.kind == GroupKind::kMamba && group.mamba_mode == MambaMode::kAlign &&
           (group.block_tokens > rules.hash_block_tokens ||
            (equal_is_enough && group.block_tokens == rules.hash_block_tokens));
  });
}

}  // namespace

std::vector<bool> groups_that_drop(const std::vector<KvCacheGroup>& groups) {
  std::vector<bool> drops(groups.size(), false);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    drops[i] = takes_part(groups[i]) && std::any_of(groups.begin(), groups.end(), [&](const KvCacheGroup& other) {
                 return other.eagle && are_looked_up_together(groups[i], other);
               });
  }
  return drops;
}

Status check_drafts(const std::vector<KvCacheGroup>& groups, const std::vector<std::string>& labels) {
  std::optional<std::size_t> first;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (!groups[i].eagle || !takes_part(groups[i]) || is_attention_over_all(groups[i].kind)) {
      continue;
    }
    if (first && !are_looked_up_together(groups[*first], groups[i])) {
      return {StatusCode::kInvalidArgument,
              fmt::format("{}: eagle true beside {}: two draft windows that are looked up apart do not keep each "
                          "other's dropped block; make their sizes equal or mark one of them",
                          labels[i], labels[*first])};
    }
    first = first ? first : i;
  }
  return {};
}

Result<bool> resolve_fine_hits(const HitRules& rules) {
  const GeometrySpec& spec = rules.spec;
  const std::optional<std::size_t> coarse_group = first_coarse_group(rules);
  if (!spec.fine_hits) {
    return spec.prefix_caching && spec.groups.size() > 1 && !coarse_group && has_state_finer_than_scheduler(rules);
  }
  if (*spec.fine_hits && coarse_group) {
    return error(StatusCode::kInvalidArgument,
                 fmt::format("{}: fine_hits true, but a hit cannot end inside a block of this kind: span {} is not the "
                             "hash block {}; make them equal or set fine_hits to false",
                             rules.labels[*coarse_group], rules.spans[*coarse_group], rules.hash_block_tokens));
  }
  return *spec.fine_hits;
}

Status check_chunked_alignment(const HitRules& rules, std::int64_t hit_alignment_tokens) {
  for (std::size_t i = 0; i < rules.spec.groups.size(); ++i) {
    const KvCacheGroup& group = rules.spec.groups[i];
    if (takes_part(group) && group.kind == GroupKind::kChunkedLocal && rules.spans[i] != hit_alignment_tokens) {
      return {StatusCode::kInvalidArgument,
              fmt::format("{}: block_tokens {} is not the hit alignment {} of all groups together, which lookups of "
                          "this kind need; make the blocks of all groups {} tokens",
                          rules.labels[i], group.block_tokens, hit_alignment_tokens, hit_alignment_tokens)};
    }
  }
  return {};
}

}  // namespace hostkv::detail
