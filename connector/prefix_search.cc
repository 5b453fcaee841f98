#include "connector/prefix_search.h"

#include <algorithm>
#include <array>
#include <optional>

#include "connector/working_geometry.h"

namespace hostkv {
namespace {

constexpr std::size_t kFirstBatch = 4;

}  // namespace

PrefixSearch::PrefixSearch(const Geometry& geometry, const OffloadCache& cache, EngineBlocks* device,
                           std::uint64_t namespace_fingerprint)
    : geometry_(geometry),
      cache_(cache),
      device_(device),
      uses_device_(device != nullptr),
      namespace_fingerprint_(namespace_fingerprint),
      can_search_(host_can_serve(geometry)),
      step_tokens_(geometry.hit_alignment_tokens()),
      lost_tokens_(geometry.num_groups(), 0) {
  for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
    const GroupIndex group{g};
    if (!geometry.offloadable(group)) {
      continue;
    }
    if (is_full(geometry.group(group))) {
      full_runs_.push_back(FullRun{.group = group, .first_block = 0, .tail_tokens = 0, .places = {}});
    } else {
      other_groups_.push_back(group);
    }
  }
}

std::int64_t PrefixSearch::drop_tokens(GroupIndex group) const {
  return geometry_.drops_unit(group) ? std::min(geometry_.hit_alignment_tokens(), geometry_.span_tokens(group)) : 0;
}

PrefixSearch::Answer PrefixSearch::longest_boundary(const HashChain& hashes, std::int64_t num_tokens,
                                                    std::int64_t num_local_tokens) {
  std::ranges::fill(lost_tokens_, 0);
  const std::int64_t limit = std::min(num_tokens - 1, hashes.hashed_tokens());
  const std::int64_t boundary = limit / step_tokens_ * step_tokens_;
  if (!can_search_ || boundary <= num_local_tokens) {
    return {num_local_tokens, 0, can_search_ && hashes.hashed_tokens() < num_tokens - 1};
  }
  // How far the extra unit of a draft group may reach: as in the engine, one group never looks behind the last token
  // but one, several look at every whole hash block.
  const Query query{hashes, num_local_tokens, geometry_.num_groups() == 1 ? limit : hashes.hashed_tokens()};
  for (FullRun& run : full_runs_) {
    measure_run(query, run);
  }
  const std::int64_t cap = cap_by_runs(query, boundary);
  const std::int64_t found = shorten_by_others(query, cap);
  return {found, !full_runs_.empty() && cap > found ? cap : 0, hangs_on_hashes(hashes)};
}

// A run that a missing block ended says how far all groups get, where the hashes go well behind that block: its inner
// keys and what a draft group looks for behind a boundary are known then.
bool PrefixSearch::hangs_on_hashes(const HashChain& hashes) const {
  return full_runs_.empty() || std::ranges::any_of(full_runs_, [&](const FullRun& run) {
           return run.tail_tokens + 2 * geometry_.scheduler_block_tokens() > hashes.hashed_tokens();
         });
}

// The boundary that attention over all tokens can serve; what the shortest group costs is booked on it.
std::int64_t PrefixSearch::cap_by_runs(const Query& query, std::int64_t boundary_tokens) {
  std::int64_t cap = boundary_tokens;
  std::int64_t longest = full_runs_.empty() ? boundary_tokens : query.num_local_tokens;
  const FullRun* shortest = nullptr;
  for (const FullRun& run : full_runs_) {
    const std::int64_t served = std::max<std::int64_t>(0, run.tail_tokens - drop_tokens(run.group));
    const std::int64_t of_group =
        std::max(query.num_local_tokens, std::min(boundary_tokens, served / step_tokens_ * step_tokens_));
    longest = std::max(longest, of_group);
    if (of_group < cap) {
      cap = of_group;
      shortest = &run;
    }
  }
  if (shortest != nullptr) {
    lost_tokens_[shortest->group.value()] += longest - cap;
  }
  return cap;
}

// Every group agrees to the boundary, or proposes a smaller one: until all agree to the same.
std::int64_t PrefixSearch::shorten_by_others(const Query& query, std::int64_t boundary_tokens) {
  std::int64_t boundary = boundary_tokens;
  bool all_agree = false;
  while (!all_agree && boundary > query.num_local_tokens) {
    all_agree = true;
    for (const GroupIndex group : other_groups_) {
      const std::int64_t next = std::max(query.num_local_tokens, next_candidate(query, group, boundary));
      if (next != boundary) {
        all_agree = false;
        lost_tokens_[group.value()] += full_runs_.empty() ? 0 : boundary - next;
        boundary = next;
        break;
      }
    }
  }
  return boundary;
}

void PrefixSearch::measure_run(const Query& query, FullRun& run) {
  const std::int64_t span = geometry_.span_tokens(run.group);
  const std::int64_t hashed = query.hashes.hashed_tokens();
  const std::int64_t reach = geometry_.drops_unit(run.group) ? query.reach_tokens : hashed;
  run.first_block = query.num_local_tokens / span;
  run.places.clear();
  find_whole_blocks(query.hashes, reach / span, run);
  run.tail_tokens = (run.first_block + std::ssize(run.places)) * span;
  find_inner_key(query, reach, run);
}

// The keys of a chain are known before the first probe: they are looked up in batches, a small one at first, since most
// misses are at the first block.
void PrefixSearch::find_whole_blocks(const HashChain& hashes, std::int64_t end_block, FullRun& run) {
  const std::int64_t span = geometry_.span_tokens(run.group);
  const std::int64_t first_boundary = (run.first_block + 1) * span;
  device_.begin(hashes, run.group, first_boundary, (end_block + 1) * span, span);
  const auto num_keys = static_cast<std::size_t>(std::max<std::int64_t>(0, end_block - run.first_block));
  const KeyRun keys = hashes.keys(run.group, namespace_fingerprint_, first_boundary, span, num_keys);
  RunCursor cursor;
  std::size_t batch = kFirstBatch;
  for (std::size_t done = 0; done < num_keys; done += batch, batch = std::min(2 * batch, kMostInBatch)) {
    const auto found = std::span(batch_).first(std::min(batch, num_keys - done));
    cache_.find_run(keys.from(done), found, cursor);
    for (std::size_t k = 0; k < found.size(); ++k) {
      const bool is_ready = found[k] != kNoEntry && cache_.ready(found[k]);
      Place place{.entry = is_ready ? found[k] : kNoEntry, .device = kNullBlock};
      if (!is_ready) {
        place.device =
            uses_device_ ? device_.find(first_boundary + static_cast<std::int64_t>(done + k) * span) : kNullBlock;
        if (place.nowhere()) {
          return;
        }
      }
      run.places.push_back(place);
    }
  }
}

// The highest key inside the block behind the whole ones.
void PrefixSearch::find_inner_key(const Query& query, std::int64_t reach_tokens, FullRun& run) {
  const std::int64_t alignment = geometry_.hit_alignment_tokens();
  const std::int64_t span = geometry_.span_tokens(run.group);
  const std::int64_t begin = run.tail_tokens;
  if (alignment >= span || span % alignment != 0) {
    return;
  }
  const std::int64_t highest = std::min(begin + span - alignment, reach_tokens / alignment * alignment);
  const std::int64_t lowest = std::max(begin, query.num_local_tokens);
  device_.begin(query.hashes, run.group, highest, lowest, -alignment);
  for (std::int64_t key_tokens = highest; key_tokens > lowest; key_tokens -= alignment) {
    Place place{.entry = find_ready(query.hashes, run.group, key_tokens), .device = kNullBlock};
    if (place.nowhere() && uses_device_) {
      place.device = device_.find(key_tokens);
    }
    if (!place.nowhere()) {
      run.places.push_back(place);
      run.tail_tokens = key_tokens;
      return;
    }
  }
}

std::int64_t PrefixSearch::next_candidate(const Query& query, GroupIndex group, std::int64_t boundary_tokens) {
  const std::int64_t one_less = boundary_tokens - step_tokens_;
  const std::optional<LookupNeed> need = geometry_.lookup_need(group, boundary_tokens);
  if (!need || need->tail_boundary_tokens > query.reach_tokens) {
    return one_less;
  }
  if (geometry_.group(group).kind == GroupKind::kMamba) {
    return next_state(query, group, boundary_tokens);
  }
  const std::int64_t span = geometry_.span_tokens(group);
  // A load also fills the blocks that the engine retains behind a window, although no lookup on the device asks for
  // them.
  const std::int64_t first_block =
      std::min(need->blocks.first_block, geometry_.needs(group, boundary_tokens).first_block);
  for (std::int64_t i = need->blocks.end_block - 1; i >= first_block; --i) {
    const std::int64_t end_tokens = i + 1 == need->blocks.end_block ? need->tail_boundary_tokens : (i + 1) * span;
    if (end_tokens > query.num_local_tokens && find(query.hashes, group, end_tokens).nowhere()) {
      // A window or chunk that ends behind the missing block and begins no later than this one needs the block too.
      return std::min(one_less, i * span / step_tokens_ * step_tokens_);
    }
  }
  return boundary_tokens;
}

// The highest boundary from here down at which the group has a state.
std::int64_t PrefixSearch::next_state(const Query& query, GroupIndex group, std::int64_t boundary_tokens) {
  device_.begin(query.hashes, group, boundary_tokens, query.num_local_tokens, -step_tokens_);
  for (std::int64_t state = boundary_tokens; state > query.num_local_tokens; state -= step_tokens_) {
    const bool on_host = find_ready(query.hashes, group, state) != kNoEntry;
    if (on_host || (uses_device_ && device_.find(state) != kNullBlock)) {
      return state;
    }
  }
  return query.num_local_tokens;
}

bool PrefixSearch::assemble(const HashChain& hashes, std::int64_t num_local_tokens, std::int64_t boundary_tokens,
                            std::vector<PromisedBlock>& blocks) {
  if (!can_search_) {
    return false;
  }
  const Query query{hashes, num_local_tokens, hashes.hashed_tokens()};
  for (FullRun& run : full_runs_) {
    measure_run(query, run);
  }
  for (std::uint32_t g = 0; g < geometry_.num_groups(); ++g) {
    if (geometry_.offloadable(GroupIndex{g}) && geometry_.drops_unit(GroupIndex{g}) &&
        !has_dropped_unit(hashes, GroupIndex{g}, boundary_tokens)) {
      return false;
    }
  }
  return append_needed(hashes, num_local_tokens, boundary_tokens, blocks);
}

// What a lookup at the boundary would see of the unit that it drops.
bool PrefixSearch::has_dropped_unit(const HashChain& hashes, GroupIndex group, std::int64_t boundary_tokens) {
  const std::optional<LookupNeed> need = geometry_.lookup_need(group, boundary_tokens);
  if (!need) {
    return false;
  }
  const auto run = std::ranges::find(full_runs_, group, &FullRun::group);
  return run != full_runs_.end() ? run->tail_tokens >= need->tail_boundary_tokens
                                 : !find(hashes, group, need->tail_boundary_tokens).nowhere();
}

bool PrefixSearch::append_needed(const HashChain& hashes, std::int64_t num_local_tokens, std::int64_t boundary_tokens,
                                 std::vector<PromisedBlock>& blocks) {
  const std::size_t before = blocks.size();
  for (std::uint32_t g = 0; g < geometry_.num_groups(); ++g) {
    if (geometry_.offloadable(GroupIndex{g}) &&
        !append_group(hashes, GroupIndex{g}, num_local_tokens, boundary_tokens, blocks)) {
      blocks.resize(before);
      return false;
    }
  }
  return true;
}

bool PrefixSearch::append_group(const HashChain& hashes, GroupIndex group, std::int64_t num_local_tokens,
                                std::int64_t boundary_tokens, std::vector<PromisedBlock>& blocks) {
  BlockIndexRange range = geometry_.needs(group, boundary_tokens);
  range.first_block = std::max(range.first_block, num_local_tokens / geometry_.span_tokens(group));
  const auto run = std::ranges::find(full_runs_, group, &FullRun::group);
  if (run == full_runs_.end()) {
    return append_others(hashes, group, range, boundary_tokens, blocks);
  }
  if (run->tail_tokens < boundary_tokens) {
    return false;
  }
  append_run(hashes, *run, range, boundary_tokens, blocks);
  return true;
}

// Of what both have, the device's copy is nearer. It is asked until it has had none for a while: a chain loses its end
// first.
void PrefixSearch::append_run(const HashChain& hashes, const FullRun& run, BlockIndexRange range,
                              std::int64_t boundary_tokens, std::vector<PromisedBlock>& blocks) {
  const std::int64_t span = geometry_.span_tokens(run.group);
  device_.begin(hashes, run.group, (range.first_block + 1) * span, range.end_block * span, span);
  std::int64_t num_misses = 0;
  blocks.reserve(blocks.size() +
                 static_cast<std::size_t>(std::max<std::int64_t>(0, range.end_block - range.first_block)));
  for (std::int64_t i = range.first_block; i < range.end_block; ++i) {
    Place place = run.places[static_cast<std::size_t>(i - run.first_block)];
    if (uses_device_ && place.device == kNullBlock && num_misses < DeviceView::kMostAhead) {
      place.device = i + 1 < range.end_block ? device_.find((i + 1) * span)
                                             : find_last_on_device(hashes, run.group, boundary_tokens);
      num_misses = place.device == kNullBlock ? num_misses + 1 : 0;
    }
    const EntryId entry = place.device == kNullBlock ? place.entry : kNoEntry;
    blocks.push_back(PromisedBlock{run.group, static_cast<std::uint32_t>(i), entry, place.device});
  }
}

// The block that holds the token before the boundary: any key inside it that is not before the boundary will do.
BlockId PrefixSearch::find_last_on_device(const HashChain& hashes, GroupIndex group, std::int64_t boundary_tokens) {
  const std::int64_t span = geometry_.span_tokens(group);
  const std::int64_t end_tokens = ((boundary_tokens - 1) / span + 1) * span;
  const std::int64_t step = std::min(geometry_.hit_alignment_tokens(), span);
  for (std::int64_t key_tokens = (boundary_tokens + step - 1) / step * step;
       key_tokens <= std::min(end_tokens, hashes.hashed_tokens()); key_tokens += step) {
    if (const BlockId block = device_.find_one(hashes, group, key_tokens); block != kNullBlock) {
      return block;
    }
  }
  return kNullBlock;
}

bool PrefixSearch::append_others(const HashChain& hashes, GroupIndex group, BlockIndexRange range,
                                 std::int64_t boundary_tokens, std::vector<PromisedBlock>& blocks) {
  const bool is_state = geometry_.group(group).kind == GroupKind::kMamba;
  const std::int64_t span = geometry_.span_tokens(group);
  for (std::int64_t i = range.first_block; i < range.end_block; ++i) {
    const std::int64_t end_tokens = is_state ? boundary_tokens : (i + 1) * span;
    Place place{.entry = kNoEntry, .device = uses_device_ ? device_.find_one(hashes, group, end_tokens) : kNullBlock};
    if (place.nowhere()) {
      place.entry = find_ready(hashes, group, end_tokens);
    }
    if (place.nowhere()) {
      return false;
    }
    blocks.push_back(PromisedBlock{group, static_cast<std::uint32_t>(i), place.entry, place.device});
  }
  return true;
}

PrefixSearch::Place PrefixSearch::find(const HashChain& hashes, GroupIndex group, std::int64_t boundary_tokens) {
  Place place{.entry = find_ready(hashes, group, boundary_tokens), .device = kNullBlock};
  if (place.nowhere() && uses_device_) {
    place.device = device_.find_one(hashes, group, boundary_tokens);
  }
  return place;
}

EntryId PrefixSearch::find_ready(const HashChain& hashes, GroupIndex group, std::int64_t boundary_tokens) const {
  if (boundary_tokens > hashes.hashed_tokens() || boundary_tokens % hashes.hash_block_tokens != 0) {
    return kNoEntry;
  }
  const OffloadKey key = make_offload_key(hashes.at_boundary(boundary_tokens), group, namespace_fingerprint_);
  const EntryId id = cache_.find(key, hash_of(key));
  return id != kNoEntry && cache_.ready(id) ? id : kNoEntry;
}

}  // namespace hostkv
