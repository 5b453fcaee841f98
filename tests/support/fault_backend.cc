#include "tests/support/fault_backend.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

namespace hostkv::testing {
namespace {

constexpr int kGarbage = 0xEE;

}  // namespace

void FaultBackend::fail_run(JobId job, std::uint32_t run, StatusCode code) {
  const std::lock_guard lock(mutex_);
  plans_[job].code = code;
  plans_[job].failed_runs.push_back(run);
}

void FaultBackend::fail_next_submit(StatusCode code) {
  const std::lock_guard lock(mutex_);
  submit_failure_ = code;
}

void FaultBackend::flip_byte(JobId job, std::uint32_t run, std::int64_t offset_bytes) {
  const std::lock_guard lock(mutex_);
  plans_[job].flips.push_back({run, offset_bytes});
}

void FaultBackend::hold_results() {
  const std::lock_guard lock(mutex_);
  held_ = true;
}

void FaultBackend::release_results() {
  const std::lock_guard lock(mutex_);
  held_ = false;
}

void FaultBackend::deliver_in_order(std::vector<JobId> order) {
  const std::lock_guard lock(mutex_);
  order_.assign(order.begin(), order.end());
}

Result<RegionId> FaultBackend::register_region(const RegionDesc& region) {
  Result<RegionId> id = inner_->register_region(region);
  if (id.has_value()) {
    const std::lock_guard lock(mutex_);
    regions_.emplace(*id, region);
  }
  return id;
}

Status FaultBackend::unregister_region(RegionId region) {
  return inner_->unregister_region(region);
}

Status FaultBackend::submit(TransferJob job) {
  const JobId id = job.id;
  {
    const std::lock_guard lock(mutex_);
    if (submit_failure_.has_value()) {
      return {*std::exchange(submit_failure_, std::nullopt), "job " + std::to_string(id.value()) + ": planned refusal"};
    }
    if (!jobs_.try_emplace(id, job.runs).second) {
      return {StatusCode::kInvalidArgument, "job " + std::to_string(id.value()) + " is in flight already"};
    }
  }
  Status status = inner_->submit(std::move(job));
  if (!status.ok()) {
    const std::lock_guard lock(mutex_);
    jobs_.erase(id);
  }
  return status;
}

std::size_t FaultBackend::poll(std::span<TransferResult> results) {
  const std::lock_guard lock(mutex_);
  collect();
  std::size_t count = 0;
  for (auto next = collected_.begin(); next != collected_.end() && count < results.size() && !held_;) {
    if (!may_deliver(next->id)) {
      ++next;
      continue;
    }
    if (!order_.empty() && order_.front() == next->id) {
      order_.pop_front();
    }
    jobs_.erase(next->id);
    plans_.erase(next->id);
    results[count++] = std::move(*next);
    collected_.erase(next);
    next = collected_.begin();  // what was held up by this one may come out now
  }
  return count;
}

Status FaultBackend::wait(JobId job, std::chrono::nanoseconds timeout) {
  const bool known = is_known(job);
  Status status = inner_->wait(job, timeout);
  // The inner backend forgets a job once its result was collected; here it still waits for poll().
  return known && status.code() == StatusCode::kNotFound ? Status() : status;
}

Status FaultBackend::cancel(JobId job) {
  const bool known = is_known(job);
  Status status = inner_->cancel(job);
  return known && status.code() == StatusCode::kNotFound ? Status() : status;
}

bool FaultBackend::is_known(JobId job) {
  const std::lock_guard lock(mutex_);
  return jobs_.contains(job);
}

void FaultBackend::collect() {
  std::array<TransferResult, 16> batch;
  for (std::size_t count = batch.size(); count == batch.size();) {
    count = inner_->poll(batch);
    for (std::size_t i = 0; i < count; ++i) {
      apply_plan(batch[i]);
      collected_.push_back(std::move(batch[i]));
    }
  }
}

void FaultBackend::apply_plan(TransferResult& result) {
  const auto found = plans_.find(result.id);
  if (found == plans_.end() || result.status != StatusCode::kOk) {
    return;
  }
  Plan& plan = found->second;
  const std::vector<CopyRun>& runs = jobs_.at(result.id);
  std::sort(plan.failed_runs.begin(), plan.failed_runs.end());
  for (const std::uint32_t failed : plan.failed_runs) {
    const CopyRun& run = runs.at(failed);
    std::memset(target_of(run), kGarbage, static_cast<std::size_t>(run.size_bytes));
    result.bytes_moved -= run.size_bytes;
  }
  for (const Flip& flip : plan.flips) {
    std::byte& victim = target_of(runs.at(flip.run))[flip.offset_bytes];
    victim = ~victim;
  }
  result.status = plan.code.value_or(StatusCode::kOk);
  result.failed_runs = std::move(plan.failed_runs);
}

std::byte* FaultBackend::target_of(const CopyRun& run) {
  return static_cast<std::byte*>(regions_.at(run.dst_region).base) + run.dst_offset_bytes;
}

bool FaultBackend::may_deliver(JobId job) const {
  const auto place = std::find(order_.begin(), order_.end(), job);
  return place == order_.end() || place == order_.begin();
}

}  // namespace hostkv::testing
