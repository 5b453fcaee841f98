#ifndef HOSTKV_INCLUDE_HOSTKV_TRANSFER_BACKEND_H_
#define HOSTKV_INCLUDE_HOSTKV_TRANSFER_BACKEND_H_

// Moves bytes between registered regions, asynchronously. The extension point for devices.
//
// Purpose: one contract for the host backend, the CUDA backend and test doubles; one suite (tests/contract) proves all
// of them. Thread-safety: thread-safe. submit, cancel and the region calls may come from any thread; poll from one
// thread at a time. Ownership: regions stay the caller's memory and must outlive every job that names them; a job's
// bytes belong to the backend from submit() until its result was polled. Cost: submit() and poll() never wait for a
// copy and are O(runs) and O(results). Failure: a refused submit() leaves nothing behind and yields no result. Every
// accepted job yields exactly one result (done, failed, cancelled, late), also after cancel(), drain() and in the
// destructor's drain (R10). A failed job names its failed runs (R11).
//
// In flight: from submit() until the job has its result; its regions are free from then on. Its id, and its place among
// max_jobs_in_flight, are free once the result was polled. The destructor ends jobs that have not started with
// kCanceled (their event may never come) and waits for those that have.
//
// Ordering (R5, R6): a job starts only after everything that was issued on `after` before submit() has executed:
// submit() records an event there and the copy queue waits for it. Each of the three directions has a queue of its own:
// none waits for another. Between jobs there is no other order.
//
// Directions: the runs of a kStore job go from device regions to host regions, those of a kLoad job from host regions
// to device regions, those of a kDeviceCopy job from device regions to device regions, also inside one.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "hostkv/status.h"
#include "hostkv/types.h"

namespace hostkv {

struct RegionDesc {
  void* base = nullptr;         // not null; alignment as the memory has it
  std::int64_t size_bytes = 0;  // > 0
  Medium medium = Medium::kHost;
};

// `size_bytes` contiguous bytes from one region to another. Source and target never overlap.
struct CopyRun {
  RegionId src_region;
  std::int64_t src_offset_bytes = 0;
  RegionId dst_region;
  std::int64_t dst_offset_bytes = 0;
  std::int64_t size_bytes = 0;
};

struct TransferJob {
  JobId id;  // the caller's; unique among the jobs in flight
  Direction direction = Direction::kStore;
  std::vector<CopyRun> runs;
  StreamHandle after;  // null: start at once
  // Not started by then: the job ends with kDeadlineExceeded. nullopt: waits as long as it takes.
  std::optional<std::chrono::steady_clock::time_point> deadline;
};

struct TransferResult {
  JobId id;
  StatusCode status = StatusCode::kOk;  // kOk, kDeviceError, kCanceled, kDeadlineExceeded, kDataCorruption
  std::vector<std::uint32_t>
      failed_runs;  // indices into TransferJob::runs, ascending; all runs unless kOk or a part failed
  std::int64_t bytes_moved = 0;
  std::chrono::nanoseconds duration{0};  // from the first byte to the last
};

struct BackendCapabilities {
  bool supports_cancel = true;
  std::int64_t max_runs_per_job = 0;    // 0: no limit
  std::int64_t max_jobs_in_flight = 0;  // > 0; submit() beyond it answers kResourceExhausted
  std::int64_t preferred_alignment_bytes = 128;
};

class TransferBackend {
 public:
  virtual ~TransferBackend() = default;

  [[nodiscard]] virtual BackendCapabilities capabilities() const = 0;

  // kInvalidArgument: null base, size <= 0. Regions may overlap.
  virtual Result<RegionId> register_region(const RegionDesc& region) = 0;
  // kFailedPrecondition while a job in flight names the region; kNotFound when it is unknown.
  virtual Status unregister_region(RegionId region) = 0;

  // kInvalidArgument: unknown region, a run outside its region or empty, no runs, an id in flight already.
  // kResourceExhausted: the queue is full. kUnavailable: shutting down. Otherwise the job is accepted.
  virtual Status submit(TransferJob job) = 0;

  // Moves up to results.size() results into `results`, oldest first; answers how many. Never blocks.
  virtual std::size_t poll(std::span<TransferResult> results) = 0;

  // Until the job has a result (polled or not). kNotFound: unknown id. kDeadlineExceeded: still running after
  // `timeout`.
  virtual Status wait(JobId job, std::chrono::nanoseconds timeout) = 0;

  // A job that has not started ends with kCanceled; one that has goes on to its own end. kNotFound: unknown id.
  virtual Status cancel(JobId job) = 0;

  // Until no job is in flight (results may still wait for poll). kDeadlineExceeded: some are still running after
  // `timeout`.
  virtual Status drain(std::chrono::nanoseconds timeout) = 0;
};

}  // namespace hostkv

#endif  // HOSTKV_INCLUDE_HOSTKV_TRANSFER_BACKEND_H_
