#ifndef HOSTKV_OFFLOAD_HOST_POOL_H_
#define HOSTKV_OFFLOAD_HOST_POOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "hostkv/status.h"

namespace hostkv {

struct HostPoolOptions {
  std::int64_t size_bytes = 0;   // > 0
  std::optional<int> numa_node;  // where the pages should lie; nullopt: where they are touched first
};

// The host memory of one rank: one anonymous mapping of what was asked for, and nothing beside it.
//
// Purpose: the budget is honoured to the page (R17): no rounding to powers of two, no shared-memory copy.
// Thread-safety: the accessors are const; prefault() from one thread.
// Ownership: owns the mapping; whoever copies into it must be done before it goes (R13).
// Cost: create() maps and touches nothing; memory is taken as pages are touched, or by prefault().
// Failure: create() answers kInvalidArgument for a size <= 0 and kResourceExhausted, with the bytes asked and allowed,
// for more than the machine or the control group has. A NUMA node that is absent or refused costs one warning.
class HostPool {
 public:
  static Result<std::unique_ptr<HostPool>> create(const HostPoolOptions& options);
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }  // [size_bytes], begins at a page, zero at first
  [[nodiscard]] std::int64_t size_bytes() const { return size_bytes_; }      // as asked
  [[nodiscard]] std::int64_t mapped_bytes() const { return mapped_bytes_; }  // rounded up to pages

  // Touches every page, shared over threads of its own (the caller's policy and affinity stay as they are). Keeps what
  // is written there. REQUIRES: num_threads >= 1.
  void prefault(std::int64_t num_threads);

 private:
  HostPool(std::byte* data, std::int64_t size_bytes, std::int64_t mapped_bytes)
      : data_(data), size_bytes_(size_bytes), mapped_bytes_(mapped_bytes) {}

  std::byte* data_;
  std::int64_t size_bytes_;
  std::int64_t mapped_bytes_;
};

}  // namespace hostkv

#endif  // HOSTKV_OFFLOAD_HOST_POOL_H_
