#include "bench/engine/kv_cache_manager.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "bench/engine/group_rules.h"

namespace hostkv::bench {

KvCacheManager::KvCacheManager(const Geometry& geometry, BlockPool& pool)
    : geometry_(geometry),
      pool_(pool),
      caches_blocks_(geometry.spec().prefix_caching && has_findable_prefixes(geometry)) {}

std::int64_t KvCacheManager::table_blocks(GroupIndex g, std::int64_t end_tokens) const {
  if (has_one_block(geometry_.group(g))) return end_tokens > 0 ? 1 : 0;
  return cdiv(end_tokens, geometry_.span_tokens(g));
}

std::int64_t KvCacheManager::new_blocks(GroupIndex g, std::int64_t num_in_table, std::int64_t end_tokens) const {
  const std::int64_t missing = table_blocks(g, end_tokens) - num_in_table;
  if (missing <= 0) return 0;
  return is_mamba(geometry_.group(g), MambaMode::kAlign) ? 1 : missing;
}

void KvCacheManager::append_blocks(Request& request, GroupIndex g, std::int64_t end_tokens) {
  std::vector<BlockId>& table = request.tables[g.value()];
  const std::int64_t count = new_blocks(g, std::ssize(table), end_tokens);
  if (count == 0) return;
  // Only align tables have a gap: no state is kept between the one before the chunk and the one behind it.
  table.resize(static_cast<std::size_t>(table_blocks(g, end_tokens) - count), kNullBlock);
  pool_.allocate(count, table);
}

// Blocks that must be real to go on behind a boundary. A ring starts empty there.
BlockIndexRange KvCacheManager::kept_range(GroupIndex g, std::int64_t boundary_tokens) const {
  if (boundary_tokens == 0 || has_one_block(geometry_.group(g))) return {};
  return geometry_.needs(g, boundary_tokens);
}

void KvCacheManager::build_table(Request& request, GroupIndex g, const GroupHit& hit, std::int64_t boundary_tokens,
                                 std::vector<FailedBlock>* load_targets) {
  std::vector<BlockId>& table = request.tables[g.value()];
  const BlockIndexRange kept = kept_range(g, boundary_tokens);
  const std::int64_t hit_end = hit.first_block + std::ssize(hit.blocks);
  if (!has_one_block(geometry_.group(g))) {
    table.assign(static_cast<std::size_t>(kept.empty() ? table_blocks(g, boundary_tokens) : kept.first_block),
                 kNullBlock);
  }
  for (std::int64_t i = kept.first_block; i < kept.end_block; ++i) {
    if (i >= hit.first_block && i < hit_end) {
      table.push_back(hit.blocks[static_cast<std::size_t>(i - hit.first_block)]);
      continue;
    }
    pool_.allocate(1, table);
    if (load_targets != nullptr) load_targets->push_back(FailedBlock{g, table.back()});
  }
  request.num_cached_blocks[g.value()] = has_one_block(geometry_.group(g)) ? 0 : hit_end;
}

bool KvCacheManager::admit(Request& request, const PrefixHit& hit, std::int64_t num_external_tokens,
                           std::int64_t end_tokens, const BlockReserve& reserve,
                           std::vector<FailedBlock>* load_targets) {
  const std::int64_t boundary = hit.boundary_tokens + num_external_tokens;
  std::vector<BlockId> reused;
  std::int64_t num_new = 0;
  std::int64_t num_later = reserve.for_others;
  for (std::uint32_t i = 0; i < geometry_.num_groups(); ++i) {
    const GroupIndex g{i};
    std::int64_t num_of_group =
        new_blocks(g, has_one_block(geometry_.group(g)) ? 0 : table_blocks(g, boundary), end_tokens);
    num_new += num_of_group;
    const BlockIndexRange kept = kept_range(g, boundary);
    const GroupHit& group_hit = hit.groups[i];
    for (std::int64_t b = kept.first_block; b < kept.end_block; ++b) {
      const std::int64_t in_hit = b - group_hit.first_block;
      const bool is_hit = in_hit >= 0 && in_hit < std::ssize(group_hit.blocks);
      if (is_hit) reused.push_back(group_hit.blocks[static_cast<std::size_t>(in_hit)]);
      if (!is_hit) ++num_new;
    }
    num_of_group += std::max<std::int64_t>(0, kept.end_block - kept.first_block);
    const std::int64_t most = most_blocks(g, reserve.own_end_tokens, reserve.chunk_tokens);
    num_later += std::max<std::int64_t>(0, most - num_of_group);
  }
  const auto num_idle_hits = std::count_if(
      reused.begin(), reused.end(), [this](BlockId block) { return block != kNullBlock && pool_.is_free(block); });
  if (num_new + num_idle_hits + num_later > pool_.num_free()) return false;

  // All hit blocks are taken before any new one, so that no group's new block evicts another group's hit.
  pool_.touch(reused);
  request.tables.assign(geometry_.num_groups(), {});
  request.num_cached_blocks.assign(geometry_.num_groups(), 0);
  for (std::uint32_t i = 0; i < geometry_.num_groups(); ++i) {
    build_table(request, GroupIndex{i}, hit.groups[i], boundary, load_targets);
  }
  for (std::uint32_t i = 0; i < geometry_.num_groups(); ++i) append_blocks(request, GroupIndex{i}, end_tokens);
  return true;
}

void KvCacheManager::release_out_of_reach(Request& request) {
  std::vector<BlockId> released;
  for (std::uint32_t i = 0; i < geometry_.num_groups(); ++i) {
    const GroupIndex g{i};
    const KvCacheGroup& group = geometry_.group(g);
    // A dense state table is append-only, like full attention.
    if (has_one_block(group) || is_full_attention(group) || is_mamba(group, MambaMode::kAll)) continue;
    std::vector<BlockId>& table = request.tables[i];
    const std::int64_t out_of_reach =
        geometry_.skipped_tokens(g, request.num_computed_tokens) / geometry_.span_tokens(g);
    released.clear();
    for (std::int64_t b = std::min(out_of_reach, std::ssize(table)) - 1; b >= 0; --b) {
      BlockId& block = table[static_cast<std::size_t>(b)];
      if (block == kNullBlock && !is_mamba(group, MambaMode::kAlign)) break;
      if (block == kNullBlock) continue;
      released.push_back(block);
      block = kNullBlock;
    }
    pool_.free(released);
  }
}

bool KvCacheManager::grow(Request& request, std::int64_t end_tokens) {
  if (request.num_computed_tokens > 0) release_out_of_reach(request);
  std::int64_t num_new = 0;
  for (std::uint32_t i = 0; i < geometry_.num_groups(); ++i) {
    num_new += new_blocks(GroupIndex{i}, std::ssize(request.tables[i]), end_tokens);
  }
  if (num_new > pool_.num_free()) return false;
  for (std::uint32_t i = 0; i < geometry_.num_groups(); ++i) append_blocks(request, GroupIndex{i}, end_tokens);
  return true;
}

void KvCacheManager::cache_group(Request& request, GroupIndex g, std::int64_t end_tokens) {
  const std::int64_t span = geometry_.span_tokens(g);
  const std::int64_t hash_tokens = geometry_.hash_block_tokens();
  const bool is_align = is_mamba(geometry_.group(g), MambaMode::kAlign);
  const std::int64_t end_block = end_tokens / span;
  std::int64_t first_block = request.num_cached_blocks[g.value()];
  // Of the states that a chunk passes, only the one at its end exists.
  if (is_align) first_block = end_tokens % span == 0 ? std::max(first_block, end_block - 1) : end_block;
  for (std::int64_t i = first_block; i < end_block; ++i) {
    const BlockId block = request.tables[g.value()][static_cast<std::size_t>(i)];
    const std::int64_t end = (i + 1) * span;
    // Dense states may lie closer than hashes; no lookup asks for one between two.
    if (block == kNullBlock || end % hash_tokens != 0) continue;
    pool_.insert(CacheKey{request.hashes[static_cast<std::size_t>(end / hash_tokens - 1)], g}, block);
    if (is_align) states_of_this_pass_.insert(block);
  }
  request.num_cached_blocks[g.value()] = std::max(request.num_cached_blocks[g.value()], end_block);
}

void KvCacheManager::cache_blocks(Request& request, std::int64_t end_tokens) {
  if (!caches_blocks_) return;
  for (std::uint32_t i = 0; i < geometry_.num_groups(); ++i) {
    if (is_cached_group(geometry_, GroupIndex{i})) cache_group(request, GroupIndex{i}, end_tokens);
  }
}

void KvCacheManager::free(Request& request) {
  for (std::vector<BlockId>& table : request.tables) {
    std::reverse(table.begin(), table.end());
    pool_.free(table);
    table.clear();
  }
  request.tables.clear();
}

// Blocks that the next chunk still reads; the others come back before it takes new ones.
std::int64_t KvCacheManager::blocks_in_reach(const Request& request, GroupIndex g) const {
  const std::vector<BlockId>& table = request.tables[g.value()];
  const KvCacheGroup& group = geometry_.group(g);
  if (has_one_block(group) || is_full_attention(group)) return std::ssize(table);
  const std::int64_t skipped = geometry_.skipped_tokens(g, request.num_computed_tokens) / geometry_.span_tokens(g);
  const auto first = table.begin() + std::min(skipped, std::ssize(table));
  return std::count_if(first, table.end(), [](BlockId block) { return block != kNullBlock; });
}

std::int64_t KvCacheManager::blocks_to_get(const Request& request, std::int64_t end_tokens,
                                           std::int64_t chunk_tokens) const {
  std::int64_t sum = 0;
  for (std::uint32_t i = 0; i < request.tables.size(); ++i) {
    const GroupIndex g{i};
    sum += std::max<std::int64_t>(0, most_blocks(g, end_tokens, chunk_tokens) - blocks_in_reach(request, g));
  }
  return sum;
}

std::int64_t KvCacheManager::most_blocks(GroupIndex g, std::int64_t total_tokens, std::int64_t chunk_tokens) const {
  const KvCacheGroup& group = geometry_.group(g);
  const std::int64_t span = geometry_.span_tokens(g);
  const std::int64_t most = table_blocks(g, total_tokens);
  if (group.kind == GroupKind::kSlidingWindow) {
    return std::min(most, cdiv(group.window_tokens + group.extra_retained_tokens + chunk_tokens, span) + 1);
  }
  if (group.kind == GroupKind::kChunkedLocal) return std::min(most, cdiv(group.chunk_tokens + chunk_tokens, span) + 1);
  return is_mamba(group, MambaMode::kAlign) ? std::min<std::int64_t>(most, 2) : most;
}

std::int64_t KvCacheManager::most_blocks(std::int64_t total_tokens, std::int64_t chunk_tokens) const {
  std::int64_t sum = 0;
  for (std::uint32_t i = 0; i < geometry_.num_groups(); ++i) {
    sum += most_blocks(GroupIndex{i}, total_tokens, chunk_tokens);
  }
  return sum;
}

bool KvCacheManager::has_state_of_this_pass(const PrefixHit& hit) const {
  for (std::uint32_t i = 0; i < geometry_.num_groups(); ++i) {
    if (geometry_.group(GroupIndex{i}).kind != GroupKind::kMamba) continue;
    for (const BlockId block : hit.groups[i].blocks) {
      if (states_of_this_pass_.contains(block)) return true;
    }
  }
  return false;
}

}  // namespace hostkv::bench
