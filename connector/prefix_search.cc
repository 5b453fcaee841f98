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
      if (is_full(geometry.group(group).kind)) {
        full_runs_.push_back(FullRun{.group = group, .first_block = 0, .entries = {}});
      } else {
        other_groups_.push_back(group);
      }
    }
  }
}

std::int64_t PrefixSearch::longest_boundary(const HashChain& hashes, std::int64_t num_tokens,
                                            std::int64_t num_local_tokens) {
  const std::int64_t alignment = geometry_.hit_alignment_tokens();
  const std::int64_t limit = std::min(num_tokens - 1, hashes.hashed_tokens());
  std::int64_t boundary = limit / alignment * alignment;
  if (!can_search_ || boundary <= num_local_tokens) {
    return num_local_tokens;
  }
  // How far the extra unit of a draft group may reach: as in the engine, one group never looks behind the last token
  // but one, several look at every whole hash block.
  const std::int64_t reach = geometry_.num_groups() == 1 ? limit : hashes.hashed_tokens();
  for (FullRun& run : full_runs_) {
    const std::int64_t span = geometry_.span_tokens(run.group);
    find_run(hashes, num_local_tokens / span, reach / span, run);
    boundary = std::min(boundary, run.end_block() * span / alignment * alignment);
  }
  while (boundary > num_local_tokens) {
    std::int64_t next = boundary;
    for (std::size_t k = 0; k < full_runs_.size() && next == boundary; ++k) {
      const std::optional<LookupNeed> need = geometry_.lookup_need(full_runs_[k].group, boundary);
      if (!need || need->blocks.end_block > full_runs_[k].end_block()) {
        next = boundary - alignment;
      }
    }
    for (std::size_t k = 0; k < other_groups_.size() && next == boundary; ++k) {
      const std::int64_t missing = highest_missing_block({hashes, num_local_tokens, reach}, other_groups_[k], boundary);
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
    const auto run = std::ranges::find(full_runs_, group, &FullRun::group);
    for (std::int64_t i = std::max(needed.first_block, num_local_tokens / span); i < needed.end_block; ++i) {
      const EntryId entry = run == full_runs_.end() ? find_ready(hashes, group, (i + 1) * span)
                                                    : run->entries[static_cast<std::size_t>(i - run->first_block)];
      blocks.push_back(PromisedBlock{group, i, entry});
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
void PrefixSearch::find_run(const HashChain& hashes, std::int64_t first_block, std::int64_t end_block,
                            FullRun& run) const {
  struct Ahead {
    OffloadKey key;
    std::uint64_t hash = 0;
  };
  std::array<Ahead, kPrefetchDistance> ring;
  const std::int64_t span = geometry_.span_tokens(run.group);
  run.first_block = first_block;
  run.entries.clear();
  std::int64_t fetched = first_block;
  for (std::int64_t i = first_block; i < end_block; ++i) {
    // A short look-ahead at first: most misses are at the first block.
    const std::int64_t distance = std::min<std::int64_t>(i - first_block + 1, kPrefetchDistance);
    for (; fetched < std::min(end_block, i + distance); ++fetched) {
      Ahead& ahead = ring[static_cast<std::size_t>(fetched) % kPrefetchDistance];
      ahead.key = make_offload_key(hashes.at_boundary((fetched + 1) * span), run.group, namespace_fingerprint_);
      ahead.hash = hash_of(ahead.key);
      cache_.prefetch(ahead.hash);
    }
    const Ahead& probe = ring[static_cast<std::size_t>(i) % kPrefetchDistance];
    const EntryId id = cache_.find(probe.key, probe.hash);
    if (id == kNoEntry || !cache_.ready(id)) {
      return;
    }
    run.entries.push_back(id);
  }
}

std::int64_t PrefixSearch::highest_missing_block(const Query& query, GroupIndex group,
                                                 std::int64_t boundary_tokens) const {
  const std::optional<LookupNeed> need = geometry_.lookup_need(group, boundary_tokens);
  if (!need || need->tail_boundary_tokens > query.reach_tokens) {
    return kCannotAnswer;
  }
  const std::int64_t span = geometry_.span_tokens(group);
  // A load also fills the blocks that the engine retains behind a window, although no lookup on the device asks for
  // them.
  const std::int64_t first_block =
      std::min(need->blocks.first_block, geometry_.needs(group, boundary_tokens).first_block);
  for (std::int64_t i = need->blocks.end_block - 1; i >= first_block; --i) {
    const std::int64_t end_tokens = i + 1 == need->blocks.end_block ? need->tail_boundary_tokens : (i + 1) * span;
    if (end_tokens > query.num_local_tokens && find_ready(query.hashes, group, end_tokens) == kNoEntry) {
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
