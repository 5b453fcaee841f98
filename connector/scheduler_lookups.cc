// The part of the scheduler side that answers lookups and turns their promises into loads.

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>

#include "connector/scheduler_connector.h"

namespace hostkv {
namespace {

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40U;
constexpr std::int64_t kMostRefusedOffers = 2;

std::string named(RequestId id) {
  return "request " + std::to_string(id.value());
}

Status unknown_request(RequestId id) {
  return {StatusCode::kNotFound, named(id) + " is unknown (finished, or never added)"};
}

}  // namespace

Status SchedulerConnectorImpl::check_lookup(const RequestState& request, std::int64_t num_tokens,
                                            std::int64_t num_local_tokens) const {
  const std::int64_t alignment = geometry_.hit_alignment_tokens();
  if (num_tokens < 1 || num_tokens > kMaxTokens) {
    return {StatusCode::kInvalidArgument,
            named(request.id) + ": num_tokens is " + std::to_string(num_tokens) + "; 1 .. 2^40 are allowed"};
  }
  if (num_local_tokens < 0 || num_local_tokens > num_tokens || num_local_tokens % alignment != 0) {
    return {StatusCode::kInvalidArgument, named(request.id) + ": " + std::to_string(num_local_tokens) +
                                              " local tokens of " + std::to_string(num_tokens) + "; a multiple of " +
                                              std::to_string(alignment) +
                                              " between 0 and the number of tokens is needed"};
  }
  if (request.loading) {
    return {StatusCode::kFailedPrecondition,
            named(request.id) + " is being loaded; it looks up again when the outcome was a failure"};
  }
  return {};
}

Result<MatchResult> SchedulerConnectorImpl::match_prefix(RequestId id, std::int64_t num_tokens,
                                                         std::int64_t num_local_tokens, bool has_more_hashes) {
  if (Status status = check_alive(); !status.ok()) {
    return error(std::move(status));
  }
  RequestState* request = find_request(id);
  if (request == nullptr) {
    return error(unknown_request(id));
  }
  if (Status status = check_lookup(*request, num_tokens, num_local_tokens); !status.ok()) {
    return error(std::move(status));
  }
  lose_blocks(*request);  // an engine that asks for a running request has taken its blocks away
  drop_promise(*request);
  if (damaged_ && !damaged_->empty()) {
    if (has_more_hashes) {
      return MatchResult{MatchResult::Kind::kMoreHashes};
    }
    forget_damage_of(*request);  // before the engine caches new blocks under the same hashes
  }
  if (!pool_ || request->skip_reading_cache || request->refused_offers >= kMostRefusedOffers) {
    return MatchResult{};
  }
  PrefixSearch::Answer answer;
  if (!request->waits_for_loads || !loads_fill_their_share()) {
    request->waits_for_loads = false;
    answer = find_and_promise(*request, num_tokens, num_local_tokens, has_more_hashes);
    if (has_more_hashes && answer.hangs_on_hashes) {
      return MatchResult{MatchResult::Kind::kMoreHashes};
    }
  }
  if (request->waits_for_loads) {
    ++metrics_.delayed_lookups;
    return MatchResult{MatchResult::Kind::kRetry};
  }
  count_lookup(*request, num_tokens - num_local_tokens);
  if (answer.boundary_tokens <= num_local_tokens) {
    return MatchResult{MatchResult::Kind::kMiss, 0, answer.shared_prefix_tokens};
  }
  return MatchResult{MatchResult::Kind::kHit, answer.boundary_tokens - num_local_tokens, answer.shared_prefix_tokens};
}

// Never without a load in flight: its end is what the others wait for.
bool SchedulerConnectorImpl::loads_fill_their_share() const {
  const std::int64_t num_blocks = engine_.num_blocks();
  return !loads_.empty() && num_blocks > 0 &&
         static_cast<double>(loading_blocks_) > options_.max_loading_share * static_cast<double>(num_blocks);
}

bool SchedulerConnectorImpl::may_use_device(const RequestState& request) const {
  return trusts_device_ && !traits_.damages_fine_hits && !request.avoids_device;
}

// With the device where that is possible, else with the host alone. What is found is promised, unless there are more
// hashes and the answer hangs on them.
PrefixSearch::Answer SchedulerConnectorImpl::find_and_promise(RequestState& request, std::int64_t num_tokens,
                                                              std::int64_t num_local_tokens, bool has_more_hashes) {
  PrefixSearch& search = pool_->search;
  const bool skips_device = std::exchange(request.device_untaken, false);
  // An engine that takes fewer tokens than offered goes by scheduler blocks.
  search.set_boundary_step(request.refused_offers == 0 ? geometry_.hit_alignment_tokens()
                                                       : geometry_.scheduler_block_tokens());
  for (const bool use_device : {true, false}) {
    if (use_device && (skips_device || !may_use_device(request))) {
      continue;
    }
    search.use_device(use_device);
    const PrefixSearch::Answer answer = search.longest_boundary(request.hashes, num_tokens, num_local_tokens);
    if (has_more_hashes && answer.hangs_on_hashes) {
      request.device_untaken = skips_device;
      return answer;
    }
    if (answer.boundary_tokens <= num_local_tokens) {
      return answer;
    }
    if (loads_fill_their_share()) {
      request.waits_for_loads = true;
      return answer;
    }
    std::vector<PromisedBlock> blocks = std::exchange(spare_blocks_, {});
    blocks.clear();
    if (!search.append_needed(request.hashes, num_local_tokens, answer.boundary_tokens, blocks)) {
      spare_blocks_ = std::move(blocks);
      continue;
    }
    make_promise(request, num_local_tokens, answer.boundary_tokens, std::move(blocks));
    // The blocks of the device that it pins must fit beside those that the load will fill.
    if (request.promise->num_device_blocks == 0 || engine_.num_free_blocks() >= std::ssize(request.promise->blocks)) {
      return answer;
    }
    drop_promise(request);
  }
  return {num_local_tokens, 0, false};
}

void SchedulerConnectorImpl::make_promise(RequestState& request, std::int64_t num_local_tokens,
                                          std::int64_t boundary_tokens, std::vector<PromisedBlock> blocks) {
  Promise& promise = request.promise.emplace();
  promise.num_local_tokens = num_local_tokens;
  promise.boundary_tokens = boundary_tokens;
  promise.blocks = std::move(blocks);
  entries_.clear();
  device_blocks_.clear();
  for (const PromisedBlock& block : promise.blocks) {
    if (block.entry != kNoEntry) {
      entries_.push_back(block.entry);
    } else {
      device_blocks_.push_back(block.device_block);
    }
  }
  pool_->cache.pin_all(entries_);
  promise.num_device_blocks = std::ssize(device_blocks_);
  if (!device_blocks_.empty()) {
    engine_.pin(device_blocks_);
    pinned_device_blocks_ += promise.num_device_blocks;
    promise.pins_device = true;
    list_device_promise(request);
  }
}

void SchedulerConnectorImpl::count_lookup(RequestState& request, std::int64_t queried_tokens) {
  ++metrics_.lookups;
  if (request.counted_lookup) {
    return;
  }
  request.counted_lookup = true;
  metrics_.queried_tokens += queried_tokens;
  for (std::size_t g = 0; g < lost_tokens_.size(); ++g) {
    lost_tokens_[g] += pool_->search.lost_tokens()[g];
  }
}

Status SchedulerConnectorImpl::cancel_match(RequestId id) {
  if (Status status = check_alive(); !status.ok()) {
    return status;
  }
  RequestState* request = find_request(id);
  if (request == nullptr) {
    return unknown_request(id);
  }
  drop_promise(*request);
  return {};
}

void SchedulerConnectorImpl::drop_promise(RequestState& request) {
  if (!request.promise) {
    return;
  }
  if (request.promise->pins_device) {
    unlist_device_promise(*request.promise);
    release_device_blocks(*request.promise);
  }
  entries_.clear();
  for (auto block = request.promise->blocks.rbegin(); block != request.promise->blocks.rend(); ++block) {
    if (block->entry != kNoEntry) {
      entries_.push_back(block->entry);
    }
  }
  pool_->cache.unpin_all(entries_);
  end_promise(request);
}

// The memory of its list is kept for the next one.
void SchedulerConnectorImpl::end_promise(RequestState& request) {
  if (request.promise->blocks.capacity() > spare_blocks_.capacity()) {
    spare_blocks_ = std::move(request.promise->blocks);
  }
  request.promise.reset();
}

void SchedulerConnectorImpl::list_device_promise(RequestState& request) {
  request.promise->device_place = static_cast<std::uint32_t>(device_promises_.size());
  device_promises_.push_back(request.id);
}

// The last of the list takes its place.
void SchedulerConnectorImpl::unlist_device_promise(const Promise& promise) {
  const RequestId last = device_promises_.back();
  find_request(last)->promise->device_place = promise.device_place;
  device_promises_[promise.device_place] = last;
  device_promises_.pop_back();
}

void SchedulerConnectorImpl::release_device_blocks(Promise& promise) {
  std::vector<BlockId> device_blocks;
  for (auto block = promise.blocks.rbegin(); block != promise.blocks.rend(); ++block) {
    if (block->entry == kNoEntry) {
      device_blocks.push_back(block->device_block);
    }
  }
  engine_.unpin(device_blocks);
  pinned_device_blocks_ -= promise.num_device_blocks;
  promise.pins_device = false;
}

// A promise that was not taken in its pass gives the engine its blocks back: running requests come first.
void SchedulerConnectorImpl::release_untaken_device_blocks() {
  for (const RequestId id : device_promises_) {
    RequestState& request = *find_request(id);
    release_device_blocks(*request.promise);
    request.device_untaken = true;
  }
  device_promises_.clear();
}

Status SchedulerConnectorImpl::check_allocation(const RequestState& request, std::span<const GroupTable> tables,
                                                std::int64_t num_external_tokens) const {
  if (tables.size() != geometry_.num_groups()) {
    return {StatusCode::kInvalidArgument, named(request.id) + ": tables of " + std::to_string(tables.size()) +
                                              " groups; the geometry has " + std::to_string(geometry_.num_groups())};
  }
  if (request.loading) {
    return {StatusCode::kFailedPrecondition,
            named(request.id) + " is being loaded; its blocks cannot change until the outcome was taken"};
  }
  const std::int64_t promised =
      request.promise ? request.promise->boundary_tokens - request.promise->num_local_tokens : 0;
  if (num_external_tokens < 0 || num_external_tokens > promised) {
    return {StatusCode::kInvalidArgument, named(request.id) + ": " + std::to_string(num_external_tokens) +
                                              " external tokens allocated; 0 .. " + std::to_string(promised) +
                                              " are allowed (what was promised; 0 drops the promise)"};
  }
  return {};
}

Status SchedulerConnectorImpl::on_blocks_allocated(RequestId id, std::span<const GroupTable> tables,
                                                   std::int64_t num_external_tokens) {
  if (Status status = check_alive(); !status.ok()) {
    return status;
  }
  RequestState* request = find_request(id);
  if (request == nullptr) {
    return unknown_request(id);
  }
  if (Status status = check_allocation(*request, tables, num_external_tokens); !status.ok()) {
    return status;
  }
  if (num_external_tokens == 0) {
    begin_admission(*request);
    drop_promise(*request);
    return {};
  }
  const std::int64_t local = request->promise->num_local_tokens;
  const std::int64_t boundary = local + num_external_tokens;
  // The promise holds where the engine takes all of it in the same pass. It may take fewer tokens, or later, when its
  // own blocks are not pinned any more: then they are looked up again.
  const bool holds = request->promise->boundary_tokens == boundary &&
                     (request->promise->num_device_blocks == 0 || request->promise->pins_device);
  std::vector<PromisedBlock> blocks;
  if (!holds) {
    pool_->search.use_device(may_use_device(*request));
  }
  const bool found = holds || pool_->search.assemble(request->hashes, local, boundary, blocks);
  if (found) {
    if (Status status = check_targets(*request, tables, holds ? request->promise->blocks : blocks); !status.ok()) {
      return status;
    }
  }
  begin_admission(*request);
  request->admitted_tokens = boundary;
  request->loaded_from_tokens = local;
  if (!found) {
    request->refused_offers += request->promise->boundary_tokens == boundary ? 0 : 1;
    end_load_at_once(*request, StatusCode::kUnavailable);
    return {};
  }
  if (!holds) {
    drop_promise(*request);
    make_promise(*request, local, boundary, std::move(blocks));
  }
  plan_load(*request, tables);
  return {};
}

// A load fills real blocks only.
Status SchedulerConnectorImpl::check_targets(const RequestState& request, std::span<const GroupTable> tables,
                                             std::span<const PromisedBlock> blocks) const {
  for (const PromisedBlock& block : blocks) {
    const GroupTable table = tables[block.group.value()];
    const std::size_t index = block.block_index;
    if (index >= table.size() || table[index] == kNullBlock) {
      return {StatusCode::kInvalidArgument, named(request.id) + ": " + geometry_.group_label(block.group) +
                                                " has no block at index " + std::to_string(index) +
                                                ", which the load fills"};
    }
  }
  return check_copies(request, tables, blocks);
}

// A device copy reads a block while others are filled: no target may be a source, or another's target.
Status SchedulerConnectorImpl::check_copies(const RequestState& request, std::span<const GroupTable> tables,
                                            std::span<const PromisedBlock> blocks) const {
  std::unordered_set<BlockId> taken;
  for (const PromisedBlock& block : blocks) {
    if (block.entry == kNoEntry) {
      taken.insert(block.device_block);
    }
  }
  if (taken.empty()) {
    return {};
  }
  for (const PromisedBlock& block : blocks) {
    const BlockId target = tables[block.group.value()][block.block_index];
    if (!taken.insert(target).second) {
      return {StatusCode::kInvalidArgument, named(request.id) + ": block " + std::to_string(target.value()) +
                                                " at index " + std::to_string(block.block_index) + " of " +
                                                geometry_.group_label(block.group) +
                                                " is filled by the load and is also its source or filled twice"};
    }
  }
  return {};
}

void SchedulerConnectorImpl::begin_admission(RequestState& request) {
  if (request.admitted) {
    return;
  }
  request.admitted = true;
  request.load_failed = false;
  request.tainted = false;
  request.damaged = false;
  request.has_run = false;
  request.admitted_step = sequence_;
  request.counted_lookup = false;
  request.admitted_tokens = 0;
  request.loaded_from_tokens = 0;
  request.first_computed_tokens = 0;
  request.judged_tokens = 0;
  request.damaged_tokens = 0;
  request.stores = {};
  end_chain(request.chain);  // of an admission whose load has failed
  request.chain = ++last_chain_;
  if (pool_) {
    pool_->cache.open_chain(request.chain);
  }
}

// From the host and from the device in a job each; together they are the load.
void SchedulerConnectorImpl::plan_load(RequestState& request, std::span<const GroupTable> tables) {
  Promise& promise = *request.promise;
  metrics_.hit_tokens += promise.boundary_tokens - promise.num_local_tokens;
  if (promise.blocks.empty()) {  // nothing before this boundary is ever read again, so nothing is copied
    end_load_at_once(request, StatusCode::kOk);
    return;
  }
  PlannedJob load = new_job(Direction::kLoad, request.id);
  PlannedJob copy = new_job(Direction::kDeviceCopy, request.id);
  device_blocks_.clear();
  load.blocks.reserve(promise.blocks.size() - static_cast<std::size_t>(promise.num_device_blocks));
  copy.blocks.reserve(static_cast<std::size_t>(promise.num_device_blocks));
  for (const PromisedBlock& block : promise.blocks) {
    const BlockId target = tables[block.group.value()][block.block_index];
    PlannedJob& job = block.entry == kNoEntry ? copy : load;
    job.blocks.push_back(JobBlock{block.group, target, block.entry, block.device_block});
    device_blocks_.push_back(target);
  }
  engine_.pin(device_blocks_);  // the promise's other pins go over to the jobs
  pinned_device_blocks_ += std::ssize(device_blocks_);
  loading_blocks_ += std::ssize(device_blocks_);
  metrics_.planned_load_blocks += std::ssize(device_blocks_);
  metrics_.planned_device_copies += std::ssize(copy.blocks);
  if (promise.pins_device) {
    unlist_device_promise(promise);
  }
  end_promise(request);
  request.loading = true;
  Load& together = loads_[request.id];
  together = {};
  for (PlannedJob* job : {&load, &copy}) {
    if (!job->blocks.empty()) {
      ++together.jobs_in_flight;
      queue_job(std::move(*job));
    }
  }
}

void SchedulerConnectorImpl::end_load_at_once(RequestState& request, StatusCode status) {
  drop_promise(request);
  outcomes_.push_back(LoadOutcome{request.id, status});
  request.admitted = request.admitted && status == StatusCode::kOk;
}

}  // namespace hostkv
