#include "tests/support/step_backend.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "offload/deadline.h"

namespace hostkv::testing {
namespace {

Status unknown_job(JobId job) {
  return {StatusCode::kNotFound, "job " + std::to_string(job.value()) + " is not in flight"};
}

}  // namespace

std::vector<JobId> StepBackend::in_flight() const {
  const std::lock_guard lock(mutex_);
  std::vector<JobId> jobs;
  for (const Step& step : steps_) {
    jobs.push_back(step.id);
  }
  return jobs;
}

Status StepBackend::complete(JobId job) {
  return fail(job, StatusCode::kOk, {});
}

void StepBackend::complete_all() {
  for (const JobId job : in_flight()) {
    static_cast<void>(complete(job));
  }
}

Status StepBackend::fail(JobId job, StatusCode code, std::vector<std::uint32_t> failed_runs) {
  HostEvent after;
  {
    const std::lock_guard lock(mutex_);
    const auto step = find(job);
    if (step == steps_.end()) {
      return unknown_job(job);
    }
    after = step->after;
  }
  after.wait();
  const std::lock_guard lock(mutex_);
  const auto step = find(job);
  if (step == steps_.end()) {
    return unknown_job(job);
  }
  end(step, code, std::move(failed_runs));
  return {};
}

Status StepBackend::expire(JobId job) {
  return end_without_copy(job, StatusCode::kDeadlineExceeded);
}

BackendCapabilities StepBackend::capabilities() const {
  return {
      .supports_cancel = true, .max_runs_per_job = 0, .max_jobs_in_flight = max_jobs_, .preferred_alignment_bytes = 1};
}

Status StepBackend::submit(TransferJob job) {
  Result<ResolvedRuns> runs = regions_.resolve_and_hold(job.runs);
  if (!runs.has_value()) {
    return runs.error();
  }
  const std::lock_guard lock(mutex_);
  const bool taken = find(job.id) != steps_.end() || has_result(job.id);
  if (taken || static_cast<std::int64_t>(steps_.size() + results_.size()) >= max_jobs_) {
    regions_.release(runs->regions);
    return {taken ? StatusCode::kInvalidArgument : StatusCode::kResourceExhausted,
            "job " + std::to_string(job.id.value()) + (taken ? " is in flight already" : ": the queue is full")};
  }
  HostEvent after;
  if (job.after.native != nullptr) {
    after = static_cast<HostStream*>(job.after.native)->record_event();
  }
  steps_.push_back({job.id, std::move(*runs), std::move(after)});
  return {};
}

std::size_t StepBackend::poll(std::span<TransferResult> results) {
  const std::lock_guard lock(mutex_);
  const std::size_t count = std::min(results.size(), results_.size());
  for (std::size_t i = 0; i < count; ++i) {
    results[i] = std::move(results_.front());
    results_.pop_front();
  }
  return count;
}

Status StepBackend::wait(JobId job, std::chrono::nanoseconds timeout) {
  const auto until = deadline_after(timeout);
  std::unique_lock lock(mutex_);
  if (find(job) == steps_.end()) {
    return has_result(job) ? Status() : unknown_job(job);
  }
  if (!ended_.wait_until(lock, until, [&] { return find(job) == steps_.end(); })) {
    return {StatusCode::kDeadlineExceeded, "job " + std::to_string(job.value()) + " is still in flight"};
  }
  return {};
}

Status StepBackend::cancel(JobId job) {
  {
    const std::lock_guard lock(mutex_);
    if (has_result(job)) {
      return {};
    }
  }
  return end_without_copy(job, StatusCode::kCanceled);
}

Status StepBackend::drain(std::chrono::nanoseconds timeout) {
  const auto until = deadline_after(timeout);
  std::unique_lock lock(mutex_);
  if (!ended_.wait_until(lock, until, [this] { return steps_.empty(); })) {
    return {StatusCode::kDeadlineExceeded, std::to_string(steps_.size()) + " job(s) still in flight"};
  }
  return {};
}

Status StepBackend::end_without_copy(JobId job, StatusCode code) {
  const std::lock_guard lock(mutex_);
  const auto step = find(job);
  if (step == steps_.end()) {
    return unknown_job(job);
  }
  std::vector<std::uint32_t> all_runs(step->runs.spans.size());
  std::iota(all_runs.begin(), all_runs.end(), 0U);
  end(step, code, std::move(all_runs));
  return {};
}

std::deque<StepBackend::Step>::iterator StepBackend::find(JobId job) {
  return std::find_if(steps_.begin(), steps_.end(), [job](const Step& step) { return step.id == job; });
}

bool StepBackend::has_result(JobId job) const {
  return std::any_of(results_.begin(), results_.end(),
                     [job](const TransferResult& result) { return result.id == job; });
}

void StepBackend::end(std::deque<Step>::iterator step, StatusCode code, std::vector<std::uint32_t> failed_runs) {
  TransferResult result{step->id, code, std::move(failed_runs), 0, std::chrono::nanoseconds{0}};
  for (std::uint32_t i = 0; i < step->runs.spans.size(); ++i) {
    const CopySpan& span = step->runs.spans[i];
    if (!std::binary_search(result.failed_runs.begin(), result.failed_runs.end(), i)) {
      std::memcpy(span.dst, span.src, static_cast<std::size_t>(span.size_bytes));
      result.bytes_moved += span.size_bytes;
    }
  }
  regions_.release(step->runs.regions);
  steps_.erase(step);
  results_.push_back(std::move(result));
  ended_.notify_all();
}

}  // namespace hostkv::testing
