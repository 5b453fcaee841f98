#include "offload/host_jobs.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "offload/deadline.h"

namespace hostkv {
namespace {

std::string job_name(JobId id) {
  return "job " + std::to_string(id.value());
}

Status unknown_job(JobId id) {
  return {StatusCode::kNotFound, job_name(id) + " is unknown: never accepted, or its result was polled already"};
}

}  // namespace

Result<std::shared_ptr<HostJob>> HostJobs::admit(const TransferJob& job) {
  if (job.runs.size() > std::numeric_limits<std::uint32_t>::max()) {
    return error(StatusCode::kInvalidArgument, job_name(job.id) + " has more than 2^32 - 1 runs");
  }
  Result<ResolvedRuns> runs = regions_.resolve_and_hold(job.runs);
  if (!runs.has_value()) {
    return error(runs.error().code(), job_name(job.id) + ", " + runs.error().message());
  }
  const std::lock_guard lock(mutex_);
  if (Status status = check_room(job.id); !status.ok()) {
    regions_.release(runs->regions);
    return error(std::move(status));
  }
  auto admitted = std::make_shared<HostJob>();
  admitted->id = job.id;
  admitted->direction = job.direction;
  admitted->sequence = next_sequence_++;
  admitted->deadline = job.deadline;
  admitted->num_runs = static_cast<std::uint32_t>(job.runs.size());
  admitted->runs = std::move(*runs);
  jobs_.emplace(job.id, admitted);
  ++num_in_flight_;
  if (job.deadline.has_value()) {
    Lane& lane = lane_of(job.direction);
    lane.deadlines.emplace(std::pair(*job.deadline, admitted->sequence), admitted);
    lane.changed.notify_one();
  }
  return admitted;
}

Status HostJobs::check_room(JobId id) const {
  if (stopping_) {
    return {StatusCode::kUnavailable, job_name(id) + " is refused: the backend is shutting down"};
  }
  if (jobs_.contains(id)) {
    return {StatusCode::kInvalidArgument, job_name(id) + " is in flight already, or its result was not polled yet"};
  }
  if (static_cast<std::int64_t>(jobs_.size()) >= max_jobs_) {
    return {StatusCode::kResourceExhausted, job_name(id) + " is refused: " + std::to_string(jobs_.size()) +
                                                " jobs are in flight or not polled yet, max_jobs_in_flight is " +
                                                std::to_string(max_jobs_)};
  }
  return {};
}

void HostJobs::make_ready(const std::shared_ptr<HostJob>& job) {
  const std::lock_guard lock(mutex_);
  if (job->state != HostJob::State::kWaiting) {
    return;
  }
  job->state = HostJob::State::kReady;
  Lane& lane = lane_of(job->direction);
  lane.ready.emplace(job->sequence, job);
  lane.changed.notify_one();
}

std::shared_ptr<HostJob> HostJobs::next(Direction direction) {
  Lane& lane = lane_of(direction);
  std::unique_lock lock(mutex_);
  for (;;) {
    end_late_jobs(lane);
    if (stopping_) {
      return nullptr;
    }
    if (!lane.ready.empty()) {
      return start_first(lane);
    }
    if (lane.deadlines.empty()) {
      lane.changed.wait(lock);
    } else {
      const TimePoint earliest = lane.deadlines.begin()->first.first;  // a copy: the entry may go while we wait
      lane.changed.wait_until(lock, earliest);
    }
  }
}

std::shared_ptr<HostJob> HostJobs::start_first(Lane& lane) {
  std::shared_ptr<HostJob> job = lane.ready.begin()->second;
  leave_lane(*job);
  job->state = HostJob::State::kRunning;
  return job;
}

void HostJobs::finish(const std::shared_ptr<HostJob>& job, std::chrono::nanoseconds duration) {
  const std::lock_guard lock(mutex_);
  HOSTKV_CHECK(job->state == HostJob::State::kRunning, "R10: only a started job can finish, once");
  end(*job, TransferResult{job->id, StatusCode::kOk, {}, job->runs.size_bytes, duration});
}

std::size_t HostJobs::poll(std::span<TransferResult> results) {
  const std::lock_guard lock(mutex_);
  for (Lane& lane : lanes_) {
    end_late_jobs(lane);  // here too: the lane's own thread may be busy with a long copy
  }
  const std::size_t count = std::min(results.size(), results_.size());
  for (std::size_t i = 0; i < count; ++i) {
    results[i] = std::move(results_.front());
    results_.pop_front();
    jobs_.erase(results[i].id);
  }
  return count;
}

Status HostJobs::wait(JobId id, std::chrono::nanoseconds timeout) {
  const TimePoint until = deadline_after(timeout);
  std::unique_lock lock(mutex_);
  const std::shared_ptr<HostJob> job = find(id);
  if (job == nullptr) {
    return unknown_job(id);
  }
  if (!ended_.wait_until(lock, until, [&job] { return job->state == HostJob::State::kEnded; })) {
    return {StatusCode::kDeadlineExceeded,
            job_name(id) + " has no result after " + std::to_string(timeout.count()) + " ns"};
  }
  return {};
}

Status HostJobs::cancel(JobId id) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<HostJob> job = find(id);
  if (job == nullptr) {
    return unknown_job(id);
  }
  if (job->state == HostJob::State::kWaiting || job->state == HostJob::State::kReady) {
    end_unstarted(job, StatusCode::kCanceled);
  }
  return {};
}

Status HostJobs::drain(std::chrono::nanoseconds timeout) {
  const TimePoint until = deadline_after(timeout);
  std::unique_lock lock(mutex_);
  if (!ended_.wait_until(lock, until, [this] { return num_in_flight_ == 0; })) {
    return {StatusCode::kDeadlineExceeded, std::to_string(num_in_flight_) + " job(s) still in flight after " +
                                               std::to_string(timeout.count()) + " ns"};
  }
  return {};
}

void HostJobs::stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  std::map<std::uint64_t, std::shared_ptr<HostJob>> unstarted;  // in order of admission, as poll would show them
  for (const auto& [id, job] : jobs_) {
    if (job->state == HostJob::State::kWaiting || job->state == HostJob::State::kReady) {
      unstarted.emplace(job->sequence, job);
    }
  }
  for (const auto& [sequence, job] : unstarted) {
    end_unstarted(job, StatusCode::kCanceled);
  }
  for (Lane& lane : lanes_) {
    lane.changed.notify_all();
  }
}

std::shared_ptr<HostJob> HostJobs::find(JobId id) const {
  const auto found = jobs_.find(id);
  return found == jobs_.end() ? nullptr : found->second;
}

void HostJobs::end_late_jobs(Lane& lane) {
  if (lane.deadlines.empty()) {
    return;
  }
  const TimePoint now = std::chrono::steady_clock::now();
  while (!lane.deadlines.empty() && lane.deadlines.begin()->first.first <= now) {
    const std::shared_ptr<HostJob> job = lane.deadlines.begin()->second;
    end_unstarted(job, StatusCode::kDeadlineExceeded);
  }
}

void HostJobs::leave_lane(HostJob& job) {
  Lane& lane = lane_of(job.direction);
  lane.ready.erase(job.sequence);
  if (job.deadline.has_value()) {
    lane.deadlines.erase(std::pair(*job.deadline, job.sequence));
  }
}

void HostJobs::end_unstarted(const std::shared_ptr<HostJob>& job, StatusCode status) {
  leave_lane(*job);
  TransferResult result{job->id, status, std::vector<std::uint32_t>(job->num_runs), 0, std::chrono::nanoseconds{0}};
  std::iota(result.failed_runs.begin(), result.failed_runs.end(), 0U);
  end(*job, std::move(result));
}

void HostJobs::end(HostJob& job, TransferResult result) {
  HOSTKV_CHECK(job.state != HostJob::State::kEnded, "R10: a job ends once");
  job.state = HostJob::State::kEnded;
  regions_.release(job.runs.regions);
  job.runs = {};
  results_.push_back(std::move(result));
  --num_in_flight_;
  ended_.notify_all();
}

}  // namespace hostkv
