#include "bench/replay/expected_hit.h"

#include <algorithm>
#include <numeric>

namespace hostkv::bench {
namespace {

bool takes_part(const KvCacheGroup& group) {
  return group.cacheable && group.kind != GroupKind::kScratch;
}

// Tokens of the largest unit that a draft group drops: they must be seen behind a boundary.
std::int64_t draft_tokens(const GeometrySpec& spec) {
  std::int64_t tokens = 0;
  for (const KvCacheGroup& group : spec.groups) {
    if (group.eagle && takes_part(group)) tokens = std::max(tokens, span_of(group, spec.parallel));
  }
  return std::min(tokens, boundary_unit(spec));
}

bool is_state(const KvCacheGroup& group) {
  return group.kind == GroupKind::kMamba && takes_part(group);
}

// A lookup can find its keys inside a block, or has no key inside one.
bool is_as_fine_as_hashes(const GeometrySpec& spec, const KvCacheGroup& group, std::int64_t hash_block) {
  const bool has_inner_keys =
      group.kind == GroupKind::kFullAttention || group.kind == GroupKind::kMla || group.kind == GroupKind::kMamba;
  return !takes_part(group) || has_inner_keys || span_of(group, spec.parallel) == hash_block;
}

// How far keys are looked at in a prompt.
std::int64_t seen_tokens(const GeometrySpec& spec, std::int64_t prompt_tokens) {
  return spec.groups.size() == 1 ? prompt_tokens - 1 : prompt_tokens;
}

}  // namespace

std::int64_t span_of(const KvCacheGroup& group, const ParallelLayout& parallel) {
  return group.block_tokens * (group.sharded ? parallel.dcp : 1);
}

std::int64_t scheduler_block_of(const GeometrySpec& spec) {
  std::int64_t block = 1;
  for (const KvCacheGroup& group : spec.groups) block = std::lcm(block, span_of(group, spec.parallel));
  return block;
}

std::int64_t hash_block_of(const GeometrySpec& spec) {
  const bool has_other_states = std::ranges::any_of(
      spec.groups, [](const KvCacheGroup& group) { return is_state(group) && group.mamba_mode != MambaMode::kAlign; });
  std::int64_t common = 0;
  for (const KvCacheGroup& group : spec.groups) {
    if (takes_part(group)) common = std::gcd(common, span_of(group, spec.parallel));
  }
  if (has_other_states || common == 0) return scheduler_block_of(spec);
  return spec.hash_block_tokens.value_or(common);
}

bool ends_inside_blocks(const GeometrySpec& spec) {
  if (spec.fine_hits) return *spec.fine_hits;
  if (!spec.prefix_caching || spec.groups.size() < 2) return false;
  const std::int64_t hash_block = hash_block_of(spec);
  const std::int64_t shortest = spec.parallel.dcp > 1 ? hash_block : hash_block + 1;
  const bool has_long_states = std::ranges::any_of(spec.groups, [&](const KvCacheGroup& group) {
    return is_state(group) && group.mamba_mode == MambaMode::kAlign && group.block_tokens >= shortest;
  });
  return has_long_states && std::ranges::all_of(spec.groups, [&](const KvCacheGroup& group) {
           return is_as_fine_as_hashes(spec, group, hash_block);
         });
}

std::int64_t boundary_unit(const GeometrySpec& spec) {
  return ends_inside_blocks(spec) ? hash_block_of(spec) : scheduler_block_of(spec);
}

bool can_hit_on_device(const GeometrySpec& spec) {
  return std::ranges::none_of(spec.groups, [](const KvCacheGroup& group) {
    const bool is_lost = !group.cacheable || (group.kind == GroupKind::kMamba && group.mamba_mode == MambaMode::kNone);
    return is_lost && group.kind != GroupKind::kScratch;
  });
}

bool can_hit_on_host(const GeometrySpec& spec) {
  const bool all_leave = std::ranges::all_of(
      spec.groups, [](const KvCacheGroup& group) { return group.transferable || !takes_part(group); });
  return all_leave && can_hit_on_device(spec) && std::ranges::any_of(spec.groups, takes_part);
}

std::int64_t largest_boundary(const GeometrySpec& spec, std::int64_t limit_tokens, std::int64_t seen_tokens) {
  const std::int64_t unit = boundary_unit(spec);
  return std::max<std::int64_t>(0, std::min(limit_tokens, seen_tokens - draft_tokens(spec))) / unit * unit;
}

ExpectedHits expected_hits(const GeometrySpec& spec, std::int64_t prompt_tokens) {
  const std::int64_t boundary = largest_boundary(spec, prompt_tokens - 1, seen_tokens(spec, prompt_tokens));
  return {can_hit_on_device(spec) ? boundary : 0, can_hit_on_host(spec) ? boundary : 0};
}

std::int64_t least_findable_tokens(const GeometrySpec& spec, std::int64_t prompt_tokens) {
  return std::max<std::int64_t>(0, prompt_tokens - boundary_unit(spec) - draft_tokens(spec));
}

std::int64_t longest_prompt_without_hit(const GeometrySpec& spec) {
  const std::int64_t seen = boundary_unit(spec) + draft_tokens(spec);  // what the first boundary needs
  return std::max(boundary_unit(spec), seen_tokens(spec, seen) < seen ? seen : seen - 1);
}

}  // namespace hostkv::bench
