#include "bench/engine/kv_cache_manager.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "bench/engine/group_rules.h"

namespace hostkv::bench {

KvCacheManager::KvCacheManager(const Geometry& geometry, const EngineConfig& config, BlockPool& pool)
    : geometry_(geometry),
      pool_(pool),
      rules_(geometry, config),
      num_speculative_(config.num_speculative_tokens),
      steps_ahead_(config.steps_ahead()),
      exports_states_(config.prefill_checkpoints),
      caches_blocks_(geometry.spec().prefix_caching && has_findable_prefixes(geometry)) {}

void KvCacheManager::begin_pass() {
  states_of_this_pass_.clear();
  blocks_of_this_pass_.clear();
  copies_.clear();
  hand_offs_.clear();
}

std::int64_t KvCacheManager::table_blocks(GroupIndex g, std::int64_t end_tokens) const {
  if (has_one_block(geometry_.group(g))) return end_tokens > 0 ? 1 : 0;
  return cdiv(end_tokens, geometry_.span_tokens(g));
}

std::int64_t KvCacheManager::new_blocks(const Request& request, GroupIndex g, const ChunkEnd& end) const {
  if (is_mamba(geometry_.group(g), MambaMode::kAlign)) {
    const bool has_table = !request.tables.empty() && !request.running_column.empty();
    return has_table ? new_states(request.running_column[g.value()], std::ssize(request.tables[g.value()]), g, end)
                     : new_states(-1, 0, g, end);
  }
  const std::int64_t num_in_table = request.tables.empty() ? 0 : std::ssize(request.tables[g.value()]);
  return std::max<std::int64_t>(0, table_blocks(g, end.tokens + end.num_drafts) - num_in_table);
}

// The running state's block, those of the drafts behind it as far as they do not move along, an exported one.
std::int64_t KvCacheManager::new_states(std::int64_t running_column, std::int64_t num_in_table, GroupIndex g,
                                        const ChunkEnd& end) const {
  if (end.tokens == 0) return 0;
  const std::int64_t column = table_blocks(g, end.tokens) - 1;
  const std::int64_t num_drafts = num_in_table - 1 - running_column;
  return (column > running_column ? 1 : 0) + num_speculative_ - (running_column < 0 ? 0 : num_drafts) +
         (end.checkpoint_tokens > 0 ? 1 : 0);
}

void KvCacheManager::append_blocks(Request& request, GroupIndex g, const ChunkEnd& end) {
  if (is_mamba(geometry_.group(g), MambaMode::kAlign)) {
    append_states(request, g, end);
    return;
  }
  pool_.allocate(new_blocks(request, g, end), request.tables[g.value()]);
}

// Between the state before the chunk and the one behind it no state is kept. The drafts' blocks stay at the end.
void KvCacheManager::append_states(Request& request, GroupIndex g, const ChunkEnd& end) {
  std::vector<BlockId>& table = request.tables[g.value()];
  std::int64_t& running = request.running_column[g.value()];
  const std::int64_t column = table_blocks(g, end.tokens) - 1;
  const auto drafts_begin = table.begin() + std::min<std::int64_t>(running + 1, std::ssize(table));
  std::vector<BlockId> drafts(drafts_begin, table.end());
  table.erase(drafts_begin, table.end());
  if (column > running) {
    table.resize(static_cast<std::size_t>(column), kNullBlock);
    pool_.allocate(1, table);
    running = column;
  }
  pool_.allocate(num_speculative_ - std::ssize(drafts), drafts);
  table.insert(table.end(), drafts.begin(), drafts.end());
  if (end.checkpoint_tokens > 0) {
    std::vector<BlockId> exported;
    pool_.allocate(1, exported);
    table[static_cast<std::size_t>(column - 1)] = exported.front();
  }
}

bool KvCacheManager::can_export(const Request& request, std::int64_t begin_tokens, std::int64_t end_tokens) const {
  const std::int64_t tail = rules_.tail_boundary(request);
  if (!exports_states_ || !geometry_.fine_hits() || tail <= begin_tokens || tail >= end_tokens) return false;
  for (std::uint32_t i = 0; i < geometry_.num_groups(); ++i) {
    const GroupIndex g{i};
    if (!is_mamba(geometry_.group(g), MambaMode::kAlign)) continue;
    const std::int64_t column = table_blocks(g, end_tokens) - 2;
    const std::int64_t begin_column = begin_tokens == 0 ? -1 : (begin_tokens - 1) / geometry_.span_tokens(g);
    if (column <= begin_column) return false;
  }
  return true;
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
  if (is_mamba(geometry_.group(g), MambaMode::kAlign)) {
    request.state_column[g.value()] = request.running_column[g.value()] = std::ssize(table) - 1;
  }
}

// The block that a hit ends inside of is shared, and the request will write behind the boundary.
bool KvCacheManager::must_copy(GroupIndex g, std::int64_t boundary_tokens) const {
  const bool is_written_again =
      is_full_attention(geometry_.group(g)) || is_mamba(geometry_.group(g), MambaMode::kAlign);
  return is_written_again && boundary_tokens % geometry_.span_tokens(g) != 0;
}

void KvCacheManager::copy_last_block(Request& request, GroupIndex g, std::int64_t boundary_tokens) {
  std::vector<BlockId>& table = request.tables[g.value()];
  const auto index = static_cast<std::size_t>((boundary_tokens - 1) / geometry_.span_tokens(g));
  const BlockId shared = table[index];
  std::vector<BlockId> own;
  pool_.allocate(1, own);
  table[index] = own.front();
  copies_.push_back(BlockCopy{g, shared, own.front()});
  pool_.free(std::span(&shared, 1));  // it keeps its keys, and its bytes until the copies of this pass have run
  request.num_cached_blocks[g.value()] = std::min(request.num_cached_blocks[g.value()], std::int64_t(index));
}

bool KvCacheManager::admit(Request& request, const PrefixHit& hit, std::int64_t num_external_tokens,
                           const ChunkEnd& end, const BlockReserve& reserve, std::vector<FailedBlock>* load_targets) {
  const std::int64_t boundary = hit.boundary_tokens + num_external_tokens;
  const bool computes = num_external_tokens == 0;
  std::vector<BlockId> reused;
  std::int64_t num_new = 0;
  std::int64_t num_later = reserve.for_others;
  for (std::uint32_t i = 0; i < geometry_.num_groups(); ++i) {
    const GroupIndex g{i};
    const bool is_align = is_mamba(geometry_.group(g), MambaMode::kAlign);
    const std::int64_t in_table = has_one_block(geometry_.group(g)) ? 0 : table_blocks(g, boundary);
    std::int64_t num_of_group = 0;
    if (is_align) {
      num_of_group = computes ? new_states(in_table - 1, in_table, g, end) : 0;
    } else {
      num_of_group = std::max<std::int64_t>(0, table_blocks(g, end.tokens + end.num_drafts) - in_table);
    }
    if (computes && boundary > 0 && must_copy(g, boundary)) ++num_of_group;
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
  request.late_hand_offs.clear();
  request.state_column.assign(geometry_.num_groups(), -1);
  request.running_column.assign(geometry_.num_groups(), -1);
  for (std::uint32_t i = 0; i < geometry_.num_groups(); ++i) {
    build_table(request, GroupIndex{i}, hit.groups[i], boundary, load_targets);
  }
  if (!computes) {
    for (std::uint32_t i = 0; i < geometry_.num_groups(); ++i) {
      if (has_one_block(geometry_.group(GroupIndex{i}))) append_blocks(request, GroupIndex{i}, end);
    }
    return true;
  }
  for (std::uint32_t i = 0; i < geometry_.num_groups(); ++i) append_blocks(request, GroupIndex{i}, end);
  for (std::uint32_t i = 0; boundary > 0 && i < geometry_.num_groups(); ++i) {
    if (must_copy(GroupIndex{i}, boundary)) copy_last_block(request, GroupIndex{i}, boundary);
  }
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
    released.clear();
    for (std::int64_t b = std::min(first_in_reach(request, g), std::ssize(table)) - 1; b >= 0; --b) {
      BlockId& block = table[static_cast<std::size_t>(b)];
      if (block == kNullBlock && !is_mamba(group, MambaMode::kAlign)) break;
      if (block == kNullBlock) continue;
      released.push_back(block);
      block = kNullBlock;
    }
    pool_.free(released);
  }
}

bool KvCacheManager::grow(Request& request, const ChunkEnd& end) {
  pool_.free(std::exchange(request.copied_states, {}));
  if (request.num_computed_tokens > 0) release_out_of_reach(request);
  std::int64_t num_new = std::ssize(request.partial_states);
  for (std::uint32_t i = 0; i < geometry_.num_groups(); ++i) num_new += new_blocks(request, GroupIndex{i}, end);
  if (num_new > pool_.num_free()) return false;
  copy_partial_states(request);
  for (std::uint32_t i = 0; i < geometry_.num_groups(); ++i) append_blocks(request, GroupIndex{i}, end);
  return true;
}

// The next forward would write over a state that has a key: a copy takes over the key, and is handed off.
void KvCacheManager::copy_partial_states(Request& request) {
  for (const PartialState& state : std::exchange(request.partial_states, {})) {
    if (!pool_.carries(state.block, key_at(request, state.group, state.boundary_tokens))) continue;
    pool_.allocate(1, request.copied_states);
    const BlockId copy = request.copied_states.back();
    pool_.move_keys(state.block, copy);
    copies_.push_back(BlockCopy{state.group, state.block, copy});
    hand_offs_.push_back(BoundaryHandOff{request.id, state.group, copy, state.boundary_tokens});
    states_of_this_pass_.insert(copy);
  }
}

CacheKey KvCacheManager::key_at(const Request& request, GroupIndex g, std::int64_t boundary_tokens) const {
  return {request.hashes[static_cast<std::size_t>(boundary_tokens / geometry_.hash_block_tokens() - 1)], g};
}

void KvCacheManager::cache_group(Request& request, GroupIndex g, std::int64_t end_tokens) {
  const std::int64_t span = geometry_.span_tokens(g);
  const std::int64_t end_block = end_tokens / span;
  const bool is_window = geometry_.group(g).kind == GroupKind::kSlidingWindow;
  for (std::int64_t i = request.num_cached_blocks[g.value()]; i < end_block; ++i) {
    const BlockId block = request.tables[g.value()][static_cast<std::size_t>(i)];
    const std::int64_t end = (i + 1) * span;
    // Dense states may lie closer than hashes; no lookup asks for one between two.
    if (block == kNullBlock || end % geometry_.hash_block_tokens() != 0) continue;
    if (is_window && !rules_.keeps_window_block(request, g, i)) continue;
    pool_.insert(key_at(request, g, end), block);
    blocks_of_this_pass_.insert(block);
  }
  request.num_cached_blocks[g.value()] = std::max(request.num_cached_blocks[g.value()], end_block);
}

void KvCacheManager::cache_state(Request& request, GroupIndex g, std::int64_t boundary_tokens, std::int64_t column) {
  const BlockId block = request.tables[g.value()][static_cast<std::size_t>(column)];
  const bool is_running = column == request.running_column[g.value()];
  const bool is_whole = boundary_tokens % geometry_.span_tokens(g) == 0 || !is_running;
  pool_.insert(key_at(request, g, boundary_tokens), block, is_whole);
  states_of_this_pass_.insert(block);
  if (std::ranges::find(request.open_states, boundary_tokens) == request.open_states.end()) {
    request.open_states.push_back(boundary_tokens);
  }
  if (is_whole) {
    hand_offs_.push_back(BoundaryHandOff{request.id, g, block, boundary_tokens});
  } else {
    request.partial_states.push_back(PartialState{g, block, boundary_tokens});
  }
}

// A state is worth nothing without the attention up to it, of a draft group up to the unit behind it.
void KvCacheManager::cache_inner_keys(Request& request, std::int64_t end_tokens) {
  std::erase_if(request.open_states, [&](std::int64_t boundary) {
    bool is_done = true;
    for (std::uint32_t i = 0; i < geometry_.num_groups(); ++i) {
      const GroupIndex g{i};
      if (!is_full_attention(geometry_.group(g)) || !is_cached_group(geometry_, g)) continue;
      const std::int64_t span = geometry_.span_tokens(g);
      const std::int64_t unit = geometry_.drops_unit(g) ? std::min(geometry_.hit_alignment_tokens(), span) : 0;
      const std::int64_t tail = boundary + unit;
      is_done = is_done && tail <= end_tokens;
      if (tail > end_tokens || tail % span == 0) continue;
      const BlockId block = request.tables[i][static_cast<std::size_t>(tail / span)];
      pool_.insert(key_at(request, g, tail), block, false);
      blocks_of_this_pass_.insert(block);
    }
    return is_done;
  });
}

void KvCacheManager::hand_off_late(Request& request) {
  for (const BoundaryHandOff& late : std::exchange(request.late_hand_offs, {})) hand_offs_.push_back(late);
}

void KvCacheManager::cache_blocks(Request& request, std::int64_t end_tokens, std::int64_t checkpoint_tokens) {
  hand_off_late(request);
  if (!caches_blocks_) return;
  for (std::uint32_t i = 0; i < geometry_.num_groups(); ++i) {
    const GroupIndex g{i};
    if (!is_cached_group(geometry_, g)) continue;
    if (!is_mamba(geometry_.group(g), MambaMode::kAlign)) {
      cache_group(request, g, end_tokens);
      continue;
    }
    const std::int64_t running = request.running_column[i];
    if (checkpoint_tokens > 0) cache_state(request, g, checkpoint_tokens, running - 1);
    if (rules_.keeps_state(request, g, end_tokens)) cache_state(request, g, end_tokens, running);
  }
  if (geometry_.fine_hits()) cache_inner_keys(request, end_tokens);
}

void KvCacheManager::cache_settled(Request& request, std::span<const std::int64_t> running_column,
                                   std::int64_t begin_tokens, std::int64_t end_tokens) {
  if (!caches_blocks_ || begin_tokens >= end_tokens) return;
  for (std::uint32_t i = 0; i < geometry_.num_groups(); ++i) {
    const GroupIndex g{i};
    if (!is_cached_group(geometry_, g)) continue;
    if (is_mamba(geometry_.group(g), MambaMode::kAlign)) {
      cache_passed_states(request, g, running_column[i], begin_tokens, end_tokens);
    } else {
      cache_group(request, g, end_tokens);
    }
  }
  if (geometry_.fine_hits()) cache_inner_keys(request, end_tokens);
}

// The forward has left the state of each block boundary that it passed in the boundary's own column, where there is a
// block. What lies behind its running one are the drafts' blocks.
void KvCacheManager::cache_passed_states(Request& request, GroupIndex g, std::int64_t running_column,
                                         std::int64_t begin_tokens, std::int64_t end_tokens) {
  const std::int64_t span = geometry_.span_tokens(g);
  for (std::int64_t column = begin_tokens / span; column <= running_column; ++column) {
    const std::int64_t boundary = (column + 1) * span;
    const BlockId block = request.tables[g.value()][static_cast<std::size_t>(column)];
    if (boundary > end_tokens) return;
    if (block == kNullBlock || !rules_.keeps_state(request, g, boundary)) continue;
    pool_.insert(key_at(request, g, boundary), block);
    if (std::ranges::find(request.open_states, boundary) == request.open_states.end()) {
      request.open_states.push_back(boundary);
    }
    request.late_hand_offs.push_back(BoundaryHandOff{request.id, g, block, boundary});
  }
}

void KvCacheManager::free(Request& request) {
  for (const std::vector<BlockId>& blocks : take_blocks(request)) pool_.free(blocks);
}

std::vector<std::vector<BlockId>> KvCacheManager::take_blocks(Request& request) {
  std::vector<std::vector<BlockId>> taken{std::exchange(request.copied_states, {})};
  request.partial_states.clear();
  request.open_states.clear();
  request.late_hand_offs.clear();
  for (std::vector<BlockId>& table : request.tables) {
    std::reverse(table.begin(), table.end());
    taken.push_back(std::move(table));
  }
  request.tables.clear();
  return taken;
}

// Of the entries before this one no forward reads or writes any: those in flight began behind the settled tokens. A
// state's own column is written when its boundary is passed, which drafts that came to nothing may put off.
std::int64_t KvCacheManager::first_in_reach(const Request& request, GroupIndex g) const {
  const std::int64_t span = geometry_.span_tokens(g);
  if (!is_mamba(geometry_.group(g), MambaMode::kAlign)) {
    return geometry_.skipped_tokens(g, request.num_computed_tokens) / span;
  }
  return std::min(request.state_column[g.value()], cdiv(request.num_computed_tokens, span) - 1);
}

// Blocks that the next chunk still reads; the others come back before it takes new ones.
std::int64_t KvCacheManager::blocks_in_reach(const Request& request, GroupIndex g) const {
  const std::vector<BlockId>& table = request.tables[g.value()];
  const KvCacheGroup& group = geometry_.group(g);
  if (has_one_block(group) || is_full_attention(group)) return std::ssize(table);
  const std::int64_t skipped = std::max<std::int64_t>(0, first_in_reach(request, g));
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
  // Nothing is released for the chunks in flight before their results are in.
  const std::int64_t unsettled_tokens = (steps_ahead_ + 1) * (chunk_tokens + num_speculative_);
  if (group.kind == GroupKind::kSlidingWindow) {
    return std::min(most, cdiv(group.window_tokens + group.extra_retained_tokens + unsettled_tokens, span) + 1);
  }
  if (group.kind == GroupKind::kChunkedLocal) {
    return std::min(most, cdiv(group.chunk_tokens + unsettled_tokens, span) + 1);
  }
  if (!is_mamba(group, MambaMode::kAlign)) return is_full_attention(group) && geometry_.fine_hits() ? most + 1 : most;
  // The state before, the running one, one that was copied away, one that is exported, the drafts'.
  const std::int64_t extra = (geometry_.fine_hits() ? 1 : 0) + (exports_states_ ? 1 : 0) + num_speculative_;
  return most == 0 ? 0 : std::min(most, 2 + unsettled_columns(span)) + extra;
}

// A running column of each step in flight, and where drafts may come to nothing those of the boundaries between.
std::int64_t KvCacheManager::unsettled_columns(std::int64_t span_tokens) const {
  if (steps_ahead_ == 0 || num_speculative_ == 0) return steps_ahead_;
  return steps_ahead_ + cdiv((steps_ahead_ + 1) * (num_speculative_ + 1), span_tokens);
}

std::int64_t KvCacheManager::most_blocks(std::int64_t total_tokens, std::int64_t chunk_tokens) const {
  std::int64_t sum = 0;
  for (std::uint32_t i = 0; i < geometry_.num_groups(); ++i) {
    sum += most_blocks(GroupIndex{i}, total_tokens, chunk_tokens);
  }
  return sum;
}

bool KvCacheManager::waits_for_forward(const PrefixHit& hit) const {
  for (std::uint32_t i = 0; i < geometry_.num_groups(); ++i) {
    const GroupIndex g{i};
    const std::vector<BlockId>& blocks = hit.groups[i].blocks;
    if (geometry_.group(g).kind == GroupKind::kMamba) {
      if (std::ranges::any_of(blocks, [&](BlockId block) { return states_of_this_pass_.contains(block); })) return true;
    } else if (!blocks.empty() && must_copy(g, hit.boundary_tokens) && blocks_of_this_pass_.contains(blocks.back())) {
      return true;
    }
  }
  return false;
}

}  // namespace hostkv::bench
