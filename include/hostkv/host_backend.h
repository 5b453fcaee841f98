#ifndef HOSTKV_INCLUDE_HOSTKV_HOST_BACKEND_H_
#define HOSTKV_INCLUDE_HOSTKV_HOST_BACKEND_H_

// The host backend: copies between ranges of host memory, with real streams, events and asynchronous completion.
//
// Purpose: serves engines that run on CPUs and every test; the reference implementation of transfer_backend.h.
// Thread-safety: HostStream and HostEvent are thread-safe; the backend as its contract says.
// Ownership: a HostStream owns its thread and joins it in its destructor after running what was queued.
// Cost: one thread a stream; the backend has one a direction (stores, loads, device copies), each with
// copy_threads of its own for the copies of one job.
// Failure: create_host_backend answers kInvalidArgument for options out of range.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "hostkv/status.h"
#include "hostkv/transfer_backend.h"
#include "hostkv/types.h"

namespace hostkv {

// A point in a stream. Copies share the same point. Default: already reached.
class HostEvent {
 public:
  HostEvent() = default;
  [[nodiscard]] bool reached() const;                                   // never blocks
  void wait() const;                                                    // until reached
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds timeout) const;  // true: reached

 private:
  friend class HostStream;
  struct State;
  std::shared_ptr<State> state_;  // shared: an event outlives the stream that records it
};

// An in-order queue of work on a thread of its own; the CPU's compute stream.
class HostStream {
 public:
  explicit HostStream(std::string thread_name);  // at most 15 characters are shown by the system
  ~HostStream();
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  // Runs `work` after everything enqueued before. `work` must not throw.
  void enqueue(std::function<void()> work);
  // Reached once everything enqueued before has run.
  [[nodiscard]] HostEvent record_event();
  // Work enqueued later runs only after `event` was reached.
  void wait_event(HostEvent event);
  // Until everything enqueued so far has run.
  void synchronize();

  [[nodiscard]] StreamHandle handle() { return StreamHandle{this}; }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct HostBackendOptions {
  std::int64_t copy_threads = 2;           // 1 .. 64; threads that share the copies of one job
  std::int64_t max_jobs_in_flight = 4096;  // 1 .. 1,000,000
};

Result<std::unique_ptr<TransferBackend>> create_host_backend(const HostBackendOptions& options);

}  // namespace hostkv

#endif  // HOSTKV_INCLUDE_HOSTKV_HOST_BACKEND_H_
