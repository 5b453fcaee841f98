#include "offload/worker_team.h"

#if HOSTKV_WITH_TBB
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>

#include <algorithm>
#else
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/thread_name.h"
#endif

namespace hostkv {

#if HOSTKV_WITH_TBB

struct WorkerTeam::Impl {
  // More than oneTBB's workers would only make it print a warning.
  explicit Impl(std::int64_t num_threads)
      : arena(static_cast<int>(std::min(num_threads, static_cast<std::int64_t>(tbb::global_control::active_value(
                                                         tbb::global_control::max_allowed_parallelism))))) {}

  void run(std::int64_t num_pieces, const std::function<void(std::int64_t)>& work) {
    arena.execute([&] {
      tbb::parallel_for(
          std::int64_t{0}, num_pieces, [&work](std::int64_t piece) { work(piece); }, tbb::simple_partitioner());
    });
  }

  tbb::task_arena arena;
};

#else

struct WorkerTeam::Impl {
  explicit Impl(std::int64_t num_threads) {
    for (std::int64_t i = 1; i < num_threads; ++i) {
      threads.emplace_back([this] {
        name_current_thread("hostkv-copy");
        serve();
      });
    }
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    for (std::thread& thread : threads) {
      thread.join();
    }
  }

  void run(std::int64_t num_pieces, const std::function<void(std::int64_t)>& work) {
    std::unique_lock lock(mutex);
    current = &work;
    next_piece = 0;
    end_piece = num_pieces;
    num_unfinished = num_pieces;
    changed.notify_all();
    take_pieces(lock);
    all_done.wait(lock, [this] { return num_unfinished == 0; });
    current = nullptr;
  }

  void serve() {
    std::unique_lock lock(mutex);
    while (!stopping) {
      take_pieces(lock);
      changed.wait(lock, [this] { return stopping || next_piece < end_piece; });
    }
  }

  // Pieces are large (some 100 KiB): a lock for each costs nothing beside the copy.
  void take_pieces(std::unique_lock<std::mutex>& lock) {
    while (next_piece < end_piece) {
      const std::int64_t piece = next_piece++;
      const std::function<void(std::int64_t)>& work = *current;
      lock.unlock();
      work(piece);
      lock.lock();
      if (--num_unfinished == 0) {
        all_done.notify_one();
      }
    }
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::condition_variable all_done;
  const std::function<void(std::int64_t)>* current = nullptr;
  std::int64_t next_piece = 0;
  std::int64_t end_piece = 0;
  std::int64_t num_unfinished = 0;
  bool stopping = false;
  std::vector<std::thread> threads;
};

#endif

WorkerTeam::WorkerTeam(std::int64_t num_threads)
    : impl_(num_threads > 1 ? std::make_unique<Impl>(num_threads) : nullptr) {}

WorkerTeam::~WorkerTeam() = default;

void WorkerTeam::run(std::int64_t num_pieces, const std::function<void(std::int64_t)>& work) {
  if (impl_ != nullptr && num_pieces > 1) {
    impl_->run(num_pieces, work);
    return;
  }
  for (std::int64_t piece = 0; piece < num_pieces; ++piece) {
    work(piece);
  }
}

}  // namespace hostkv
