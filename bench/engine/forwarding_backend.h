#ifndef HOSTKV_BENCH_ENGINE_FORWARDING_BACKEND_H_
#define HOSTKV_BENCH_ENGINE_FORWARDING_BACKEND_H_

#include <memory>
#include <utility>

#include "hostkv/transfer_backend.h"

namespace hostkv::bench {

// Passes every call on to another backend: what stands in front of one overrides the calls that it changes or watches.
//
// Thread-safety, cost and failure: the inner backend's. Ownership: owns it.
class ForwardingBackend : public TransferBackend {
 public:
  explicit ForwardingBackend(std::unique_ptr<TransferBackend> inner) : inner_(std::move(inner)) {}

  [[nodiscard]] BackendCapabilities capabilities() const override { return inner_->capabilities(); }
  Result<RegionId> register_region(const RegionDesc& region) override { return inner_->register_region(region); }
  Status unregister_region(RegionId region) override { return inner_->unregister_region(region); }
  Status submit(TransferJob job) override { return inner_->submit(std::move(job)); }
  std::size_t poll(std::span<TransferResult> results) override { return inner_->poll(results); }
  Status wait(JobId job, std::chrono::nanoseconds timeout) override { return inner_->wait(job, timeout); }
  Status cancel(JobId job) override { return inner_->cancel(job); }
  Status drain(std::chrono::nanoseconds timeout) override { return inner_->drain(timeout); }

 private:
  std::unique_ptr<TransferBackend> inner_;
};

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_ENGINE_FORWARDING_BACKEND_H_
