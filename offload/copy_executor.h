#ifndef HOSTKV_OFFLOAD_COPY_EXECUTOR_H_
#define HOSTKV_OFFLOAD_COPY_EXECUTOR_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "offload/worker_team.h"

namespace hostkv {

// One contiguous copy in host memory; source and target do not overlap.
struct CopySpan {
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  std::int64_t size_bytes = 0;
};

// Copies the spans of one job, shared over a few threads.
//
// Purpose: scattered blocks at the speed of memory. Spans are dealt by bytes, so one big span keeps all threads busy.
// Thread-safety: one thread at a time. Ownership: owns its threads; the memory is the caller's.
// Cost: O(spans) and the copies; jobs under kInlineBytes run on the calling thread; no allocation that grows with
// bytes or spans. Failure: none.
class CopyExecutor {
 public:
  static constexpr std::int64_t kInlineBytes = 256 * 1024;

  explicit CopyExecutor(std::int64_t num_threads) : num_threads_(num_threads), team_(num_threads) {}

  void copy(std::span<const CopySpan> spans);

 private:
  std::int64_t num_threads_;
  WorkerTeam team_;
};

}  // namespace hostkv

#endif  // HOSTKV_OFFLOAD_COPY_EXECUTOR_H_
