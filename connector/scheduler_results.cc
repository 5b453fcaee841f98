// The part of the scheduler side that hears how copies ended.

#include <algorithm>
#include <string>
#include <utility>

#include "connector/cache_events.h"
#include "connector/scheduler_connector.h"

namespace hostkv {
namespace {

constexpr std::size_t kOrderedAtOnce = 256;  // blocks of whole chains that any event may put in order

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
  entries_.clear();
  for (std::size_t i = job.blocks.size(); i > 0; --i) {
    if (bad[i - 1]) {
      pool_->cache.abort(job.blocks[i - 1].entry);
    } else {
      entries_.push_back(job.blocks[i - 1].entry);
    }
  }
  pool_->cache.publish_all(entries_);
  metrics_.stored_blocks += std::ssize(entries_);
  metrics_.dropped_failed_blocks += std::ssize(job.blocks) - std::ssize(entries_);
  release_device_pins(job);
  order_some(std::max(job.blocks.size(), kOrderedAtOnce));
  if (const auto at = chains_.find(job.chain); at != chains_.end()) {
    --at->second.jobs_in_flight;
    order_chain(job.chain);
  }
}

void SchedulerConnectorImpl::finish_load(PlannedJob& job) {
  const StatusCode status = job.merge.status();
  RequestState* request = find_request(job.request);
  if (status != StatusCode::kOk && job.direction == Direction::kDeviceCopy && request != nullptr) {
    request->avoids_device = true;  // a retry cannot loop
  }
  if (request != nullptr) {
    request->stores.builds_on_others = true;
  }
  entries_.clear();
  for (std::size_t i = job.blocks.size(); i > 0; --i) {
    const JobBlock& block = job.blocks[i - 1];
    const bool failed = status != StatusCode::kOk && job.merge.failed(FailedBlock{block.group, block.block});
    ++(failed ? metrics_.failed_load_blocks : metrics_.loaded_blocks);
    if (block.entry == kNoEntry) {
      continue;
    }
    if (failed) {
      pool_->cache.drop(block.entry);  // never offered again until it is stored anew (R11, R12)
    }
    entries_.push_back(block.entry);
  }
  pool_->cache.unpin_all(entries_);
  release_device_pins(job);
  end_load_job(job, status);
}

void SchedulerConnectorImpl::end_load_job(const PlannedJob& job, StatusCode status) {
  const auto at = loads_.find(job.request);
  Load& load = at->second;
  // A reset has made the load void, whatever else went wrong with it.
  load.status = load.status == StatusCode::kOk || status == StatusCode::kCanceled ? status : load.status;
  if (--load.jobs_in_flight > 0) {
    return;
  }
  outcomes_.push_back(LoadOutcome{job.request, load.status});
  if (RequestState* request = find_request(job.request); request != nullptr) {
    request->loading = false;
    // After a failure, or a preemption meanwhile, the request looks up again.
    request->load_failed = request->admitted && load.status != StatusCode::kOk && load.status != StatusCode::kCanceled;
    request->admitted = request->admitted && load.status == StatusCode::kOk;
  }
  loads_.erase(at);
}

void SchedulerConnectorImpl::abandon_job(PlannedJob& job, StatusCode status) {
  for (std::size_t i = job.blocks.size(); i > 0; --i) {
    const EntryId entry = job.blocks[i - 1].entry;
    if (job.direction == Direction::kStore) {
      pool_->cache.abort(entry);
      ++metrics_.dropped_reset_blocks;
    } else if (entry != kNoEntry) {
      pool_->cache.unpin(entry);
    }
  }
  release_device_pins(job);
  if (job.direction != Direction::kStore) {
    end_load_job(job, status);
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
    if (block->source != kNullBlock) {
      blocks.push_back(block->source);
    }
  }
  if (job.of_victims) {
    pool_->victims.give_back(blocks);
  } else {
    engine_.unpin(blocks);
  }
  pinned_device_blocks_ -= std::ssize(blocks);
  loading_blocks_ -= job.direction == Direction::kStore ? 0 : std::ssize(job.blocks);
}

void SchedulerConnectorImpl::end_chain(std::uint32_t chain) {
  if (pool_) {
    pool_->cache.close_chain(chain);
  }
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
  if (at->second.num_jobs > 1) {
    whole_chains_.push_back(WholeChain{chain, std::move(at->second.entries)});
  }
  chains_.erase(at);
  order_some(kOrderedAtOnce);
}

// A chain may be as long as a whole prompt: it is put in order piece by piece, as fast as blocks are stored, so that no
// step pays for all of it.
void SchedulerConnectorImpl::order_some(std::size_t most) {
  while (most > 0 && !whole_chains_.empty()) {
    WholeChain& first = whole_chains_.front();
    const std::size_t count = std::min(most, first.entries.size());
    entries_.assign(first.entries.rbegin(), first.entries.rbegin() + static_cast<std::ptrdiff_t>(count));
    pool_->cache.touch_chain(entries_, first.chain);
    first.entries.resize(first.entries.size() - count);
    most -= count;
    if (first.entries.empty()) {
      whole_chains_.pop_front();
    }
  }
}

std::vector<LoadOutcome> SchedulerConnectorImpl::take_load_outcomes() {
  return std::exchange(outcomes_, {});
}

// The admission goes on: its chain and what it has stored stay.
Status SchedulerConnectorImpl::resume_after_failed_load(RequestId id, std::int64_t num_tokens) {
  if (Status status = check_alive(); !status.ok()) {
    return status;
  }
  RequestState* request = find_request(id);
  if (request == nullptr) {
    return {StatusCode::kNotFound, "request " + std::to_string(id.value()) + " is not known"};
  }
  if (!request->load_failed) {
    return {StatusCode::kFailedPrecondition,
            "request " + std::to_string(id.value()) + " has no failed load to go on behind; it looks up instead"};
  }
  if (num_tokens < 0 || num_tokens > request->admitted_tokens) {
    return {StatusCode::kInvalidArgument, "request " + std::to_string(id.value()) + ": num_tokens is " +
                                              std::to_string(num_tokens) + "; its load was to end at " +
                                              std::to_string(request->admitted_tokens)};
  }
  request->load_failed = false;
  request->admitted = true;
  request->admitted_tokens = num_tokens;
  request->loaded_from_tokens = std::min(request->loaded_from_tokens, num_tokens);
  request->stores.go_back_to(num_tokens);
  return {};
}

std::vector<CacheEvent> SchedulerConnectorImpl::take_cache_events() {
  std::vector<CacheEvent> events = make_cache_events(events_, namespace_fingerprint_);
  events_.clear();
  return events;
}

Status SchedulerConnectorImpl::check_conservation() const {
  if (!pool_) {
    return {};
  }
  if (Status status = pool_->cache.check_conservation(); !status.ok()) {
    return status;
  }
  if (pool_->cache.num_living_chains() > requests_.size()) {
    return {StatusCode::kInternal, "R14: " + std::to_string(pool_->cache.num_living_chains()) + " chains live, of " +
                                       std::to_string(requests_.size()) + " requests"};
  }
  std::int64_t device_pins = 0;
  std::uint64_t stores = 0;
  for (const auto& [id, job] : jobs_) {
    device_pins += std::ssize(job.blocks) * (job.direction == Direction::kDeviceCopy ? 2 : 1);
    stores += job.direction == Direction::kStore ? job.blocks.size() : 0;
  }
  for (const auto& [id, request] : requests_) {
    device_pins += request.promise && request.promise->pins_device ? request.promise->num_device_blocks : 0;
  }
  if (device_pins != pinned_device_blocks_) {
    return {StatusCode::kInternal, "R15: jobs and promises pin " + std::to_string(device_pins) +
                                       " device blocks, booked " + std::to_string(pinned_device_blocks_)};
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
