// The part of the scheduler side that runs once a step: what is stored, and the step's metadata.

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "connector/scheduler_connector.h"
#include "connector/working_geometry.h"

namespace hostkv {
namespace {

std::string named(RequestId id) {
  return "request " + std::to_string(id.value());
}

// The first multiple of `step` behind `tokens`.
std::int64_t behind(std::int64_t tokens, std::int64_t step) {
  return tokens / step * step + step;
}

bool contains(std::span<const RequestId> ids, RequestId id) {
  return std::ranges::find(ids, id) != ids.end();
}

}  // namespace

Status SchedulerConnectorImpl::check_step(const StepInput& step) {
  scheduled_.clear();
  for (const ScheduledRequest& scheduled : step.scheduled) {
    RequestState* request = find_request(scheduled.id);
    scheduled_.push_back(request);
    if (request == nullptr) {
      return {StatusCode::kNotFound, "a step schedules " + named(scheduled.id) + ", which is unknown"};
    }
    if (!request->admitted || request->loading) {
      return {StatusCode::kFailedPrecondition,
              "a step schedules " + named(scheduled.id) + ", which " +
                  (request->loading ? "is being loaded" : "owns no blocks (on_blocks_allocated comes first)")};
    }
    if (scheduled.num_computed_tokens < 0 || scheduled.num_scheduled_tokens < 0 ||
        scheduled.num_scheduled_tokens > (std::int64_t{1} << 40) ||
        scheduled.num_computed_tokens > (std::int64_t{1} << 40)) {
      return {StatusCode::kInvalidArgument, "a step schedules " + std::to_string(scheduled.num_scheduled_tokens) +
                                                " tokens of " + named(scheduled.id) + " behind " +
                                                std::to_string(scheduled.num_computed_tokens) +
                                                "; both must be between 0 and 2^40"};
    }
    if (preempted(*request, step)) {
      return {StatusCode::kInvalidArgument, "a step schedules and preempts " + named(scheduled.id)};
    }
  }
  return {};
}

bool SchedulerConnectorImpl::preempted(const RequestState& request, const StepInput& step) const {
  return request.admitted_step != sequence_ && contains(step.preempted, request.id);
}

Result<std::vector<std::byte>> SchedulerConnectorImpl::build_step_metadata(const StepInput& step) {
  if (Status status = check_alive(); !status.ok()) {
    return error(std::move(status));
  }
  if (Status status = check_step(step); !status.ok()) {
    return error(std::move(status));
  }
  release_untaken_device_blocks();
  forget_preempted(step);
  take_hand_offs(step);
  for (std::size_t i = 0; i < step.scheduled.size(); ++i) {
    const ScheduledRequest& scheduled = step.scheduled[i];
    if (!scheduled_[i]->has_run) {
      begin_run(*scheduled_[i], scheduled.num_computed_tokens);
    }
    plan_stores(*scheduled_[i], scheduled.num_computed_tokens + scheduled.num_scheduled_tokens,
                StorePlanner::Moment::kStep);
    note_damage(*scheduled_[i], scheduled.num_computed_tokens + scheduled.num_scheduled_tokens);
  }
  for (std::size_t i = 0; withheld_ && i < step.scheduled.size(); ++i) {
    const ScheduledRequest& scheduled = step.scheduled[i];
    judge_offload_limit(*scheduled_[i], scheduled.num_computed_tokens + scheduled.num_scheduled_tokens);
  }
  plan_victims();
  for (const RequestId id : with_hand_offs_) {
    find_request(id)->hand_offs.clear();
  }
  return write_metadata();
}

// What was planned since the last step, straight into the message.
std::vector<std::byte> SchedulerConnectorImpl::write_metadata() {
  std::size_t num_blocks = 0;
  for (const JobId id : unsent_) {
    num_blocks += jobs_.at(id).blocks.size();
  }
  started_loads_.clear();
  StepMetadataWriter writer(epoch_, ++sequence_, unsent_.size(), num_blocks);
  for (const JobId id : unsent_) {
    PlannedJob& job = jobs_.at(id);
    job.sent = true;
    if (job.direction != Direction::kStore) {
      started_loads_.push_back(StartedLoad{job.request, id});
    }
    writer.begin_job(id, job.direction, job.blocks.size());
    for (const JobBlock& block : job.blocks) {
      const SlotId slot = block.entry == kNoEntry ? SlotId{block.source.value()} : pool_->cache.slot(block.entry);
      writer.add_block(StepBlock{block.group, block.block, slot});
    }
  }
  unsent_.clear();
  return writer.finish();
}

std::vector<StartedLoad> SchedulerConnectorImpl::take_started_loads() {
  return std::exchange(started_loads_, {});
}

void SchedulerConnectorImpl::forget_preempted(const StepInput& step) {
  for (const RequestId id : step.preempted) {
    RequestState* request = find_request(id);
    if (request != nullptr && preempted(*request, step)) {
      lose_blocks(*request);
    }
  }
}

// Consumed in the step that carries them: whatever cannot be used now is lost, and counted.
void SchedulerConnectorImpl::take_hand_offs(const StepInput& step) {
  with_hand_offs_.clear();
  for (const BoundaryHandOff& hand_off : step.hand_offs) {
    RequestState* request = find_request(hand_off.id);
    if (!usable(hand_off) || preempted(*request, step)) {
      ++metrics_.ignored_hand_offs;
      continue;
    }
    if (request->hand_offs.empty()) {
      with_hand_offs_.push_back(hand_off.id);
    }
    request->hand_offs.push_back(hand_off);
  }
}

// A block that does not carry the key of its boundary any more was taken back by the engine in the same pass.
bool SchedulerConnectorImpl::usable(const BoundaryHandOff& hand_off) {
  const RequestState* request = find_request(hand_off.id);
  if (request == nullptr || !request->admitted || request->loading || hand_off.block == kNullBlock ||
      hand_off.group.value() >= geometry_.num_groups()) {
    return false;
  }
  return geometry_.offloadable(hand_off.group) && is_align_state(geometry_.group(hand_off.group)) &&
         hand_off.boundary_tokens > 0 && hand_off.boundary_tokens % geometry_.hit_alignment_tokens() == 0 &&
         hand_off.boundary_tokens <= request->hashes.hashed_tokens() &&
         engine_.carries_key(hand_off.block, hand_off.group, request->hashes.at_boundary(hand_off.boundary_tokens));
}

// What an engine with EngineTraits::damages_fine_hits computes behind a device hit that ends inside a block is not
// kept, and neither is what others compute behind a device hit on that. A load writes its last block as a whole.
void SchedulerConnectorImpl::begin_run(RequestState& request, std::int64_t num_computed_tokens) const {
  request.has_run = true;
  request.first_computed_tokens = num_computed_tokens;
  request.damaged_tokens = num_computed_tokens;
  if (!damaged_) {
    return;
  }
  const bool loaded = request.admitted_tokens > 0;
  for (std::uint32_t g = 0; g < geometry_.num_groups() && !loaded; ++g) {
    const bool ends_inside = num_computed_tokens % geometry_.span_tokens(GroupIndex{g}) != 0;
    request.damaged = request.damaged || (ends_inside && geometry_.offloadable(GroupIndex{g}));
  }
  request.damaged = request.damaged || any_damaged(request, loaded ? request.loaded_from_tokens : num_computed_tokens);
  request.tainted = request.tainted || request.damaged;
}

bool SchedulerConnectorImpl::any_damaged(const RequestState& request, std::int64_t end_tokens) const {
  if (!damaged_ || damaged_->empty()) {
    return false;
  }
  const std::int64_t step = geometry_.hash_block_tokens();
  const std::int64_t end = std::min(end_tokens, request.hashes.hashed_tokens());
  for (std::int64_t boundary = step; boundary <= end; boundary += step) {
    if (damaged_->contains(request.hashes.at_boundary(boundary))) {
      return true;
    }
  }
  return false;
}

// The engine caches what the request has computed, and hands it to others as it hands out what is right.
void SchedulerConnectorImpl::note_damage(RequestState& request, std::int64_t computed_tokens) {
  if (!request.damaged) {
    return;
  }
  const std::int64_t end = std::min(computed_tokens, request.hashes.hashed_tokens());
  add_damaged(request, request.damaged_tokens, end);
  request.damaged_tokens = std::max(request.damaged_tokens, end);
  if (damaged_->is_due()) {
    forget_damage();
  }
}

// Of tokens [begin, end).
void SchedulerConnectorImpl::add_damaged(const RequestState& request, std::int64_t begin_tokens,
                                         std::int64_t end_tokens) {
  const std::int64_t step = geometry_.hash_block_tokens();
  for (std::int64_t boundary = behind(begin_tokens, step); boundary <= end_tokens; boundary += step) {
    damaged_->add(request.hashes.at_boundary(boundary));
  }
}

// What the engine has dropped.
void SchedulerConnectorImpl::forget_damage() {
  damaged_->keep_cached(engine_);
  note_living_damage();
  damaged_->settle();
}

// The same of what this request is about to compute, or to be given.
void SchedulerConnectorImpl::forget_damage_of(const RequestState& request) {
  std::vector<std::byte> marked;
  const std::int64_t step = geometry_.hash_block_tokens();
  for (std::int64_t boundary = step; boundary <= request.hashes.hashed_tokens(); boundary += step) {
    if (const auto hash = request.hashes.at_boundary(boundary); damaged_->contains(hash)) {
      marked.insert(marked.end(), hash.begin(), hash.end());
    }
  }
  if (!marked.empty()) {
    damaged_->forget_uncached(engine_, marked, request.hashes.hash_size_bytes);
    note_living_damage();
  }
}

// The engine may cache the blocks of living requests later than they are computed.
void SchedulerConnectorImpl::note_living_damage() {
  for (const auto& [id, request] : requests_) {
    if (request.admitted && request.damaged) {
      add_damaged(request, request.first_computed_tokens,
                  std::min(request.damaged_tokens, request.hashes.hashed_tokens()));
    }
  }
}

void SchedulerConnectorImpl::plan_stores(RequestState& request, std::int64_t storable_tokens,
                                         StorePlanner::Moment moment) {
  if (!pool_ || request.tainted || !pool_->planner.may_plan(request, storable_tokens, moment)) {
    return;
  }
  PlannedJob job = new_job(Direction::kStore, request.id);
  job.chain = request.chain;
  pool_->planner.plan(request, storable_tokens, moment, job);
  if (job.blocks.empty()) {
    return;
  }
  pinned_device_blocks_ += std::ssize(job.blocks);
  Chain& chain = chains_[request.chain];
  ++chain.jobs_in_flight;
  ++chain.num_jobs;
  for (const JobBlock& block : job.blocks) {
    chain.entries.push_back(block.entry);
  }
  queue_job(std::move(job));
}

// What the request computes or loads behind its limit is withheld from lazy stores, what it uses before it is not.
void SchedulerConnectorImpl::judge_offload_limit(RequestState& request, std::int64_t computed_tokens) {
  const std::int64_t limit = request.max_offload_tokens;
  if (withheld_->empty() && limit == kNoOffloadLimit) {
    return;
  }
  const std::int64_t end = std::min(computed_tokens, request.hashes.hashed_tokens());
  const std::int64_t step = geometry_.hash_block_tokens();
  for (std::int64_t boundary = behind(request.judged_tokens, step); boundary <= std::min(end, limit);
       boundary += step) {
    withheld_->remove(request.hashes.at_boundary(boundary));
  }
  withhold(request, request.judged_tokens, end);
  request.judged_tokens = std::max(request.judged_tokens, end);
  if (withheld_->is_due()) {
    forget_withheld();
  }
}

// Of tokens [begin, end) those behind the limit. A device hit was computed by others.
void SchedulerConnectorImpl::withhold(const RequestState& request, std::int64_t begin_tokens, std::int64_t end_tokens) {
  if (request.max_offload_tokens >= end_tokens || (request.admitted_tokens == 0 && !request.has_run)) {
    return;
  }
  const std::int64_t own = request.admitted_tokens > 0 ? request.loaded_from_tokens : request.first_computed_tokens;
  const std::int64_t step = geometry_.hash_block_tokens();
  std::int64_t boundary = behind(std::max({begin_tokens, request.max_offload_tokens, own}), step);
  for (; boundary <= end_tokens; boundary += step) {
    withheld_->add(request.hashes.at_boundary(boundary));
  }
}

// The engine may cache the blocks of living requests later than they are computed.
void SchedulerConnectorImpl::forget_withheld() {
  withheld_->keep_cached(engine_);
  for (const auto& [id, request] : requests_) {
    withhold(request, 0, request.judged_tokens);
  }
  withheld_->settle();
}

void SchedulerConnectorImpl::plan_victims() {
  if (!pool_ || options_.store_mode != StoreMode::kLazy || !pool_->victims.begin_step() || !trusts_device_) {
    return;
  }
  PlannedJob job = new_job(Direction::kStore, RequestId{});
  job.of_victims = true;
  pool_->victims.plan(job);
  if (!job.blocks.empty()) {
    pinned_device_blocks_ += std::ssize(job.blocks);
    queue_job(std::move(job));
  }
}

PlannedJob SchedulerConnectorImpl::new_job(Direction direction, RequestId request) const {
  PlannedJob job{.id = {}, .request = request, .blocks = {}, .set_ends = {}, .merge = RankMerge(num_ranks_)};
  job.direction = direction;
  job.epoch = epoch_;
  return job;
}

void SchedulerConnectorImpl::queue_job(PlannedJob job) {
  job.id = JobId{++last_job_};
  unsent_.push_back(job.id);
  jobs_.emplace(job.id, std::move(job));
}

}  // namespace hostkv
