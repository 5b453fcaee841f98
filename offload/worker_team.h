#ifndef HOSTKV_OFFLOAD_WORKER_TEAM_H_
#define HOSTKV_OFFLOAD_WORKER_TEAM_H_

#include <cstdint>
#include <functional>
#include <memory>

namespace hostkv {

// A few threads that share numbered pieces of work; the caller is one of them.
//
// Purpose: the one place that knows whether the threads are oneTBB's or our own (HOSTKV_WITH_TBB).
// Thread-safety: one thread at a time. Ownership: owns its threads, joined in the destructor.
// Cost: run() wakes sleeping threads (some microseconds); with one thread it is a plain loop.
// Failure: none; `work` must not throw.
class WorkerTeam {
 public:
  explicit WorkerTeam(std::int64_t num_threads);  // >= 1
  ~WorkerTeam();
  WorkerTeam(const WorkerTeam&) = delete;
  WorkerTeam& operator=(const WorkerTeam&) = delete;

  // Calls work(0) .. work(num_pieces - 1), each once, in any order and on any of the threads; returns after the last.
  void run(std::int64_t num_pieces, const std::function<void(std::int64_t)>& work);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hostkv

#endif  // HOSTKV_OFFLOAD_WORKER_TEAM_H_
