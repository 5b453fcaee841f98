#include "bench/engine/scheduler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "bench/engine/group_rules.h"
#include "bench/engine/payload.h"

namespace hostkv::bench {
namespace {

std::string_view state_name(RequestState state) {
  switch (state) {
    case RequestState::kWaiting:
      return "waiting";
    case RequestState::kWaitingForLoad:
      return "waiting for its load";
    case RequestState::kLoaded:
      return "loaded, waiting to run";
    case RequestState::kRunning:
      return "running";
  }
  return "unknown";
}

}  // namespace

Scheduler::Scheduler(const EngineConfig& config, const Geometry& geometry, BlockPool& pool, RequestMap& requests)
    : config_(config),
      geometry_(geometry),
      pool_(pool),
      requests_(requests),
      cache_(geometry, config, pool),
      rules_(geometry, config),
      host_can_serve_(has_findable_prefixes(geometry)) {
  for (std::uint32_t i = 0; i < geometry.num_groups(); ++i) {
    const KvCacheGroup& group = geometry.group(GroupIndex{i});
    has_scratch_ = has_scratch_ || group.kind == GroupKind::kScratch;
    if (group.kind == GroupKind::kMamba && !geometry.offloadable(GroupIndex{i})) host_can_serve_ = false;
  }
}

Status Scheduler::validate(const RequestSpec& spec) const {
  if (spec.prompt_tokens.empty()) return Status(StatusCode::kInvalidArgument, "a prompt needs at least 1 token");
  if (spec.max_new_tokens < 1) {
    return Status(StatusCode::kInvalidArgument,
                  "max_new_tokens is " + std::to_string(spec.max_new_tokens) + ", at least 1 is allowed");
  }
  if (spec.end_after_tokens < 0) {
    return Status(StatusCode::kInvalidArgument,
                  "end_after_tokens is " + std::to_string(spec.end_after_tokens) + ", 0 or more is allowed");
  }
  // The last output is sampled and never written.
  const std::int64_t total = std::ssize(spec.prompt_tokens) + spec.max_new_tokens - 1;
  const std::int64_t needed = cache_.most_blocks(total, std::min(total, config_.max_batched_tokens));
  if (needed <= pool_.num_usable()) return {};
  return Status(StatusCode::kInvalidArgument, "a request of " + std::to_string(total) + " tokens needs up to " +
                                                  std::to_string(needed) + " device blocks, num_device_blocks is " +
                                                  std::to_string(pool_.num_usable()));
}

Result<RequestId> Scheduler::add(RequestSpec spec) {
  if (Status status = validate(spec); !status.ok()) return error(std::move(status));
  auto request = std::make_unique<Request>();
  request->id = RequestId{next_id_};
  request->num_prompt_tokens = std::ssize(spec.prompt_tokens);
  request->max_new_tokens = spec.max_new_tokens;
  request->end_after_tokens = spec.end_after_tokens;
  request->skip_reading_cache = spec.skip_reading_cache;
  request->output_seed = output_seed(config_.seed, spec.prompt_tokens);
  request->tokens = std::move(spec.prompt_tokens);
  request->report.id = request->id;
  request->report.prompt_tokens = request->num_prompt_tokens;
  if (connector_ != nullptr) {
    const RequestInfo info{request->id, request->num_prompt_tokens, request->skip_reading_cache || !host_can_serve_};
    if (Status status = connector_->add_request(info); !status.ok()) return error(std::move(status));
  }
  if (Status status = append_hashes(*request, 0); !status.ok()) return error(std::move(status));
  ++next_id_;
  waiting_.push_back(request.get());
  const RequestId id = request->id;
  requests_.emplace(id, std::move(request));
  return id;
}

Status Scheduler::append_hashes(Request& request, std::size_t first_new) {
  extend_prefix_hashes(request.tokens, geometry_.hash_block_tokens(), request.hashes);
  return tell_hashes(request, first_new);
}

Status Scheduler::tell_hashes(const Request& request, std::size_t first_new) {
  if (connector_ == nullptr || request.hashes.size() == first_new) return {};
  const std::span<const PrefixHash> added = std::span(request.hashes).subspan(first_new);
  return connector_->append_block_hashes(request.id, std::as_bytes(added), sizeof(PrefixHash));
}

Status Scheduler::abort(RequestId id) {
  const auto found = requests_.find(id);
  if (found != requests_.end()) return finish(*found->second, true);
  if (id.value() >= 1 && id.value() < next_id_) return {};
  return Status(StatusCode::kNotFound, "request " + std::to_string(id.value()) + " is unknown");
}

void Scheduler::preempt(Request& request, StepPlan& plan) {
  remove_from_queue(request);
  release_blocks(request);
  request.begin_at(0);
  request.state = RequestState::kWaiting;
  insert_by_age(waiting_, request);
  ++request.report.num_preemptions;
  ++num_preemptions_;
  plan.preempted.push_back(request.id);
}

// First in, first out, so that who lost its blocks first is the first to be evicted.
void Scheduler::release_blocks(Request& request) {
  std::vector<std::vector<BlockId>> blocks = KvCacheManager::take_blocks(request);
  const std::uint64_t last_step = std::exchange(request.last_step, 0);
  if (last_step > num_settled_steps_ && config_.plant != Plant::kFreeInFlight) {
    deferred_frees_.push_back(DeferredFrees{last_step, std::move(blocks)});
    return;
  }
  for (const std::vector<BlockId>& list : blocks) pool_.free(list);
}

Status Scheduler::complete_step(std::uint64_t number, std::span<const LaunchedChunk> chunks) {
  num_settled_steps_ = number;
  while (!deferred_frees_.empty() && deferred_frees_.front().last_step <= number) {
    for (const std::vector<BlockId>& list : deferred_frees_.front().blocks) pool_.free(list);
    deferred_frees_.pop_front();
  }
  for (const LaunchedChunk& chunk : chunks) {
    if (Status status = settle_chunk(chunk); !status.ok()) return status;
  }
  return {};
}

void Scheduler::insert_by_age(std::deque<Request*>& queue, Request& request) {
  const auto younger = std::ranges::find_if(queue, [&](const Request* other) { return request.id < other->id; });
  queue.insert(younger, &request);
}

void Scheduler::advance_to(Request& request, std::int64_t num_tokens) {
  request.num_computed_tokens = num_tokens;
  if (num_tokens <= request.furthest_tokens) return;
  request.furthest_tokens = num_tokens;
  ++num_progress_;
}

Status Scheduler::settle_chunk(const LaunchedChunk& chunk) {
  const std::int64_t begin = chunk.forward.begin_tokens;
  const std::int64_t end = chunk.forward.end_tokens;
  num_computed_tokens_ += end - begin;
  const auto found = requests_.find(chunk.id);
  // Who has ended, or was preempted, since it was planned: outputs of a step in flight come to nothing.
  if (found == requests_.end() || found->second->report.num_preemptions != chunk.admission) return {};
  Request& request = *found->second;
  request.state_column = chunk.running_column;
  request.num_planned_tokens -= chunk.forward.num_rejected;
  request.num_drafts_in_flight -= chunk.plan.num_drafts;
  advance_to(request, end);
  if (chunk.admission == 0) {
    const std::int64_t prompt_end = std::min(end, request.num_prompt_tokens);
    request.report.computed_tokens += std::max<std::int64_t>(0, prompt_end - begin);
  }
  if (end < request.num_tokens()) return {};
  request.num_placeholders -= chunk.plan.num_drafts + 1;
  while (request.num_tokens() <= end && !request.has_ended()) {  // the accepted drafts, and the token behind them
    request.tokens.push_back(output_token(request.output_seed, request.num_output_tokens()));
  }
  if (Status status = append_hashes(request, request.hashes.size()); !status.ok()) return status;
  cache_.cache_settled(request, chunk.running_column, chunk.plan.is_exact ? chunk.plan.end_tokens : begin,
                       std::min(end, request.num_tokens()));
  return request.has_ended() ? finish(request, false) : Status();
}

Status Scheduler::finish(Request& request, bool aborted) {
  remove_from_queue(request);
  // The connector may still pin blocks of the request here. States that no step will copy away are handed off now.
  Status status;
  if (connector_ != nullptr) {
    std::vector<BoundaryHandOff> hand_offs = request.late_hand_offs;
    for (const PartialState& state : request.partial_states) {
      if (state.boundary_tokens != request.num_planned_tokens) continue;
      hand_offs.push_back(BoundaryHandOff{request.id, state.group, state.block, state.boundary_tokens});
    }
    status = connector_->request_finished(request.id, request.num_certain_tokens(), hand_offs);
  }
  release_blocks(request);
  request.report.aborted = aborted;
  reports_.push_back(request.report);
  ++num_progress_;
  requests_.erase(request.id);
  return status;
}

void Scheduler::remove_from_queue(const Request& request) {
  switch (request.state) {
    case RequestState::kWaiting:
      std::erase(waiting_, &request);
      break;
    case RequestState::kWaitingForLoad:
      std::erase(loading_, &request);
      break;
    case RequestState::kLoaded:
      std::erase(loaded_, &request);
      break;
    case RequestState::kRunning:
      std::erase(running_, &request);
      break;
  }
}

Status Scheduler::apply_load_outcomes(std::span<const LoadOutcome> outcomes) {
  for (const LoadOutcome& outcome : outcomes) {
    const auto found = requests_.find(outcome.request);
    if (found == requests_.end()) continue;  // aborted meanwhile
    Request& request = *found->second;
    if (request.state != RequestState::kWaitingForLoad) {
      return Status(StatusCode::kInternal, "R10: a load of request " + std::to_string(request.id.value()) +
                                               " ended, but the request is " + std::string(state_name(request.state)));
    }
    std::erase(loading_, &request);
    if (outcome.status == StatusCode::kOk) {
      request.begin_at(request.device_hit_tokens + request.host_hit_tokens);
      advance_to(request, request.num_computed_tokens);
      cache_.cache_blocks(request, request.num_computed_tokens);
      request.state = RequestState::kLoaded;
      insert_by_age(loaded_, request);
    } else {
      cache_.free(request);
      ++request.report.failed_loads;
      request.state = RequestState::kWaiting;
      insert_by_age(waiting_, request);
    }
  }
  return {};
}

std::vector<RequestReport> Scheduler::take_reports() {
  return std::exchange(reports_, {});
}

std::string Scheduler::describe_requests() const {
  std::vector<const Request*> alive;
  for (const auto& entry : requests_) alive.push_back(entry.second.get());
  std::sort(alive.begin(), alive.end(), [](const Request* a, const Request* b) { return a->id < b->id; });
  std::string text;
  for (const Request* request : alive) {
    if (!text.empty()) text += "; ";
    text += "request " + std::to_string(request->id.value()) + " is " + std::string(state_name(request->state)) +
            " with " + std::to_string(request->num_computed_tokens) + " of " + std::to_string(request->num_tokens()) +
            " tokens computed";
  }
  return text;
}

}  // namespace hostkv::bench
