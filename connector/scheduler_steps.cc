// The part of the scheduler side that runs once a step: planning, step metadata, results.

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "connector/scheduler_connector.h"

namespace hostkv {
namespace {

std::string named(RequestId id) {
  return "request " + std::to_string(id.value());
}

bool contains(std::span<const RequestId> ids, RequestId id) {
  return std::ranges::find(ids, id) != ids.end();
}

bool names_only_blocks_of(const PlannedJob& job, const std::vector<FailedBlock>& failed) {
  std::vector<FailedBlock> blocks;
  blocks.reserve(job.blocks.size());
  for (const JobBlock& block : job.blocks) {
    blocks.push_back(FailedBlock{block.group, block.block});
  }
  std::ranges::sort(blocks);
  return std::ranges::all_of(failed,
                             [&](const FailedBlock& named) { return std::ranges::binary_search(blocks, named); });
}

// A failure is never success (R11): a rank that names blocks beside kOk, or blocks that the job does not have, has
// failed all of it.
JobResult taken_seriously(JobResult result, const PlannedJob& job) {
  if (result.status == StatusCode::kOk && !result.failed.empty()) {
    result.status = StatusCode::kInternal;
    result.failed.clear();
  }
  if (!result.failed.empty() && !names_only_blocks_of(job, result.failed)) {
    result.failed.clear();
  }
  return result;
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
    if (!request->admitted || request->load_job) {
      return {StatusCode::kFailedPrecondition,
              "a step schedules " + named(scheduled.id) + ", which " +
                  (request->load_job ? "is being loaded" : "owns no blocks (on_blocks_allocated comes first)")};
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
  forget_preempted(step);
  take_hand_offs(step);
  for (std::size_t i = 0; i < step.scheduled.size(); ++i) {
    const ScheduledRequest& scheduled = step.scheduled[i];
    plan_stores(*scheduled_[i], scheduled.num_computed_tokens + scheduled.num_scheduled_tokens);
  }
  for (const RequestId id : with_hand_offs_) {
    find_request(id)->hand_offs.clear();
  }
  StepMetadata metadata;
  metadata.epoch = epoch_;
  metadata.sequence = ++sequence_;
  for (const JobId id : unsent_) {
    PlannedJob& job = jobs_.at(id);
    job.sent = true;
    StepJob& sent = metadata.jobs.emplace_back();
    sent.id = id;
    sent.direction = job.direction;
    sent.blocks.reserve(job.blocks.size());
    for (const JobBlock& block : job.blocks) {
      sent.blocks.push_back(StepBlock{block.group, block.block, pool_->cache.slot(block.entry)});
    }
  }
  unsent_.clear();
  return encode_step_metadata(metadata);
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
    if (!usable(hand_off, step)) {
      ++metrics_.ignored_hand_offs;
      continue;
    }
    RequestState* request = find_request(hand_off.id);
    if (request->hand_offs.empty()) {
      with_hand_offs_.push_back(hand_off.id);
    }
    request->hand_offs.push_back(hand_off);
  }
}

bool SchedulerConnectorImpl::usable(const BoundaryHandOff& hand_off, const StepInput& step) {
  const RequestState* request = find_request(hand_off.id);
  if (request == nullptr || !request->admitted || request->load_job || preempted(*request, step) ||
      hand_off.block == kNullBlock || hand_off.group.value() >= geometry_.num_groups()) {
    return false;
  }
  const KvCacheGroup& group = geometry_.group(hand_off.group);
  return geometry_.offloadable(hand_off.group) && group.kind == GroupKind::kMamba &&
         group.mamba_mode == MambaMode::kAlign && hand_off.boundary_tokens > 0 &&
         hand_off.boundary_tokens % geometry_.scheduler_block_tokens() == 0 &&
         hand_off.boundary_tokens <= request->hashes.hashed_tokens();
}

void SchedulerConnectorImpl::plan_stores(RequestState& request, std::int64_t storable_tokens) {
  if (!pool_ || request.from_before_reset || !pool_->planner.may_plan(request, storable_tokens)) {
    return;
  }
  PlannedJob job = new_job(Direction::kStore, request.id);
  job.chain = request.chain;
  pool_->planner.plan(request, storable_tokens, job);
  if (job.blocks.empty()) {
    return;
  }
  pinned_device_blocks_ += static_cast<std::int64_t>(job.blocks.size());
  Chain& chain = chains_[request.chain];
  ++chain.jobs_in_flight;
  ++chain.num_jobs;
  for (const JobBlock& block : job.blocks) {
    chain.entries.push_back(block.entry);
  }
  queue_job(std::move(job));
}

PlannedJob SchedulerConnectorImpl::new_job(Direction direction, RequestId request) {
  return PlannedJob{.id = JobId{last_job_ + 1},
                    .direction = direction,
                    .epoch = epoch_,
                    .request = request,
                    .blocks = {},
                    .set_ends = {},
                    .merge = RankMerge(num_ranks_)};
}

PlannedJob& SchedulerConnectorImpl::queue_job(PlannedJob job) {
  ++last_job_;
  const JobId id = job.id;
  unsent_.push_back(id);
  return jobs_.emplace(id, std::move(job)).first->second;
}

void SchedulerConnectorImpl::on_worker_results(std::span<const JobResult> results) {
  for (const JobResult& result : results) {
    const auto at = jobs_.find(result.job);
    if (at == jobs_.end() || !at->second.sent || at->second.epoch != result.epoch ||
        !at->second.merge.add(taken_seriously(result, at->second))) {
      ++metrics_.ignored_results;
      continue;
    }
    if (at->second.merge.complete()) {
      finish_job(at->second);
      jobs_.erase(at);
    }
  }
}

void SchedulerConnectorImpl::finish_job(PlannedJob& job) {
  if (job.epoch != epoch_) {
    abandon_job(job, StatusCode::kCanceled);  // of before a reset: its bytes may be of other weights
  } else if (job.direction == Direction::kStore) {
    finish_store(job);
  } else {
    finish_load(job);
  }
}

// A set whose blocks did not all arrive on all ranks is not published at all; the others are. Tail first: a chain's
// head is evicted last.
void SchedulerConnectorImpl::finish_store(PlannedJob& job) {
  std::vector<bool> bad(job.blocks.size(), false);
  std::uint32_t begin = 0;
  for (const std::uint32_t end : job.set_ends) {
    const bool set_failed =
        std::any_of(job.blocks.begin() + begin, job.blocks.begin() + end, [&](const JobBlock& block) {
          return job.merge.failed(FailedBlock{block.group, block.block});
        });
    std::fill(bad.begin() + begin, bad.begin() + end, set_failed);
    begin = end;
  }
  for (std::size_t i = job.blocks.size(); i > 0; --i) {
    if (bad[i - 1]) {
      pool_->cache.abort(job.blocks[i - 1].entry);
      ++metrics_.dropped_failed_blocks;
    } else {
      pool_->cache.publish(job.blocks[i - 1].entry);
      ++metrics_.stored_blocks;
    }
  }
  release_device_pins(job);
  if (const auto at = chains_.find(job.chain); at != chains_.end()) {
    --at->second.jobs_in_flight;
    order_chain(job.chain);
  }
}

void SchedulerConnectorImpl::finish_load(PlannedJob& job) {
  const StatusCode status = job.merge.status();
  for (std::size_t i = job.blocks.size(); i > 0; --i) {
    const JobBlock& block = job.blocks[i - 1];
    if (status != StatusCode::kOk && job.merge.failed(FailedBlock{block.group, block.block})) {
      pool_->cache.drop(block.entry);  // never offered again until it is stored anew (R11, R12)
      ++metrics_.failed_load_blocks;
    } else {
      ++metrics_.loaded_blocks;
    }
    pool_->cache.unpin(block.entry);
  }
  release_device_pins(job);
  end_load(job, status);
}

void SchedulerConnectorImpl::end_load(const PlannedJob& job, StatusCode status) {
  outcomes_.push_back(LoadOutcome{job.request, status});
  loading_.erase(job.request);
  if (RequestState* request = find_request(job.request); request != nullptr && request->load_job == job.id) {
    request->load_job.reset();
    // After a failure, or a preemption meanwhile, the request looks up again.
    request->admitted = request->admitted && status == StatusCode::kOk;
  }
}

void SchedulerConnectorImpl::abandon_job(PlannedJob& job, StatusCode status) {
  for (std::size_t i = job.blocks.size(); i > 0; --i) {
    const EntryId entry = job.blocks[i - 1].entry;
    if (job.direction == Direction::kStore) {
      pool_->cache.abort(entry);
      ++metrics_.dropped_reset_blocks;
    } else {
      pool_->cache.unpin(entry);
    }
  }
  release_device_pins(job);
  if (job.direction == Direction::kLoad) {
    end_load(job, status);
  }
}

void SchedulerConnectorImpl::drop_unsent_jobs(StatusCode status) {
  for (const JobId id : unsent_) {
    abandon_job(jobs_.at(id), status);
    jobs_.erase(id);
  }
  unsent_.clear();
}

// In one batch, the tail of the chain first: the engine evicts it first.
void SchedulerConnectorImpl::release_device_pins(const PlannedJob& job) {
  std::vector<BlockId> blocks;
  blocks.reserve(job.blocks.size());
  for (auto block = job.blocks.rbegin(); block != job.blocks.rend(); ++block) {
    blocks.push_back(block->block);
  }
  engine_.unpin(blocks);
  pinned_device_blocks_ -= static_cast<std::int64_t>(blocks.size());
}

void SchedulerConnectorImpl::end_chain(std::uint32_t chain) {
  if (const auto at = chains_.find(chain); at != chains_.end()) {
    at->second.ended = true;
    order_chain(chain);
  }
}

// The steps of a long prompt were published one after the other, its head first. Once the chain is whole its blocks are
// put in order: the tail goes first when room is needed.
void SchedulerConnectorImpl::order_chain(std::uint32_t chain) {
  const auto at = chains_.find(chain);
  if (!at->second.ended || at->second.jobs_in_flight > 0) {
    return;
  }
  const Chain& ended = at->second;
  for (std::size_t i = ended.entries.size(); ended.num_jobs > 1 && i > 0; --i) {
    if (pool_->cache.chain_of(ended.entries[i - 1]) == chain) {
      pool_->cache.touch(ended.entries[i - 1]);
    }
  }
  chains_.erase(at);
}

std::vector<LoadOutcome> SchedulerConnectorImpl::take_load_outcomes() {
  return std::exchange(outcomes_, {});
}

Status SchedulerConnectorImpl::check_conservation() const {
  if (!pool_) {
    return {};
  }
  if (Status status = pool_->cache.check_conservation(); !status.ok()) {
    return status;
  }
  std::int64_t device_pins = 0;
  std::uint64_t stores = 0;
  for (const auto& [id, job] : jobs_) {
    device_pins += static_cast<std::int64_t>(job.blocks.size());
    stores += job.direction == Direction::kStore ? job.blocks.size() : 0;
  }
  if (device_pins != pinned_device_blocks_) {
    return {StatusCode::kInternal, "R15: jobs pin " + std::to_string(device_pins) + " device blocks, booked " +
                                       std::to_string(pinned_device_blocks_)};
  }
  const SchedulerMetrics& m = metrics_;
  const std::int64_t ended = m.stored_blocks + m.dropped_full_blocks + m.dropped_failed_blocks + m.dropped_reset_blocks;
  if (m.planned_store_blocks != ended + static_cast<std::int64_t>(stores)) {
    return {StatusCode::kInternal, "R24: planned " + std::to_string(m.planned_store_blocks) + " store blocks, ended " +
                                       std::to_string(ended) + ", in flight " + std::to_string(stores)};
  }
  return {};
}

}  // namespace hostkv
