// R10 from several threads at once: every accepted job ends exactly once, and its bytes agree with how it ended.

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "tests/contract/transfer_backend_contract.h"
#include "tests/support/test_seed.h"

namespace hostkv::testing {
namespace {

constexpr std::uint64_t kThreads = 3;
constexpr std::uint64_t kJobsPerThread = 40;
constexpr std::int64_t kBytes = 48;
constexpr std::int64_t kStride = 64;
constexpr std::int64_t kUpperHalf =
    32 * 1024;  // targets of loads and of copies on the device, sources of loads in the host

// What one thread did; read after it was joined.
struct Log {
  std::set<JobId> accepted;
  std::set<JobId> cancelled;
  std::set<JobId> with_deadline;
};

std::int64_t place_of(JobId id) {
  return static_cast<std::int64_t>(id.value()) * kStride;
}

Direction direction_of(JobId id) {
  return static_cast<Direction>(id.value() % kNumDirections);
}

class TransferBackendRace : public TransferBackendContract {
 protected:
  [[nodiscard]] TransferJob make_job(JobId id) const { return job(id.value(), direction_of(id), {run_of(id)}); }

  [[nodiscard]] CopyRun run_of(JobId id) const {
    const std::int64_t place = place_of(id);
    switch (direction_of(id)) {
      case Direction::kStore:
        return store_run(place, place, kBytes);
      case Direction::kLoad:
        return load_run(kUpperHalf + place, kUpperHalf + place, kBytes);
      case Direction::kDeviceCopy:
        break;
    }
    return device_run(place, kUpperHalf + place, kBytes);
  }

  // Submits its jobs, in between cancels some and drains, as the seed says.
  void act(std::uint64_t thread, std::uint64_t seed, Log& log) {
    std::mt19937_64 random(seed);
    for (std::uint64_t i = 0; i < kJobsPerThread; ++i) {
      const JobId id{1 + thread * kJobsPerThread + i};
      TransferJob submitted = make_job(id);
      if (random() % 2 == 0) {
        submitted.after = stream_->handle();
      }
      if (random() % 4 == 0) {
        submitted.deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 200);
        log.with_deadline.insert(id);
      }
      if (backend_->submit(std::move(submitted)).ok()) {
        log.accepted.insert(id);
      }
      if (random() % 3 == 0) {
        const JobId victim{1 + thread * kJobsPerThread + random() % (i + 1)};
        log.cancelled.insert(victim);
        static_cast<void>(backend_->cancel(victim));
      }
      if (random() % 8 == 0) {
        static_cast<void>(backend_->drain(std::chrono::microseconds(random() % 50)));
      }
    }
  }

  void check_bytes(const TransferResult& result) {
    const CopyRun run = run_of(result.id);
    const auto bytes = [&](RegionId region, std::int64_t offset) {
      return (region == device_region_ ? *device_ : *host_).read(offset, kBytes);
    };
    const std::vector<std::uint8_t> source = bytes(run.src_region, run.src_offset_bytes);
    const std::vector<std::uint8_t> target = bytes(run.dst_region, run.dst_offset_bytes);
    if (result.status == StatusCode::kOk) {
      EXPECT_EQ(target, source);
      EXPECT_EQ(result.bytes_moved, kBytes);
    } else {
      EXPECT_EQ(target, constant(kBytes, 0));
      expect_all_failed(result, result.status, 1);
    }
  }

  void run_round(std::uint64_t seed) {
    host_->write(0, constant(kUpperHalf, 0));
    host_->write(kUpperHalf, pattern(kUpperHalf, 9));
    device_->write(kUpperHalf, constant(kUpperHalf, 0));
    start_backend(static_cast<std::int64_t>(kThreads * kJobsPerThread / 2));  // so that some are refused
    std::array<Log, kThreads> logs;
    std::vector<TransferResult> results;
    run_threads(seed, logs, results);
    check_round(logs, results);
  }

  void run_threads(std::uint64_t seed, std::array<Log, kThreads>& logs, std::vector<TransferResult>& results) {
    std::atomic<std::uint64_t> num_acting{kThreads};
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        act(t, seed * kThreads + t, logs.at(t));
        --num_acting;
      });
    }
    std::array<TransferResult, 5> some;
    while (num_acting > 0) {
      stream_->hold();
      const std::size_t count = backend_->poll(some);
      results.insert(results.end(), some.begin(), some.begin() + static_cast<std::ptrdiff_t>(count));
      stream_->open();
      stream_->synchronize();
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    const std::vector<TransferResult> rest = drain_results();
    results.insert(results.end(), rest.begin(), rest.end());
  }

  void check_round(std::array<Log, kThreads>& logs, const std::vector<TransferResult>& results) {
    Log all;
    for (Log& log : logs) {
      all.accepted.merge(log.accepted);
      all.cancelled.merge(log.cancelled);
      all.with_deadline.merge(log.with_deadline);
    }
    std::set<JobId> ended;
    for (const TransferResult& result : results) {
      SCOPED_TRACE("job " + std::to_string(result.id.value()));
      EXPECT_TRUE(ended.insert(result.id).second) << "a second result";
      check_bytes(result);
      if (result.status == StatusCode::kCanceled) {
        EXPECT_TRUE(all.cancelled.contains(result.id));
      } else if (result.status == StatusCode::kDeadlineExceeded) {
        EXPECT_TRUE(all.with_deadline.contains(result.id));
      } else {
        EXPECT_EQ(result.status, StatusCode::kOk);
      }
    }
    EXPECT_EQ(ended, all.accepted);
    EXPECT_TRUE(backend_->unregister_region(device_region_).ok());
    EXPECT_TRUE(backend_->unregister_region(host_region_).ok());
  }
};

TEST_P(TransferBackendRace, EveryAcceptedJobEndsExactlyOnce) {
  const std::uint64_t seed = test_seed(20261130);
  const std::uint64_t rounds = test_rounds(20);
  for (std::uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    SCOPED_TRACE("HOSTKV_TEST_SEED=" + std::to_string(seed + round));
    run_round(seed + round);
  }
}

INSTANTIATE_TEST_SUITE_P(All, TransferBackendRace, ::testing::ValuesIn(contract_params()), contract_name);

}  // namespace
}  // namespace hostkv::testing
