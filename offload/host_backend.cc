#include "hostkv/host_backend.h"

#include <array>
#include <string>
#include <thread>
#include <utility>

#include "base/thread_name.h"
#include "offload/copy_executor.h"
#include "offload/host_jobs.h"

namespace hostkv {
namespace {

constexpr std::int64_t kMaxCopyThreads = 64;
constexpr std::int64_t kMaxJobsInFlight = 1'000'000;
constexpr std::int64_t kCacheLineBytes = 64;

// One thread a direction copies the jobs that HostJobs names; everything else is HostJobs' work.
class HostBackend final : public TransferBackend {
 public:
  explicit HostBackend(const HostBackendOptions& options)
      : options_(options), jobs_(std::make_shared<HostJobs>(options.max_jobs_in_flight)) {
    threads_[0] = std::thread([this] { serve(Direction::kStore, "hostkv-store"); });
    threads_[1] = std::thread([this] { serve(Direction::kLoad, "hostkv-load"); });
    threads_[2] = std::thread([this] { serve(Direction::kDeviceCopy, "hostkv-copy"); });
  }

  // What has started is finished before the memory may go (R13); what has not is cancelled: its event may never come.
  ~HostBackend() override {
    jobs_->stop();
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }

  HostBackend(const HostBackend&) = delete;
  HostBackend& operator=(const HostBackend&) = delete;

  [[nodiscard]] BackendCapabilities capabilities() const override {
    return {.supports_cancel = true,
            .max_runs_per_job = 0,
            .max_jobs_in_flight = options_.max_jobs_in_flight,
            .preferred_alignment_bytes = kCacheLineBytes};
  }

  Result<RegionId> register_region(const RegionDesc& region) override { return jobs_->regions().add(region); }
  Status unregister_region(RegionId region) override { return jobs_->regions().remove(region); }

  Status submit(TransferJob job) override {
    const Result<std::shared_ptr<HostJob>> admitted = jobs_->admit(job);
    if (!admitted.has_value()) {
      return admitted.error();
    }
    if (job.after.native == nullptr) {
      jobs_->make_ready(*admitted);
      return {};
    }
    // R5, R6: the marker is the event: it runs after everything issued before it. It shares the job's states because
    // a slow stream may run it after this backend is gone.
    static_cast<HostStream*>(job.after.native)->enqueue([jobs = jobs_, marked = *admitted] {
      jobs->make_ready(marked);
    });
    return {};
  }

  std::size_t poll(std::span<TransferResult> results) override { return jobs_->poll(results); }
  Status wait(JobId job, std::chrono::nanoseconds timeout) override { return jobs_->wait(job, timeout); }
  Status cancel(JobId job) override { return jobs_->cancel(job); }
  Status drain(std::chrono::nanoseconds timeout) override { return jobs_->drain(timeout); }

 private:
  void serve(Direction direction, const char* thread_name) {
    name_current_thread(thread_name);
    CopyExecutor executor(options_.copy_threads);
    while (const std::shared_ptr<HostJob> job = jobs_->next(direction)) {
      const auto start = std::chrono::steady_clock::now();
      executor.copy(job->runs.spans);
      jobs_->finish(job, std::chrono::steady_clock::now() - start);
    }
  }

  const HostBackendOptions options_;
  const std::shared_ptr<HostJobs> jobs_;
  std::array<std::thread, kNumDirections> threads_;
};

Status check_range(const char* name, std::int64_t value, std::int64_t max) {
  if (value >= 1 && value <= max) {
    return {};
  }
  return {StatusCode::kInvalidArgument,
          std::string(name) + " is " + std::to_string(value) + "; allowed is 1 to " + std::to_string(max)};
}

}  // namespace

Result<std::unique_ptr<TransferBackend>> create_host_backend(const HostBackendOptions& options) {
  if (Status status = check_range("copy_threads", options.copy_threads, kMaxCopyThreads); !status.ok()) {
    return error(std::move(status));
  }
  if (Status status = check_range("max_jobs_in_flight", options.max_jobs_in_flight, kMaxJobsInFlight); !status.ok()) {
    return error(std::move(status));
  }
  return std::make_unique<HostBackend>(options);
}

}  // namespace hostkv
