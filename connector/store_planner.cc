#include "connector/store_planner.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "connector/coarse_geometry.h"

namespace hostkv {
namespace {

bool is_full(const KvCacheGroup& group) {
  return group.kind == GroupKind::kFullAttention || group.kind == GroupKind::kMla;
}
bool is_align_state(const KvCacheGroup& group) {
  return group.kind == GroupKind::kMamba && group.mamba_mode == MambaMode::kAlign;
}

}  // namespace

StorePlanner::StorePlanner(Context context)
    : context_(std::move(context)), can_store_(host_can_serve(context_.geometry)) {
  const Geometry& geometry = context_.geometry;
  for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
    const GroupIndex group{g};
    if (!geometry.offloadable(group)) {
      continue;
    }
    has_align_states_ = has_align_states_ || is_align_state(geometry.group(group));
    if (const auto need = geometry.lookup_need(group, geometry.scheduler_block_tokens())) {
      max_drop_tokens_ = std::max(max_drop_tokens_, need->tail_boundary_tokens - geometry.scheduler_block_tokens());
    }
  }
}

bool StorePlanner::may_plan(const RequestState& request, std::int64_t storable_tokens) const {
  if (!can_store_) {
    return false;
  }
  if (has_align_states_) {
    return !request.hand_offs.empty() || request.open_boundary_tokens > 0;
  }
  const std::int64_t alignment = context_.geometry.scheduler_block_tokens();
  return std::min(storable_tokens, request.hashes.hashed_tokens()) / alignment > request.tried_tokens / alignment;
}

void StorePlanner::plan(RequestState& request, std::int64_t storable_tokens, PlannedJob& job) {
  if (!can_store_) {
    return;
  }
  storable_tokens = std::min(storable_tokens, request.hashes.hashed_tokens());
  const std::vector<std::int64_t> boundaries = boundaries_to_try(request, storable_tokens);
  if (std::ranges::binary_search(boundaries, request.open_boundary_tokens)) {
    request.open_boundary_tokens = 0;  // open again only if this try does not fail
  }
  for (const std::int64_t boundary : boundaries) {
    settle(request, boundary, storable_tokens, try_boundary(request, boundary, storable_tokens, job));
  }
  // A draft group's extra unit ends behind its boundary: the last boundaries are tried again when it is there.
  const std::int64_t alignment = context_.geometry.scheduler_block_tokens();
  const std::int64_t settled = (storable_tokens - max_drop_tokens_) / alignment * alignment;
  request.tried_tokens = std::max(request.tried_tokens, settled);
}

void StorePlanner::settle(RequestState& request, std::int64_t boundary_tokens, std::int64_t storable_tokens,
                          Outcome outcome) {
  if (outcome == Outcome::kUnstorable) {
    context_.metrics.unstorable_boundaries += boundary_tokens > request.admitted_tokens ? 1 : 0;
    return;
  }
  context_.metrics.present_blocks += num_present_;
  request.counted_tokens = std::max(request.counted_tokens, boundary_tokens);
  if (outcome == Outcome::kStored || outcome == Outcome::kNothingNew) {
    request.stored_tokens = std::max(request.stored_tokens, boundary_tokens);
    request.open_boundary_tokens = boundary_tokens + max_drop_tokens_ > storable_tokens ? boundary_tokens : 0;
    return;
  }
  context_.metrics.planned_store_blocks += num_new_wants_;
  context_.metrics.dropped_full_blocks += num_new_wants_;
  if (outcome == Outcome::kNoRoom) {
    request.retry_tokens = boundary_tokens + (boundary_tokens - request.stored_tokens);
  }
}

// Boundaries behind the cursor, ascending. A model with align states resumes only where a state was handed off.
std::vector<std::int64_t> StorePlanner::boundaries_to_try(const RequestState& request,
                                                          std::int64_t storable_tokens) const {
  const std::int64_t alignment = context_.geometry.scheduler_block_tokens();
  std::vector<std::int64_t> boundaries;
  if (has_align_states_) {
    for (const BoundaryHandOff& hand_off : request.hand_offs) {
      if (hand_off.boundary_tokens <= storable_tokens) {
        boundaries.push_back(hand_off.boundary_tokens);
      }
    }
    if (request.open_boundary_tokens > 0 && request.open_boundary_tokens <= storable_tokens) {
      boundaries.push_back(request.open_boundary_tokens);
    }
    std::ranges::sort(boundaries);
    boundaries.erase(std::unique(boundaries.begin(), boundaries.end()), boundaries.end());
    return boundaries;
  }
  const std::int64_t first = std::max(request.tried_tokens / alignment * alignment + alignment, alignment);
  for (std::int64_t boundary = first; boundary <= storable_tokens; boundary += alignment) {
    boundaries.push_back(boundary);
  }
  return boundaries;
}

StorePlanner::Outcome StorePlanner::try_boundary(RequestState& request, std::int64_t boundary_tokens,
                                                 std::int64_t storable_tokens, PlannedJob& job) {
  // A state is handed off once: its boundary does not wait.
  const bool waits = !has_align_states_ && boundary_tokens < request.retry_tokens;
  if (!collect(request, boundary_tokens, storable_tokens, waits)) {
    return Outcome::kUnstorable;
  }
  if (waits) {
    return Outcome::kWaits;
  }
  if (wants_.empty()) {
    return Outcome::kNothingNew;
  }
  reserved_.clear();
  if (!context_.cache.reserve(wants_, request.chain, reserved_)) {
    return Outcome::kNoRoom;
  }
  context_.metrics.planned_store_blocks += static_cast<std::int64_t>(wants_.size());
  commit(job);
  return Outcome::kStored;
}

// Windows and states first: where one of them is gone, the long run of full attention is not looked at. In the set it
// comes first all the same, so that it is published, and evicted, last.
bool StorePlanner::collect(const RequestState& request, std::int64_t boundary_tokens, std::int64_t storable_tokens,
                           bool waits) {
  wants_.clear();
  sources_.clear();
  num_present_ = 0;
  num_new_wants_ = 0;
  if (!collect_groups(request, boundary_tokens, storable_tokens, waits, false)) {
    return false;
  }
  const auto num_others = static_cast<std::ptrdiff_t>(wants_.size());
  if (!collect_groups(request, boundary_tokens, storable_tokens, waits, true)) {
    return false;
  }
  std::rotate(wants_.begin(), wants_.begin() + num_others, wants_.end());
  std::rotate(sources_.begin(), sources_.begin() + num_others, sources_.end());
  return true;
}

bool StorePlanner::collect_groups(const RequestState& request, std::int64_t boundary_tokens,
                                  std::int64_t storable_tokens, bool waits, bool full_ones) {
  for (std::uint32_t g = 0; g < context_.geometry.num_groups(); ++g) {
    const GroupIndex group{g};
    if (context_.geometry.offloadable(group) && is_full(context_.geometry.group(group)) == full_ones &&
        !collect_group(request, group, wanted_range(request, group, boundary_tokens, storable_tokens, waits),
                       boundary_tokens)) {
      return false;
    }
  }
  return true;
}

// What a lookup at the boundary must see as far as it is written; at least what a request resuming there needs. Full
// attention goes on where the request's last stored set ended; a boundary that waits only counts what is new.
BlockIndexRange StorePlanner::wanted_range(const RequestState& request, GroupIndex group, std::int64_t boundary_tokens,
                                           std::int64_t storable_tokens, bool waits) const {
  const Geometry& geometry = context_.geometry;
  BlockIndexRange range = geometry.needs(group, boundary_tokens);
  const std::optional<LookupNeed> lookup = geometry.lookup_need(group, boundary_tokens);
  if (lookup && lookup->tail_boundary_tokens <= storable_tokens) {
    range.first_block =
        range.empty() ? lookup->blocks.first_block : std::min(range.first_block, lookup->blocks.first_block);
    range.end_block = std::max(range.end_block, lookup->blocks.end_block);
  }
  if (is_full(geometry.group(group))) {
    const std::int64_t done_tokens = waits ? request.counted_tokens : request.stored_tokens;
    range.first_block = std::max(range.first_block, done_tokens / geometry.span_tokens(group));
  }
  return range;
}

// Between the device's own blocks and what the load brought nothing was written, whatever the table names there.
BlockIndexRange StorePlanner::left_out_by_load(const RequestState& request, GroupIndex group) const {
  const Geometry& geometry = context_.geometry;
  return {request.loaded_from_tokens / geometry.span_tokens(group),
          geometry.needs(group, request.admitted_tokens).first_block};
}

bool StorePlanner::collect_group(const RequestState& request, GroupIndex group, BlockIndexRange range,
                                 std::int64_t boundary_tokens) {
  const std::int64_t span = context_.geometry.span_tokens(group);
  const bool prefix_closed = is_full(context_.geometry.group(group));
  const bool align_state = is_align_state(context_.geometry.group(group));
  const BlockIndexRange left_out = left_out_by_load(request, group);
  const GroupTable table = align_state ? GroupTable{} : context_.engine.block_table(request.id, group);
  for (std::int64_t i = range.first_block; i < range.end_block; ++i) {
    const std::int64_t end_tokens = align_state ? boundary_tokens : (i + 1) * span;
    const OffloadKey key =
        make_offload_key(request.hashes.at_boundary(end_tokens), group, context_.namespace_fingerprint);
    const bool is_new = end_tokens > request.counted_tokens && end_tokens <= boundary_tokens;
    if (context_.cache.find(key, hash_of(key)) != kNoEntry) {
      num_present_ += is_new ? 1 : 0;
      continue;
    }
    const auto index = static_cast<std::size_t>(i);
    const bool readable = index < table.size() && (i < left_out.first_block || i >= left_out.end_block);
    const BlockId positional = readable ? table[index] : kNullBlock;
    const BlockId source = align_state ? handed_off(request, group, boundary_tokens) : positional;
    if (source == kNullBlock) {
      return false;
    }
    num_new_wants_ += is_new ? 1 : 0;
    wants_.push_back(StoreWant{key, context_.class_of_group[group.value()], prefix_closed});
    sources_.push_back(JobBlock{group, source, kNoEntry});
  }
  return true;
}

BlockId StorePlanner::handed_off(const RequestState& request, GroupIndex group, std::int64_t boundary_tokens) {
  const auto found = std::ranges::find_if(request.hand_offs, [&](const BoundaryHandOff& hand_off) {
    return hand_off.group == group && hand_off.boundary_tokens == boundary_tokens;
  });
  return found == request.hand_offs.end() ? kNullBlock : found->block;
}

void StorePlanner::commit(PlannedJob& job) {
  pinned_.clear();
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    sources_[i].entry = reserved_[i];
    pinned_.push_back(sources_[i].block);
  }
  context_.engine.pin(pinned_);
  job.blocks.insert(job.blocks.end(), sources_.begin(), sources_.end());
  job.set_ends.push_back(static_cast<std::uint32_t>(job.blocks.size()));
}

}  // namespace hostkv
