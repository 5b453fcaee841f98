#ifndef HOSTKV_RECOVERY_BLOCK_CHECKSUMS_H_
#define HOSTKV_RECOVERY_BLOCK_CHECKSUMS_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "hostkv/host_backend.h"
#include "hostkv/options.h"
#include "hostkv/types.h"
#include "offload/worker_team.h"

namespace hostkv {

// What the blocks of one rank's pool looked like when they were stored: XXH3-64 of each, kept beside the pool.
//
// Purpose: bytes that have changed in host memory are found before a token is computed from them (R11). A store's
// blocks are recorded once their bytes are there, a load's are verified beside the copy; both on threads of their own,
// loads never behind stores.
// Thread-safety: one thread calls. Ownership: the bytes are the caller's and must stay, unchanged, until the job's
// result was taken or drain() answered true. A place is recorded and verified by one job at a time.
// Cost: record() and verify() are O(blocks) and wait for nothing; 8 bytes a place. Failure: none; a place of which
// nothing was recorded is not verified.
class BlockChecksums {
 public:
  struct Block {
    std::size_t place = 0;  // its number in the pool, 0 .. num_places - 1
    std::span<const std::byte> bytes;
  };
  struct Result {
    JobId job;
    std::vector<std::uint32_t> changed;  // verify: indices into `blocks` whose bytes are not what was recorded
  };

  // `mode`: kSampled covers one place in kSampledOneIn, the same ones always; kOff none.
  BlockChecksums(ChecksumMode mode, std::size_t num_places, std::int64_t num_threads);

  [[nodiscard]] bool covers(std::size_t place) const;
  // Answer false where none of the blocks is covered: there will be no result. Otherwise there is one, by take().
  bool record(JobId job, std::vector<Block> blocks);
  bool verify(JobId job, std::vector<Block> blocks);
  // Appends the results that have come since the last call, the oldest first.
  void take(std::vector<Result>& results);
  // True: everything asked for so far has its result; false: not within `timeout`.
  bool drain(std::chrono::nanoseconds timeout);

  static constexpr std::size_t kSampledOneIn = 16;

 private:
  // A thread that takes jobs in order, and the threads that share the blocks of one.
  struct Lane {
    Lane(const char* name, std::int64_t num_threads) : team(num_threads), stream(name) {}
    WorkerTeam team;
    HostStream stream;  // the last to be made, the first to go
  };

  using Work = void (BlockChecksums::*)(JobId job, std::span<const Block> blocks);

  bool start(Lane& lane, Work work, JobId job, std::vector<Block> blocks);
  void record_now(JobId job, std::span<const Block> blocks);
  void verify_now(JobId job, std::span<const Block> blocks);
  void end_job(Result result);

  ChecksumMode mode_;
  std::vector<std::uint64_t> sums_;  // [num_places]; kNothing: not recorded
  std::mutex mutex_;
  std::condition_variable idle_;
  std::size_t jobs_in_flight_ = 0;
  std::vector<Result> results_;
  Lane stores_;
  Lane loads_;
};

}  // namespace hostkv

#endif  // HOSTKV_RECOVERY_BLOCK_CHECKSUMS_H_
