#include "connector/store_planner.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "connector/working_geometry.h"

namespace hostkv {
namespace {

constexpr std::size_t kPrefetchDistance = 16;
constexpr std::int64_t kAllTokens = std::int64_t{1} << 60U;  // more than there can be

}  // namespace

StorePlanner::StorePlanner(Context context)
    : context_(std::move(context)), can_store_(host_can_serve(context_.geometry)) {
  const Geometry& geometry = context_.geometry;
  for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
    const GroupIndex group{g};
    if (!geometry.offloadable(group)) {
      continue;
    }
    (is_full(geometry.group(group)) ? full_groups_ : other_groups_).push_back(group);
    has_align_states_ = has_align_states_ || is_align_state(geometry.group(group));
    if (const auto need = geometry.lookup_need(group, geometry.scheduler_block_tokens())) {
      max_drop_tokens_ = std::max(max_drop_tokens_, need->tail_boundary_tokens - geometry.scheduler_block_tokens());
    }
  }
}

bool StorePlanner::may_plan(const RequestState& request, std::int64_t storable_tokens, Moment moment) const {
  if (!can_store_) {
    return false;
  }
  if (moment == Moment::kEnd && must_verify(request, storable_tokens, moment)) {
    return true;
  }
  const StoreProgress& progress = request.stores;
  if (has_align_states_) {
    return !request.hand_offs.empty() || progress.open_boundary_tokens > 0;
  }
  const std::int64_t alignment = context_.geometry.scheduler_block_tokens();
  return std::min(storable_tokens, request.hashes.hashed_tokens()) / alignment > progress.tried_tokens / alignment;
}

// Evictions, and loads that failed, may have taken blocks out of the middle of what was stored.
bool StorePlanner::must_verify(const RequestState& request, std::int64_t storable_tokens, Moment moment) const {
  const StoreProgress& progress = request.stores;
  if (leaves_to_device_ || progress.stored_tokens == 0 ||
      (moment == Moment::kStep && storable_tokens < 2 * progress.verified_tokens)) {
    return false;
  }
  const bool others_left = progress.builds_on_others && context_.cache.num_removals() != progress.verified_removals;
  return progress.has_holes || others_left || context_.cache.is_torn(request.chain);
}

void StorePlanner::plan(RequestState& request, std::int64_t storable_tokens, Moment moment, PlannedJob& job) {
  if (!can_store_) {
    return;
  }
  StoreProgress& progress = request.stores;
  storable_tokens = std::min({storable_tokens, request.hashes.hashed_tokens(), request.max_offload_tokens});
  progress.retry_tokens = moment == Moment::kEnd ? 0 : progress.retry_tokens;
  name_keys(request);
  find_boundaries(request, storable_tokens);
  from_start_ = must_verify(request, storable_tokens, moment);
  looks_again_ = from_start_ && boundaries_.empty() && progress.stored_tokens <= storable_tokens;
  if (looks_again_) {
    boundaries_.push_back(progress.stored_tokens);
  }
  if (std::ranges::binary_search(boundaries_, progress.open_boundary_tokens)) {
    progress.open_boundary_tokens = 0;  // open again only if this try does not fail
  }
  if (!boundaries_.empty()) {
    read_tables(request, storable_tokens);
    drop_unstorable(request, storable_tokens);
    plan_boundaries(request, storable_tokens, job);
  }
  if (from_start_) {  // nothing could be tried: not again before the chain has doubled
    mark_verified(request, storable_tokens);
    progress.has_holes = true;
  }
  // A draft group's extra unit ends behind its boundary: the last boundaries are tried again when it is there.
  const std::int64_t settled = round_down(storable_tokens - max_drop_tokens_);
  const bool is_at_limit = storable_tokens == request.max_offload_tokens;
  progress.tried_tokens = std::max(progress.tried_tokens, is_at_limit ? kAllTokens : settled);
}

void StorePlanner::name_keys(const RequestState& request) {
  hash_size_bytes_ = request.hashes.hash_size_bytes;
  tags_.clear();
  for (std::uint32_t g = 0; g < context_.geometry.num_groups(); ++g) {
    tags_.push_back(make_key_tag(GroupIndex{g}, hash_size_bytes_, context_.namespace_fingerprint));
  }
}

// REQUIRES: boundaries. What windows want begins later at a later boundary.
void StorePlanner::read_tables(const RequestState& request, std::int64_t storable_tokens) {
  const Geometry& geometry = context_.geometry;
  sources_.assign(geometry.num_groups(), {});
  const auto read = [&](GroupIndex group, std::int64_t first_block) {
    Source& source = sources_[group.value()];
    source.left_out = {request.loaded_from_tokens / geometry.span_tokens(group),
                       geometry.needs(group, request.admitted_tokens).first_block};
    const bool begins_left_out = first_block >= source.left_out.first_block;
    source.first_read = begins_left_out ? std::max(first_block, source.left_out.end_block) : first_block;
    source.table = context_.engine.block_table(request.id, group, source.first_read);
  };
  const std::int64_t done_tokens = std::max(request.stores.stored_tokens, request.admitted_tokens);
  for (const GroupIndex group : full_groups_) {
    read(group, done_tokens / geometry.span_tokens(group));
  }
  for (const GroupIndex group : other_groups_) {
    if (!is_align_state(geometry.group(group))) {
      read(group, wanted_range(group, boundaries_.front(), storable_tokens).first_block);
    }
  }
}

// Boundaries behind the cursor, ascending. A model with align states resumes only where a state was handed off.
void StorePlanner::find_boundaries(const RequestState& request, std::int64_t storable_tokens) {
  boundaries_.clear();
  if (has_align_states_) {
    for (const BoundaryHandOff& hand_off : request.hand_offs) {
      if (hand_off.boundary_tokens <= storable_tokens) {
        boundaries_.push_back(hand_off.boundary_tokens);
      }
    }
    const std::int64_t open = request.stores.open_boundary_tokens;
    if (open > 0 && open <= storable_tokens) {
      boundaries_.push_back(open);
    }
    std::ranges::sort(boundaries_);
    boundaries_.erase(std::unique(boundaries_.begin(), boundaries_.end()), boundaries_.end());
    return;
  }
  const std::int64_t alignment = context_.geometry.scheduler_block_tokens();
  for (std::int64_t boundary = round_down(request.stores.tried_tokens) + alignment; boundary <= storable_tokens;
       boundary += alignment) {
    boundaries_.push_back(boundary);
  }
}

// Tokens up to which every full-attention table goes.
std::int64_t StorePlanner::end_of_tables() const {
  std::int64_t end_tokens = std::numeric_limits<std::int64_t>::max();
  for (const GroupIndex group : full_groups_) {
    end_tokens = std::min(end_tokens, std::ssize(sources_[group.value()].table) * context_.geometry.span_tokens(group));
  }
  return end_tokens;
}

// A boundary whose window or state has gone from the device and is not stored cannot be stored any more.
void StorePlanner::drop_unstorable(const RequestState& request, std::int64_t storable_tokens) {
  const std::int64_t table_end = end_of_tables();
  std::erase_if(boundaries_, [&](std::int64_t boundary) {
    const bool has_tables = boundary <= table_end;
    const bool storable = has_tables && std::ranges::all_of(other_groups_, [&](GroupIndex group) {
                            return is_storable(request, group, boundary, storable_tokens);
                          });
    context_.metrics.unstorable_boundaries += !storable && !looks_again_ && boundary > request.admitted_tokens ? 1 : 0;
    return !storable;
  });
}

bool StorePlanner::is_storable(const RequestState& request, GroupIndex group, std::int64_t boundary_tokens,
                               std::int64_t storable_tokens) {
  const auto is_gone = [&](BlockId source, std::int64_t end_tokens) {
    const auto key = [&] {
      return make_offload_key(request.hashes.at_boundary(end_tokens), group, context_.namespace_fingerprint);
    };
    return source == kNullBlock && context_.cache.find(key()) == kNoEntry;
  };
  if (is_align_state(context_.geometry.group(group))) {
    return !is_gone(handed_off(request, group, boundary_tokens), boundary_tokens);
  }
  const BlockIndexRange range = wanted_range(group, boundary_tokens, storable_tokens);
  const std::int64_t span = context_.geometry.span_tokens(group);
  Source& source = sources_[group.value()];
  for (std::int64_t i = std::max(range.first_block, source.scanned_end); i < range.end_block; ++i) {
    source.last_gone = is_gone(source.at(i), (i + 1) * span) ? i : source.last_gone;
  }
  source.scanned_end = std::max(source.scanned_end, range.end_block);
  return source.last_gone < range.first_block;
}

// Together where all fit; else one by one, so that the first ones do.
void StorePlanner::plan_boundaries(RequestState& request, std::int64_t storable_tokens, PlannedJob& job) {
  // A state is handed off once: its boundary does not wait.
  const bool waits = !has_align_states_ && !boundaries_.empty() && boundaries_.front() < request.stores.retry_tokens;
  if (boundaries_.size() > 1 && !waits && try_sets(request, boundaries_, storable_tokens, job) != Outcome::kNoRoom) {
    return;
  }
  for (const std::int64_t boundary : boundaries_) {
    plan_one(request, boundary, storable_tokens, job);
  }
}

void StorePlanner::plan_one(RequestState& request, std::int64_t boundary_tokens, std::int64_t storable_tokens,
                            PlannedJob& job) {
  StoreProgress& progress = request.stores;
  const std::span<const std::int64_t> one(&boundary_tokens, 1);
  if (!has_align_states_ && boundary_tokens < progress.retry_tokens) {
    // It only counts what is new.
    collect(request, one, storable_tokens, progress.counted_tokens);
    keep_missing(request, one);
    book_no_room(request, boundary_tokens);
    return;
  }
  if (try_sets(request, one, storable_tokens, job) == Outcome::kNoRoom) {
    book_no_room(request, boundary_tokens);
    context_.metrics.dropped_hand_offs += has_align_states_ ? 1 : 0;
    progress.retry_tokens = boundary_tokens + (boundary_tokens - progress.stored_tokens);
  }
}

StorePlanner::Outcome StorePlanner::try_sets(RequestState& request, std::span<const std::int64_t> boundaries,
                                             std::int64_t storable_tokens, PlannedJob& job) {
  StoreProgress& progress = request.stores;
  if (progress.stored_tokens == 0) {  // the first set may evict what it finds
    progress.verified_removals = context_.cache.num_removals();
  }
  Outcome outcome = Outcome::kNoRoom;
  if (from_start_) {  // with the holes of the chain, if there is room for them too
    mark_verified(request, storable_tokens);
    collect(request, boundaries, storable_tokens, 0);
    keep_missing(request, boundaries);
    outcome = reserve_and_commit(request, job);
    progress.has_holes = outcome == Outcome::kNoRoom;
    from_start_ = false;  // also where there was none: not again before the chain has doubled
  }
  if (outcome == Outcome::kNoRoom) {
    collect(request, boundaries, storable_tokens, progress.stored_tokens);
    keep_missing(request, boundaries);
    outcome = reserve_and_commit(request, job);
  }
  if (outcome != Outcome::kNoRoom) {
    book_stored(request, boundaries.back(), storable_tokens);
  }
  return outcome;
}

void StorePlanner::book_no_room(RequestState& request, std::int64_t boundary_tokens) {
  context_.metrics.present_blocks += num_present_;
  context_.metrics.planned_store_blocks += num_new_wants_;
  context_.metrics.dropped_full_blocks += num_new_wants_;
  request.stores.counted_tokens = std::max(request.stores.counted_tokens, boundary_tokens);
}

void StorePlanner::book_stored(RequestState& request, std::int64_t boundary_tokens, std::int64_t storable_tokens) {
  StoreProgress& progress = request.stores;
  context_.metrics.present_blocks += num_present_;
  if (progress.stored_tokens == 0) {
    progress.verified_tokens = storable_tokens;
  }
  progress.counted_tokens = std::max(progress.counted_tokens, boundary_tokens);
  progress.stored_tokens = std::max(progress.stored_tokens, boundary_tokens);
  const bool waits_for_unit =
      storable_tokens < request.max_offload_tokens && boundary_tokens + max_drop_tokens_ > storable_tokens;
  progress.open_boundary_tokens = waits_for_unit ? boundary_tokens : 0;
}

// Before the look itself: what that evicts, or finds to be of others, counts.
void StorePlanner::mark_verified(RequestState& request, std::int64_t storable_tokens) const {
  context_.cache.mend(request.chain);
  request.stores.mark_verified(context_.cache.num_removals(), storable_tokens);
}

// Full attention comes first in a set, so that it is published, and evicted, last.
void StorePlanner::collect(const RequestState& request, std::span<const std::int64_t> boundaries,
                           std::int64_t storable_tokens, std::int64_t done_tokens) {
  candidates_.clear();
  for (const GroupIndex group : full_groups_) {
    collect_full(request, group, boundaries, storable_tokens, done_tokens);
  }
  for (const GroupIndex group : other_groups_) {
    collect_other(request, group, boundaries, storable_tokens);
  }
  if (boundaries.size() > 1 && full_groups_.size() + other_groups_.size() > 1) {
    sort_by_set(boundaries.size());
  }
}

// Stable. In linear time: there may be as many sets as blocks.
void StorePlanner::sort_by_set(std::size_t num_sets) {
  set_ends_.assign(num_sets + 1, 0);
  for (const Candidate& candidate : candidates_) {
    ++set_ends_[candidate.ordinal + 1];
  }
  std::partial_sum(set_ends_.begin(), set_ends_.end(), set_ends_.begin());
  sorted_.resize(candidates_.size());
  for (const Candidate& candidate : candidates_) {
    sorted_[set_ends_[candidate.ordinal]++] = candidate;
  }
  candidates_.swap(sorted_);
}

// Whole blocks from where the request's last stored set ended, and the block that the boundary lies inside of. Of a
// draft group the key behind the dropped unit is what a lookup asks for: it serves the boundary too.
void StorePlanner::collect_full(const RequestState& request, GroupIndex group, std::span<const std::int64_t> boundaries,
                                std::int64_t storable_tokens, std::int64_t done_tokens) {
  const Geometry& geometry = context_.geometry;
  const std::int64_t span = geometry.span_tokens(group);
  const std::int64_t drop = geometry.drops_unit(group) ? std::min(geometry.hit_alignment_tokens(), span) : 0;
  std::int64_t next_block = done_tokens / span;
  const std::size_t stride_bytes =
      static_cast<std::size_t>(span / request.hashes.hash_block_tokens) * request.hashes.hash_size_bytes;
  const std::byte* next_hash = (next_block + 1) * span <= request.hashes.hashed_tokens()
                                   ? request.hashes.at_boundary((next_block + 1) * span).data()
                                   : nullptr;
  for (std::size_t k = 0; k < boundaries.size(); ++k) {
    const bool is_tail_written = boundaries[k] + drop <= storable_tokens;
    const std::int64_t tail = is_tail_written ? boundaries[k] + drop : boundaries[k] / span * span;
    for (; (next_block + 1) * span <= tail; ++next_block, next_hash += stride_bytes) {
      if (!leaves_to_device_) {
        add_candidate(next_hash, group, (next_block + 1) * span, k, next_block);
      }
    }
    const bool ends_inside = next_block * span < tail || (next_block * span > tail && tail % span != 0);
    if (ends_inside) {
      add_candidate(request, group, tail, k, tail / span);
    }
  }
}

void StorePlanner::collect_other(const RequestState& request, GroupIndex group,
                                 std::span<const std::int64_t> boundaries, std::int64_t storable_tokens) {
  const std::int64_t span = context_.geometry.span_tokens(group);
  if (is_align_state(context_.geometry.group(group))) {
    for (std::size_t k = 0; k < boundaries.size(); ++k) {
      add_candidate(request.hashes.at_boundary(boundaries[k]).data(), group, boundaries[k], k, kHandedOff).source =
          handed_off(request, group, boundaries[k]);
    }
    return;
  }
  std::int64_t next_block = 0;
  for (std::size_t k = 0; k < boundaries.size(); ++k) {
    const BlockIndexRange range = wanted_range(group, boundaries[k], storable_tokens);
    for (std::int64_t i = std::max(range.first_block, next_block); i < range.end_block; ++i) {
      add_candidate(request, group, (i + 1) * span, k, i);
    }
    next_block = std::max(next_block, range.end_block);
  }
}

void StorePlanner::add_candidate(const RequestState& request, GroupIndex group, std::int64_t end_tokens,
                                 std::size_t ordinal, std::int64_t block_index) {
  add_candidate(request.hashes.at_boundary(end_tokens).data(), group, end_tokens, ordinal, block_index);
}

StorePlanner::Candidate& StorePlanner::add_candidate(const std::byte* engine_hash, GroupIndex group,
                                                     std::int64_t end_tokens, std::size_t ordinal,
                                                     std::int64_t block_index) {
  Candidate& added = candidates_.emplace_back();
  added.engine_hash = engine_hash;
  added.hash = hash_of(detail::make_key(engine_hash, hash_size_bytes_, tags_[group.value()]));
  added.end_tokens = end_tokens;
  added.ordinal = static_cast<std::uint32_t>(ordinal);
  added.group = group;
  added.block_index = static_cast<std::uint32_t>(block_index);
  return added;
}

// Of the candidates those stay that are neither stored nor on the way (nor left to the device).
void StorePlanner::keep_missing(RequestState& request, std::span<const std::int64_t> boundaries) {
  num_present_ = 0;
  num_new_wants_ = 0;
  bool has_holes = false;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    if (i + kPrefetchDistance < candidates_.size()) {
      context_.cache.prefetch(candidates_[i + kPrefetchDistance].hash);
    }
    Candidate& candidate = candidates_[i];
    if (const EntryId present = context_.cache.find(key_of(candidate), candidate.hash); present != kNoEntry) {
      request.stores.builds_on_others |= context_.cache.chain_of(present) != request.chain;
      num_present_ += is_new(candidate, request, boundaries) ? 1 : 0;
      continue;
    }
    const bool is_hole = candidate.block_index < sources_[candidate.group.value()].first_read;
    has_holes = has_holes || is_hole;
    if (is_hole || find_source(candidate, request, boundaries)) {
      candidates_[kept++] = candidate;
    }
  }
  candidates_.resize(kept);
  if (has_holes) {
    fill_holes(request, boundaries);
  }
}

// What was stored, or loaded, and has left the host since: only now the tables are read from there on.
void StorePlanner::fill_holes(const RequestState& request, std::span<const std::int64_t> boundaries) {
  std::vector<std::int64_t> lowest(sources_.size(), std::numeric_limits<std::int64_t>::max());
  for (const Candidate& candidate : candidates_) {
    std::int64_t& of_group = lowest[candidate.group.value()];
    of_group = std::min<std::int64_t>(of_group, candidate.block_index);
  }
  for (const GroupIndex group : full_groups_) {
    Source& source = sources_[group.value()];
    if (lowest[group.value()] < source.first_read) {
      source.first_read = lowest[group.value()];
      source.table = context_.engine.block_table(request.id, group, source.first_read);
    }
  }
  std::erase_if(candidates_, [&](Candidate& candidate) {
    return candidate.source == kNullBlock && !find_source(candidate, request, boundaries);
  });
}

// False: it is not stored. Only what stands between the device's own blocks and a load's has no source here, and nobody
// asks for it.
bool StorePlanner::find_source(Candidate& candidate, const RequestState& request,
                               std::span<const std::int64_t> boundaries) {
  if (candidate.block_index != kHandedOff) {
    candidate.source = sources_[candidate.group.value()].at(candidate.block_index);
  }
  if (candidate.source == kNullBlock || (leaves_to_device_ && is_left_to_device(candidate))) {
    return false;
  }
  num_new_wants_ += is_new(candidate, request, boundaries) ? 1 : 0;
  return true;
}

// The device keeps the blocks of windows under their keys, if it has them.
bool StorePlanner::is_left_to_device(const Candidate& candidate) const {
  return candidate.block_index != kHandedOff && !is_full(context_.geometry.group(candidate.group)) &&
         context_.engine.carries_key(candidate.source, candidate.group, {candidate.engine_hash, hash_size_bytes_});
}

StorePlanner::Outcome StorePlanner::reserve_and_commit(const RequestState& request, PlannedJob& job) {
  if (candidates_.empty()) {
    return Outcome::kNothingNew;
  }
  wants_.clear();
  for (const Candidate& candidate : candidates_) {
    wants_.push_back(StoreWant{key_of(candidate), context_.class_of_group[candidate.group.value()],
                               is_full(context_.geometry.group(candidate.group))});
  }
  reserved_.clear();
  // A state is handed off once: its set may take what is kept back for it.
  if (!context_.cache.reserve(wants_, request.chain, reserved_, has_align_states_)) {
    return Outcome::kNoRoom;
  }
  context_.metrics.planned_store_blocks += static_cast<std::int64_t>(wants_.size());
  pinned_.clear();
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    const Candidate& candidate = candidates_[i];
    job.blocks.push_back(JobBlock{candidate.group, candidate.source, reserved_[i], kNullBlock});
    pinned_.push_back(candidate.source);
    if (i + 1 == candidates_.size() || candidates_[i + 1].ordinal != candidate.ordinal) {
      job.set_ends.push_back(static_cast<std::uint32_t>(job.blocks.size()));
    }
  }
  context_.engine.pin(pinned_);
  if (context_.events != nullptr) {
    record_planned(request.id);
  }
  return Outcome::kStored;
}

void StorePlanner::record_planned(RequestId request) const {
  for (const Candidate& candidate : candidates_) {
    const OffloadKey key = key_of(candidate);
    context_.events->push_back(KeyEvent{.hash = key.hash,
                                        .tag = key.tag,
                                        .boundary_tokens = candidate.end_tokens,
                                        .request = request,
                                        .has_request = true,
                                        .kind = KeyEventKind::kPlanned});
  }
}

// What a lookup at the boundary must see as far as it is written; at least what a request resuming there needs.
BlockIndexRange StorePlanner::wanted_range(GroupIndex group, std::int64_t boundary_tokens,
                                           std::int64_t storable_tokens) const {
  const Geometry& geometry = context_.geometry;
  BlockIndexRange range = geometry.needs(group, boundary_tokens);
  const std::optional<LookupNeed> lookup = geometry.lookup_need(group, boundary_tokens);
  if (lookup && lookup->tail_boundary_tokens <= storable_tokens) {
    range.first_block =
        range.empty() ? lookup->blocks.first_block : std::min(range.first_block, lookup->blocks.first_block);
    range.end_block = std::max(range.end_block, lookup->blocks.end_block);
  }
  return range;
}

BlockId StorePlanner::handed_off(const RequestState& request, GroupIndex group, std::int64_t boundary_tokens) {
  const auto found = std::ranges::find_if(request.hand_offs, [&](const BoundaryHandOff& hand_off) {
    return hand_off.group == group && hand_off.boundary_tokens == boundary_tokens;
  });
  return found == request.hand_offs.end() ? kNullBlock : found->block;
}

}  // namespace hostkv
