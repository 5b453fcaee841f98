#include "connector/prefix_search.h"

#include <algorithm>
#include <array>
#include <optional>

#include "connector/coarse_geometry.h"

namespace hostkv {
namespace {

constexpr std::int64_t kNothingMissing = -1;
constexpr std::int64_t kCannotAnswer = -2;
constexpr std::size_t kPrefetchDistance = 16;

bool is_full(GroupKind kind) {
  return kind == GroupKind::kFullAttention || kind == GroupKind::kMla;
}

}  // namespace

PrefixSearch::PrefixSearch(const Geometry& geometry, const OffloadCache& cache, std::uint64_t namespace_fingerprint)
    : geometry_(geometry),
      cache_(cache),
      namespace_fingerprint_(namespace_fingerprint),
      can_search_(host_can_serve(geometry)) {
  for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
    const GroupIndex group{g};
    if (geometry.offloadable(group)) {
      (is_full(geometry.group(group).kind) ? full_groups_ : other_groups_).push_back(group);
    }
  }
  full_present_.resize(full_groups_.size());
}

std::int64_t PrefixSearch::longest_boundary(const HashChain& hashes, std::int64_t num_tokens,
                                            std::int64_t num_local_tokens) {
  const std::int64_t alignment = geometry_.hit_alignment_tokens();
  const std::int64_t limit = std::min(num_tokens - 1, hashes.hashed_tokens());
  std::int64_t boundary = limit / alignment * alignment;
  if (!can_search_ || boundary <= num_local_tokens) {
    return num_local_tokens;
  }
  for (std::size_t k = 0; k < full_groups_.size(); ++k) {
    const std::int64_t span = geometry_.span_tokens(full_groups_[k]);
    const std::int64_t first = num_local_tokens / span;
    full_present_[k] = first_missing_block(hashes, full_groups_[k], first, hashes.hashed_tokens() / span);
    boundary = std::min(boundary, full_present_[k] * span / alignment * alignment);
  }
  while (boundary > num_local_tokens) {
    std::int64_t next = boundary;
    for (std::size_t k = 0; k < full_groups_.size() && next == boundary; ++k) {
      const std::optional<LookupNeed> need = geometry_.lookup_need(full_groups_[k], boundary);
      if (!need || need->blocks.end_block > full_present_[k]) {
        next = boundary - alignment;
      }
    }
    for (std::size_t k = 0; k < other_groups_.size() && next == boundary; ++k) {
      const std::int64_t missing = highest_missing_block(hashes, other_groups_[k], boundary, num_local_tokens);
      if (missing != kNothingMissing) {
        next = next_candidate(other_groups_[k], boundary, missing);
      }
    }
    if (next == boundary) {
      return boundary;
    }
    boundary = next;
  }
  return num_local_tokens;
}

void PrefixSearch::append_needed(const HashChain& hashes, std::int64_t num_local_tokens, std::int64_t boundary_tokens,
                                 std::vector<PromisedBlock>& blocks) const {
  for (std::uint32_t g = 0; g < geometry_.num_groups(); ++g) {
    const GroupIndex group{g};
    if (!geometry_.offloadable(group)) {
      continue;
    }
    const std::int64_t span = geometry_.span_tokens(group);
    const BlockIndexRange needed = geometry_.needs(group, boundary_tokens);
    for (std::int64_t i = std::max(needed.first_block, num_local_tokens / span); i < needed.end_block; ++i) {
      blocks.push_back(PromisedBlock{group, i, find_ready(hashes, group, (i + 1) * span)});
    }
  }
}

EntryId PrefixSearch::find_ready(const HashChain& hashes, GroupIndex group, std::int64_t boundary_tokens) const {
  if (boundary_tokens > hashes.hashed_tokens()) {
    return kNoEntry;
  }
  const OffloadKey key = make_offload_key(hashes.at_boundary(boundary_tokens), group, namespace_fingerprint_);
  const EntryId id = cache_.find(key, hash_of(key));
  return id != kNoEntry && cache_.ready(id) ? id : kNoEntry;
}

// The keys of a chain are known before the first probe: a ring of them is hashed ahead and their cache lines are on the
// way.
std::int64_t PrefixSearch::first_missing_block(const HashChain& hashes, GroupIndex group, std::int64_t first_block,
                                               std::int64_t end_block) {
  struct Ahead {
    OffloadKey key;
    std::uint64_t hash = 0;
  };
  std::array<Ahead, kPrefetchDistance> ring;
  const std::int64_t span = geometry_.span_tokens(group);
  std::int64_t fetched = first_block;
  for (std::int64_t i = first_block; i < end_block; ++i) {
    // A short look-ahead at first: most misses are at the first block.
    const std::int64_t distance = std::min<std::int64_t>(i - first_block + 1, kPrefetchDistance);
    for (; fetched < std::min(end_block, i + distance); ++fetched) {
      Ahead& ahead = ring[static_cast<std::size_t>(fetched) % kPrefetchDistance];
      ahead.key = make_offload_key(hashes.at_boundary((fetched + 1) * span), group, namespace_fingerprint_);
      ahead.hash = hash_of(ahead.key);
      cache_.prefetch(ahead.hash);
    }
    const Ahead& probe = ring[static_cast<std::size_t>(i) % kPrefetchDistance];
    const EntryId id = cache_.find(probe.key, probe.hash);
    if (id == kNoEntry || !cache_.ready(id)) {
      return i;
    }
  }
  return std::max(first_block, end_block);
}

std::int64_t PrefixSearch::highest_missing_block(const HashChain& hashes, GroupIndex group,
                                                 std::int64_t boundary_tokens, std::int64_t num_local_tokens) const {
  const std::optional<LookupNeed> need = geometry_.lookup_need(group, boundary_tokens);
  if (!need) {
    return kCannotAnswer;
  }
  const std::int64_t span = geometry_.span_tokens(group);
  // A load also fills the blocks that the engine retains behind a window, although no lookup on the device asks for
  // them.
  const std::int64_t first_block =
      std::min(need->blocks.first_block, geometry_.needs(group, boundary_tokens).first_block);
  for (std::int64_t i = need->blocks.end_block - 1; i >= first_block; --i) {
    const std::int64_t end_tokens = i + 1 == need->blocks.end_block ? need->tail_boundary_tokens : (i + 1) * span;
    if (end_tokens > num_local_tokens && find_ready(hashes, group, end_tokens) == kNoEntry) {
      return i;
    }
  }
  return kNothingMissing;
}

// A window or chunk that ends behind the missing block and begins no later than the one that was tried needs the block
// too.
std::int64_t PrefixSearch::next_candidate(GroupIndex group, std::int64_t boundary_tokens, std::int64_t missing) const {
  const std::int64_t alignment = geometry_.hit_alignment_tokens();
  const std::int64_t one_less = boundary_tokens - alignment;
  if (missing == kCannotAnswer || geometry_.group(group).kind == GroupKind::kMamba) {
    return one_less;
  }
  return std::min(one_less, missing * geometry_.span_tokens(group) / alignment * alignment);
}

}  // namespace hostkv
