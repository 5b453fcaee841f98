#ifndef HOSTKV_TESTS_SUPPORT_STEP_BACKEND_H_
#define HOSTKV_TESTS_SUPPORT_STEP_BACKEND_H_

#include <condition_variable>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "hostkv/host_backend.h"
#include "hostkv/transfer_backend.h"
#include "offload/region_table.h"

namespace hostkv::testing {

// A TransferBackend whose jobs end only when the test says so, in the order that the test names.
//
// Purpose: every order of completions, without threads. Thread-safety: thread-safe. Ownership: none of the memory.
// Cost: the bytes move in complete(), on the calling thread and under the lock. Failure: validates as the host backend
// does; deadlines pass only by expire().
class StepBackend final : public TransferBackend {
 public:
  explicit StepBackend(std::int64_t max_jobs_in_flight = 4096) : max_jobs_(max_jobs_in_flight) {}

  [[nodiscard]] std::vector<JobId> in_flight() const;  // in order of submission

  // Moves the job's bytes, after its event was reached, and ends it with kOk. kNotFound: not in flight.
  Status complete(JobId job);
  // Every job in flight, in order of submission.
  void complete_all();
  // Ends the job with `code`; only runs that are not in `failed_runs` (ascending) move their bytes.
  Status fail(JobId job, StatusCode code, std::vector<std::uint32_t> failed_runs);
  // Ends the job with kDeadlineExceeded; nothing moves.
  Status expire(JobId job);

  [[nodiscard]] BackendCapabilities capabilities() const override;
  Result<RegionId> register_region(const RegionDesc& region) override { return regions_.add(region); }
  Status unregister_region(RegionId region) override { return regions_.remove(region); }
  Status submit(TransferJob job) override;
  std::size_t poll(std::span<TransferResult> results) override;
  Status wait(JobId job, std::chrono::nanoseconds timeout) override;
  Status cancel(JobId job) override;
  Status drain(std::chrono::nanoseconds timeout) override;

 private:
  struct Step {
    JobId id;
    ResolvedRuns runs;
    HostEvent after;
  };

  Status end_without_copy(JobId job, StatusCode code);
  // All below: REQUIRES mutex_.
  std::deque<Step>::iterator find(JobId job);
  bool has_result(JobId job) const;
  void end(std::deque<Step>::iterator step, StatusCode code, std::vector<std::uint32_t> failed_runs);

  const std::int64_t max_jobs_;
  RegionTable regions_;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::deque<Step> steps_;
  std::deque<TransferResult> results_;
};

}  // namespace hostkv::testing

#endif  // HOSTKV_TESTS_SUPPORT_STEP_BACKEND_H_
