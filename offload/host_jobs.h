#ifndef HOSTKV_OFFLOAD_HOST_JOBS_H_
#define HOSTKV_OFFLOAD_HOST_JOBS_H_

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "hostkv/transfer_backend.h"
#include "offload/region_table.h"

namespace hostkv {

// One accepted job. Fields other than `state` and `runs` never change after admission.
struct HostJob {
  // kWaiting: for its event. kReady: for the copy thread. The order is one way; kEnded has exactly one result (R10).
  enum class State : std::uint8_t { kWaiting, kReady, kRunning, kEnded };

  JobId id;
  Direction direction = Direction::kStore;
  std::uint64_t sequence = 0;  // order of admission
  std::optional<std::chrono::steady_clock::time_point> deadline;
  std::uint32_t num_runs = 0;
  ResolvedRuns runs;  // given back when the job ends
  State state = State::kWaiting;
};

// The states of the host backend's jobs, without its threads.
//
// Purpose: every way a job can end (done, cancelled, late, shut down) is one transition here, so it happens once (R10).
// A job that waits for its event is in no queue: it holds nobody up, and cancel or its deadline ends it at once.
// Thread-safety: thread-safe; next() from one thread a direction.
// Ownership: jobs are shared with the markers on compute streams, which may run after the backend is gone.
// Cost: no lock is held while bytes move; each call is O(log jobs), ending a job unsuccessfully O(runs).
// Failure: as transfer_backend.h says.
class HostJobs {
 public:
  explicit HostJobs(std::int64_t max_jobs) : max_jobs_(max_jobs) {}

  [[nodiscard]] RegionTable& regions() { return regions_; }

  // The job is kWaiting afterwards.
  Result<std::shared_ptr<HostJob>> admit(const TransferJob& job);
  // The job's event was reached. Nothing, if the job has ended meanwhile.
  void make_ready(const std::shared_ptr<HostJob>& job);

  // The next job to copy, in order of admission among the ready ones; blocks. Null: stopping.
  std::shared_ptr<HostJob> next(Direction direction);
  // REQUIRES: `job` came from next().
  void finish(const std::shared_ptr<HostJob>& job, std::chrono::nanoseconds duration);

  std::size_t poll(std::span<TransferResult> results);
  Status wait(JobId job, std::chrono::nanoseconds timeout);
  Status cancel(JobId job);
  Status drain(std::chrono::nanoseconds timeout);

  // No more jobs: those that have not started end with kCanceled, next() answers null.
  void stop();

 private:
  using TimePoint = std::chrono::steady_clock::time_point;

  struct Lane {
    std::map<std::uint64_t, std::shared_ptr<HostJob>> ready;                            // by sequence
    std::map<std::pair<TimePoint, std::uint64_t>, std::shared_ptr<HostJob>> deadlines;  // of jobs not started
    std::condition_variable changed;
  };

  Lane& lane_of(Direction direction) { return lanes_[static_cast<std::size_t>(direction)]; }

  // All below: REQUIRES mutex_.
  Status check_room(JobId id) const;
  std::shared_ptr<HostJob> find(JobId id) const;
  std::shared_ptr<HostJob> start_first(Lane& lane);
  void end_late_jobs(Lane& lane);
  void leave_lane(HostJob& job);
  void end_unstarted(const std::shared_ptr<HostJob>& job, StatusCode status);
  void end(HostJob& job, TransferResult result);

  const std::int64_t max_jobs_;
  RegionTable regions_;  // lock order: mutex_ before the table's own

  std::mutex mutex_;
  std::array<Lane, kNumDirections> lanes_;  // [direction]
  std::condition_variable ended_;
  std::unordered_map<JobId, std::shared_ptr<HostJob>> jobs_;  // until their result was polled
  std::deque<TransferResult> results_;                        // not polled yet, oldest first
  std::uint64_t next_sequence_ = 0;
  std::int64_t num_in_flight_ = 0;
  bool stopping_ = false;
};

}  // namespace hostkv

#endif  // HOSTKV_OFFLOAD_HOST_JOBS_H_
