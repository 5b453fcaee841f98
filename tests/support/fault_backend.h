#ifndef HOSTKV_TESTS_SUPPORT_FAULT_BACKEND_H_
#define HOSTKV_TESTS_SUPPORT_FAULT_BACKEND_H_

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hostkv/transfer_backend.h"

namespace hostkv::testing {

// A TransferBackend in front of another one, that goes wrong where the test says. Nothing planned: it changes nothing.
//
// Purpose: faults by name and place instead of by luck. Thread-safety: as transfer_backend.h; plans may be set from any
// thread, before the job that they name is submitted. Ownership: owns the inner backend.
// Cost: one lock a call. Failure: what was planned, and what the inner backend answers.
class FaultBackend final : public TransferBackend {
 public:
  explicit FaultBackend(std::unique_ptr<TransferBackend> inner) : inner_(std::move(inner)) {}

  // The job ends with `code` and run `run` is among its failed ones; its target then holds garbage. Several calls add
  // up; the last code counts.
  void fail_run(JobId job, std::uint32_t run, StatusCode code = StatusCode::kDeviceError);
  // The next submit() is refused with `code`.
  void fail_next_submit(StatusCode code);
  // Silent damage: the job succeeds, but one byte of the target of run `run` is inverted.
  void flip_byte(JobId job, std::uint32_t run, std::int64_t offset_bytes);
  // poll() answers 0 until release_results().
  void hold_results();
  void release_results();
  // The results of these jobs come out in this order, each only after the one before it; others are not held up.
  void deliver_in_order(std::vector<JobId> order);

  [[nodiscard]] BackendCapabilities capabilities() const override { return inner_->capabilities(); }
  Result<RegionId> register_region(const RegionDesc& region) override;
  Status unregister_region(RegionId region) override;
  Status submit(TransferJob job) override;
  std::size_t poll(std::span<TransferResult> results) override;
  Status wait(JobId job, std::chrono::nanoseconds timeout) override;
  Status cancel(JobId job) override;
  Status drain(std::chrono::nanoseconds timeout) override { return inner_->drain(timeout); }

 private:
  struct Flip {
    std::uint32_t run = 0;
    std::int64_t offset_bytes = 0;
  };
  struct Plan {
    std::optional<StatusCode> code;
    std::vector<std::uint32_t> failed_runs;
    std::vector<Flip> flips;
  };

  bool is_known(JobId job);
  // All below: REQUIRES mutex_.
  void collect();
  void apply_plan(TransferResult& result);
  std::byte* target_of(const CopyRun& run);
  bool may_deliver(JobId job) const;

  std::unique_ptr<TransferBackend> inner_;
  std::mutex mutex_;
  std::unordered_map<RegionId, RegionDesc> regions_;
  std::unordered_map<JobId, std::vector<CopyRun>> jobs_;  // until their result was polled
  std::unordered_map<JobId, Plan> plans_;
  std::deque<TransferResult> collected_;
  std::deque<JobId> order_;
  std::optional<StatusCode> submit_failure_;
  bool held_ = false;
};

}  // namespace hostkv::testing

#endif  // HOSTKV_TESTS_SUPPORT_FAULT_BACKEND_H_
