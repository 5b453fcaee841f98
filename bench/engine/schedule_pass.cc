// One pass of the scheduler: which request computes how many tokens in this step.

#include <algorithm>
#include <utility>

#include "bench/engine/payload.h"
#include "bench/engine/scheduler.h"

namespace hostkv::bench {

Result<StepPlan> Scheduler::plan_step() {
  StepPlan plan;
  plan.number = ++num_planned_steps_;
  budget_tokens_ = config_.max_batched_tokens;
  waits_for_frees_ = false;
  cache_.begin_pass();
  if (Status status = schedule_running(plan); !status.ok()) return error(std::move(status));
  bool is_stopped = !plan.preempted.empty() || waits_for_frees_;
  if (Status status = admit_queue(loaded_, plan, is_stopped); !status.ok()) return error(std::move(status));
  if (Status status = admit_queue(waiting_, plan, is_stopped); !status.ok()) return error(std::move(status));
  const bool is_waiting =
      !running_.empty() || !loading_.empty() || pool_.num_pinned_only() > 0 || !deferred_frees_.empty();
  plan.copies = cache_.copies();
  plan.hand_offs = cache_.hand_offs();
  // Who was preempted in this pass has left its blocks to those that are admitted in the next one.
  if (plan.scheduled.empty() && plan.preempted.empty() && !is_waiting) free_a_claim(plan);
  return plan;
}

Status Scheduler::admit_loads(StepPlan& plan) {
  bool is_stopped = !plan.preempted.empty() || waits_for_frees_;
  const Status status = admit_queue(loaded_, plan, is_stopped);
  plan.copies = cache_.copies();
  plan.hand_offs = cache_.hand_offs();
  return status;
}

Status Scheduler::schedule_running(StepPlan& plan) {
  for (std::size_t i = 0; i < running_.size() && budget_tokens_ > 0; ++i) {
    Request& request = *running_[i];
    const std::int64_t num_tokens = next_chunk(request, request.num_planned_tokens);
    if (num_tokens == 0) continue;
    const ChunkPlan chunk = plan_chunk(request, num_tokens);
    if (!make_room(request, {chunk.end_tokens, chunk.num_drafts, chunk.checkpoint_tokens}, plan)) break;
    if (Status status = record_chunk(request, chunk, plan); !status.ok()) return status;
  }
  return {};
}

// False: the request cannot run in this step; it may have been preempted itself.
bool Scheduler::make_room(Request& request, const ChunkEnd& end, StepPlan& plan) {
  while (!cache_.grow(request, end)) {
    // Blocks that only copies keep come back by themselves: waiting is cheaper than computing again.
    if (pool_.num_pinned_only() > 0) return false;
    // So do those that a step in flight uses. Nobody else takes them before.
    waits_for_frees_ = !deferred_frees_.empty();
    if (waits_for_frees_) return false;
    Request& victim = youngest_owner();
    // So do those of a load in flight: once it has ended, its request may be the younger one.
    if (&victim == &request && !loading_.empty()) return false;
    preempt(victim, plan);
    if (&victim == &request) return false;
  }
  return true;
}

// REQUIRES: someone runs. A load in flight cannot be stopped, so its request is no candidate.
Request& Scheduler::youngest_owner() const {
  Request* youngest = running_.back();
  if (!loaded_.empty() && youngest->id < loaded_.back()->id) youngest = loaded_.back();
  return *youngest;
}

Status Scheduler::admit_queue(std::deque<Request*>& queue, StepPlan& plan, bool& is_stopped) {
  std::size_t i = 0;
  while (!is_stopped && i < queue.size() && budget_tokens_ > 0 && std::ssize(running_) < config_.max_running_requests) {
    Request& request = *queue[i];
    const Result<Admission> admission =
        request.state == RequestState::kLoaded ? admit_loaded(request, plan) : admit(request, plan);
    if (!admission) return admission.error();
    if (*admission == Admission::kAdmitted) queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(i));
    if (*admission == Admission::kSkipped) ++i;
    is_stopped = *admission == Admission::kStopped;
  }
  return {};
}

Result<MatchResult> Scheduler::match_host(const Request& request, std::int64_t num_local_tokens) {
  if (connector_ == nullptr) return MatchResult{};
  return connector_->match_prefix(request.id, request.num_tokens(), num_local_tokens);
}

Status Scheduler::tell_allocated(const Request& request, std::int64_t num_external_tokens) {
  if (connector_ == nullptr) return {};
  const std::vector<GroupTable> tables(request.tables.begin(), request.tables.end());
  return connector_->on_blocks_allocated(request.id, tables, num_external_tokens);
}

Result<Scheduler::Admission> Scheduler::admit(Request& request, StepPlan& plan) {
  PrefixHit hit;
  hit.groups.resize(geometry_.num_groups());
  const bool reads_cache = geometry_.spec().prefix_caching && !request.skip_reading_cache;
  if (reads_cache) hit = find_longest_prefix(geometry_, pool_, request);
  // The connector is asked behind whole scheduler blocks only; what the device has behind them is left for more.
  const std::int64_t local =
      hit.boundary_tokens / geometry_.scheduler_block_tokens() * geometry_.scheduler_block_tokens();
  const Result<MatchResult> match = match_host(request, local);
  if (!match) return error(match.error());
  if (match->kind == MatchResult::Kind::kRetry) return Admission::kSkipped;
  std::int64_t num_external = external_tokens(request, local, match->num_external_tokens);
  if (local + num_external <= hit.boundary_tokens) num_external = 0;
  if (num_external > 0) hit.cut(geometry_, local);
  request.junction_tokens = std::max(hit.junction_tokens, match->shared_prefix_tokens);
  request.device_hit_tokens = hit.boundary_tokens;
  request.host_hit_tokens = num_external;
  request.own_start_tokens = hit.boundary_tokens + num_external;
  if (num_external > 0) return start_load(request, hit, num_external, plan);

  if (cache_.waits_for_forward(hit)) return Admission::kStopped;
  const std::int64_t num_tokens = next_chunk(request, hit.boundary_tokens);
  if (num_tokens == 0) return Admission::kStopped;
  // Who was preempted comes back when there is room for it, not to be preempted again by the next block of the others.
  const BlockReserve reserve = request.report.num_preemptions > 0 ? reserve_for(request) : BlockReserve{};
  request.begin_at(hit.boundary_tokens);
  const ChunkPlan chunk = plan_chunk(request, num_tokens);
  if (!cache_.admit(request, hit, 0, {chunk.end_tokens, chunk.num_drafts, chunk.checkpoint_tokens}, reserve, nullptr)) {
    request.begin_at(0);
    return Admission::kStopped;
  }
  if (Status status = tell_allocated(request, 0); !status.ok()) return error(std::move(status));
  if (Status status = run(request, chunk, plan); !status.ok()) return error(std::move(status));
  return Admission::kAdmitted;
}

std::int64_t Scheduler::external_tokens(const Request& request, std::int64_t local, std::int64_t offered) const {
  if (!config_.cap_external || offered == 0) return offered;
  return std::clamp<std::int64_t>(config_.cap_external(request.id, local, offered), 0, offered);
}

Result<Scheduler::Admission> Scheduler::start_load(Request& request, const PrefixHit& hit, std::int64_t num_external,
                                                   StepPlan& plan) {
  const std::int64_t boundary = hit.boundary_tokens + num_external;
  if (!cache_.admit(request, hit, num_external, {boundary, 0, 0}, reserve_for(request), &plan.load_targets)) {
    return Admission::kStopped;
  }
  if (Status status = tell_allocated(request, num_external); !status.ok()) return error(std::move(status));
  request.state = RequestState::kWaitingForLoad;
  loading_.push_back(&request);
  return Admission::kAdmitted;
}

Result<Scheduler::Admission> Scheduler::admit_loaded(Request& request, StepPlan& plan) {
  const std::int64_t num_tokens = next_chunk(request, request.num_planned_tokens);
  if (num_tokens == 0) return Admission::kStopped;
  const ChunkPlan chunk = plan_chunk(request, num_tokens);
  if (!cache_.grow(request, {chunk.end_tokens, chunk.num_drafts, chunk.checkpoint_tokens})) return Admission::kStopped;
  if (Status status = tell_allocated(request, 0); !status.ok()) return error(std::move(status));
  if (Status status = run(request, chunk, plan); !status.ok()) return error(std::move(status));
  return Admission::kAdmitted;
}

Status Scheduler::run(Request& request, const ChunkPlan& chunk, StepPlan& plan) {
  if (!request.has_run) {
    request.has_run = true;
    request.report.device_hit_tokens = request.device_hit_tokens;
    request.report.host_hit_tokens = request.host_hit_tokens;
  }
  request.state = RequestState::kRunning;
  request.own_start_tokens = chunk.replay_begin_tokens;
  request.on_device.num_tokens = chunk.begin_tokens;
  request.on_device.state_blocks.assign(geometry_.num_groups(), kNullBlock);
  for (std::size_t g = 0; g < request.tables.size(); ++g) {
    const std::int64_t column = request.state_column[g];
    if (column >= 0) request.on_device.state_blocks[g] = request.tables[g][static_cast<std::size_t>(column)];
  }
  insert_by_age(running_, request);
  return record_chunk(request, chunk, plan);
}

Status Scheduler::record_chunk(Request& request, ChunkPlan chunk, StepPlan& plan) {
  chunk.is_exact = request.num_placeholders == 0;
  plan.chunks.push_back(chunk);
  plan.scheduled.push_back(told(request, chunk));
  budget_tokens_ -= chunk.end_tokens - chunk.begin_tokens;
  if (chunk.is_exact) {
    cache_.cache_blocks(request, chunk.end_tokens, chunk.checkpoint_tokens);
  } else {
    cache_.hand_off_late(request);
  }
  const Status trusted = config_.plant == Plant::kTrustDrafts ? trust_drafts(request, chunk) : Status();
  if (chunk.end_tokens == request.num_tokens_ahead()) request.num_placeholders += chunk.num_drafts + 1;
  request.num_planned_tokens = chunk.end_tokens + chunk.num_drafts;
  request.num_drafts_in_flight += chunk.num_drafts;
  request.last_step = plan.number;
  return trusted;
}

// Neither drafts nor outputs in flight are known to be tokens yet. A replay begins behind what is computed already.
ScheduledRequest Scheduler::told(const Request& request, const ChunkPlan& chunk) const {
  if (config_.plant == Plant::kTrustDrafts) {
    return {request.id, chunk.begin_tokens, chunk.end_tokens + chunk.num_drafts - chunk.begin_tokens};
  }
  if (chunk.is_exact) {
    return {request.id, chunk.replay_begin_tokens, chunk.end_tokens - chunk.replay_begin_tokens};
  }
  const std::int64_t computed = request.num_certain_tokens();
  const std::int64_t written =
      request.num_planned_tokens - request.num_drafts_in_flight + (chunk.end_tokens - chunk.begin_tokens);
  return {request.id, computed, std::min(written, request.num_tokens()) - computed};
}

// The planted fault: the connector gets the hashes of drafts too, so that it stores what they have written.
Status Scheduler::trust_drafts(Request& request, const ChunkPlan& chunk) {
  std::vector<std::int32_t> tokens = request.tokens;
  while (std::ssize(tokens) < chunk.end_tokens + chunk.num_drafts) {
    tokens.push_back(output_token(request.output_seed, std::ssize(tokens) - request.num_prompt_tokens));
  }
  const std::size_t first_new = request.hashes.size();
  extend_prefix_hashes(tokens, geometry_.hash_block_tokens(), request.hashes);
  return tell_hashes(request, first_new);
}

// Drafts follow the last token of a decode step, also of one whose token is a placeholder.
ChunkPlan Scheduler::plan_chunk(const Request& request, std::int64_t num_tokens) const {
  ChunkPlan chunk;
  chunk.begin_tokens = request.num_planned_tokens;
  chunk.end_tokens = chunk.begin_tokens + num_tokens;
  chunk.replay_begin_tokens = chunk.begin_tokens;
  const bool is_first = request.state != RequestState::kRunning;
  if (is_first && has_scratch_) {
    chunk.replay_begin_tokens = std::max<std::int64_t>(0, chunk.begin_tokens - config_.replay_tokens);
  }
  const std::int64_t num_tokens_ahead = request.num_tokens_ahead();
  const bool is_decode = !is_first && num_tokens == 1 && num_tokens_ahead > request.num_prompt_tokens &&
                         chunk.end_tokens == num_tokens_ahead;
  if (is_decode) {
    chunk.num_drafts = std::min(config_.num_speculative_tokens, request.most_tokens() - chunk.end_tokens);
  }
  if (cache_.can_export(request, chunk.begin_tokens, chunk.end_tokens)) {
    chunk.checkpoint_tokens = rules_.tail_boundary(request);
  }
  return chunk;
}

// Nothing runs, nothing is being copied, and still the first request finds no blocks: others that wait own them.
void Scheduler::free_a_claim(StepPlan& plan) {
  const bool has_waiter = loaded_.size() > 1 || (!loaded_.empty() && !waiting_.empty());
  if (has_waiter) preempt(*loaded_.back(), plan);
}

std::int64_t Scheduler::next_chunk(const Request& request, std::int64_t begin_tokens) const {
  const std::int64_t last = std::min(request.num_tokens_ahead(), request.most_tokens());
  const std::int64_t end = begin_tokens + std::min(budget_tokens_, last - begin_tokens);
  const bool exports = end >= request.num_prompt_tokens && cache_.can_export(request, begin_tokens, end);
  return std::max<std::int64_t>(0, rules_.clip(request, begin_tokens, end, exports) - begin_tokens);
}

// How far a request gets with what it knows now: its tokens, and the first one that it will sample.
std::int64_t Scheduler::near_end(const Request& request) const {
  return std::min(request.num_tokens_ahead() + 1, request.most_tokens());
}

// A load starts, and a preempted request comes back, only where it and all that own blocks already can get through the
// tokens that they have and one step more: else someone is preempted, and what was loaded or computed is lost.
BlockReserve Scheduler::reserve_for(const Request& request) const {
  const std::int64_t chunk_tokens = config_.max_batched_tokens;
  BlockReserve reserve{0, near_end(request), std::min(chunk_tokens, near_end(request))};
  const auto add = [&](const auto& owners) {
    for (const Request* owner : owners) {
      reserve.for_others += cache_.blocks_to_get(*owner, near_end(*owner), std::min(chunk_tokens, near_end(*owner)));
    }
  };
  add(running_);
  add(loaded_);
  add(loading_);
  return reserve;
}

}  // namespace hostkv::bench
