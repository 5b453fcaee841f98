#include "bench/engine/prefix_lookup.h"

#include <algorithm>
#include <optional>

#include "bench/engine/group_rules.h"

namespace hostkv::bench {
namespace {

class Search {
 public:
  Search(const Geometry& geometry, const BlockPool& pool, const Request& request)
      : geometry_(geometry), pool_(pool), request_(request), limit_tokens_(request.num_tokens() - 1) {
    // A draft group's extra unit: one group never looks behind the limit, several look at every whole hash block.
    const std::int64_t hashed = std::ssize(request.hashes) * geometry.hash_block_tokens();
    reach_tokens_ = geometry.num_groups() == 1 ? std::min(limit_tokens_, hashed) : hashed;
    measure_runs();
  }

  PrefixHit find() const {
    PrefixHit hit;
    hit.groups.resize(geometry_.num_groups());
    const std::int64_t step = geometry_.hit_alignment_tokens();
    std::int64_t boundary = limit_tokens_ / step * step;
    while (boundary > 0 && !is_served(boundary)) boundary -= step;
    hit.boundary_tokens = boundary;
    if (boundary > 0) collect(boundary, hit);
    hit.junction_tokens = junction_behind(boundary);
    return hit;
  }

 private:
  [[nodiscard]] std::optional<BlockId> probe(GroupIndex g, std::int64_t end_tokens) const {
    const auto index = static_cast<std::size_t>(end_tokens / geometry_.hash_block_tokens() - 1);
    if (index >= request_.hashes.size()) return std::nullopt;
    return pool_.find(CacheKey{request_.hashes[index], g});
  }

  // Full attention needs every block from the start: how many leading ones are there is asked once, and how far into
  // the next one a key reaches.
  void measure_runs() {
    runs_.assign(geometry_.num_groups(), 0);
    tails_.assign(geometry_.num_groups(), 0);
    for (std::uint32_t i = 0; i < geometry_.num_groups(); ++i) {
      const GroupIndex g{i};
      if (!is_full_attention(geometry_.group(g)) || !is_cached_group(geometry_, g)) continue;
      const std::int64_t span = geometry_.span_tokens(g);
      const std::int64_t hashed = std::ssize(request_.hashes) * geometry_.hash_block_tokens();
      const std::int64_t reach = geometry_.drops_unit(g) ? reach_tokens_ : hashed;
      while (runs_[i] < reach / span && probe(g, (runs_[i] + 1) * span)) ++runs_[i];
      tails_[i] = inner_tail(g, runs_[i] * span, reach);
    }
  }

  // The last key inside the block that begins at `begin`; `begin` where there is none.
  [[nodiscard]] std::int64_t inner_tail(GroupIndex g, std::int64_t begin, std::int64_t reach) const {
    const std::int64_t step = geometry_.hit_alignment_tokens();
    const std::int64_t span = geometry_.span_tokens(g);
    if (step >= span) return begin;
    std::int64_t tail = std::min(begin + span - step, reach / step * step);
    while (tail > begin && !probe(g, tail)) tail -= step;
    return std::max(tail, begin);
  }

  [[nodiscard]] bool is_served(std::int64_t boundary) const {
    for (std::uint32_t i = 0; i < geometry_.num_groups(); ++i) {
      const GroupIndex g{i};
      if (is_cached_group(geometry_, g) && !is_served(g, boundary)) return false;
    }
    return true;
  }

  [[nodiscard]] bool is_served(GroupIndex g, std::int64_t boundary) const {
    const std::optional<LookupNeed> need = geometry_.lookup_need(g, boundary);
    if (!need) return false;
    if (is_full_attention(geometry_.group(g))) return need->tail_boundary_tokens <= tails_[g.value()];
    if (need->tail_boundary_tokens > reach_tokens_) return false;
    if (need->blocks.empty()) return true;
    const std::int64_t span = geometry_.span_tokens(g);
    for (std::int64_t i = need->blocks.end_block - 1; i >= need->blocks.first_block; --i) {
      if (!probe(g, std::min((i + 1) * span, need->tail_boundary_tokens))) return false;
    }
    return true;
  }

  void collect(std::int64_t boundary, PrefixHit& hit) const {
    for (std::uint32_t i = 0; i < geometry_.num_groups(); ++i) {
      const GroupIndex g{i};
      if (!is_cached_group(geometry_, g)) continue;
      const BlockIndexRange range = geometry_.needs(g, boundary);
      hit.groups[i].first_block = range.first_block;
      for (std::int64_t b = range.first_block; b < range.end_block; ++b) {
        // Tokens that are kept but not read (extra_retained_tokens) may be gone.
        std::int64_t end = std::min((b + 1) * geometry_.span_tokens(g), boundary);
        if (is_full_attention(geometry_.group(g))) {
          end = b < runs_[i] ? (b + 1) * geometry_.span_tokens(g) : tails_[i];
        }
        hit.groups[i].blocks.push_back(probe(g, end).value_or(kNullBlock));
      }
    }
  }

  [[nodiscard]] std::int64_t junction_behind(std::int64_t boundary) const {
    std::int64_t longest = 0;
    const std::int64_t step = geometry_.hit_alignment_tokens();
    for (const std::int64_t tail : tails_) longest = std::max(longest, std::min(tail, limit_tokens_) / step * step);
    return longest > boundary ? longest : 0;
  }

  const Geometry& geometry_;
  const BlockPool& pool_;
  const Request& request_;
  std::int64_t limit_tokens_;
  std::int64_t reach_tokens_ = 0;    // the last token that a key may end at
  std::vector<std::int64_t> runs_;   // [num_groups] leading full blocks in the cache; 0 for other kinds
  std::vector<std::int64_t> tails_;  // [num_groups] where the last key of attention over all tokens ends
};

}  // namespace

void PrefixHit::cut(const Geometry& geometry, std::int64_t boundary) {
  boundary_tokens = boundary;
  for (std::uint32_t i = 0; i < groups.size(); ++i) {
    const std::int64_t end_block = boundary / geometry.span_tokens(GroupIndex{i});
    const std::int64_t kept = std::max<std::int64_t>(0, end_block - groups[i].first_block);
    if (kept < std::ssize(groups[i].blocks)) groups[i].blocks.resize(static_cast<std::size_t>(kept));
  }
}

bool has_findable_prefixes(const Geometry& geometry) {
  for (std::uint32_t i = 0; i < geometry.num_groups(); ++i) {
    const GroupIndex g{i};
    if (geometry.group(g).kind != GroupKind::kScratch && !is_cached_group(geometry, g)) return false;
  }
  return true;
}

bool is_cached_group(const Geometry& geometry, GroupIndex group) {
  const KvCacheGroup& g = geometry.group(group);
  if (!g.cacheable || g.kind == GroupKind::kScratch) return false;
  return g.kind != GroupKind::kMamba || g.mamba_mode != MambaMode::kNone;
}

PrefixHit find_longest_prefix(const Geometry& geometry, const BlockPool& pool, const Request& request) {
  if (has_findable_prefixes(geometry)) return Search(geometry, pool, request).find();
  PrefixHit none;
  none.groups.resize(geometry.num_groups());
  return none;
}

}  // namespace hostkv::bench
