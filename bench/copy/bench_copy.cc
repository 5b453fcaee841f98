// HostCopy/block_bytes:N/threads:T: one job of scattered blocks through the host backend.
//
// The working set is larger than the caches, the blocks of source and target are in shuffled order (fixed seed).
// Counter ratio_to_memcpy: the time of plain memcpy, one thread, of the same blocks in the same run, over the time of
// the job. Threads beyond the cores of the machine cannot help.
//
// Checksum/block_bytes:N/threads:T: the checksums of the same blocks (option checksums: all). Counter share_of_copy:
// their time over that of the copy job, with as many threads, in the same run.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "hostkv/host_backend.h"
#include "offload/host_pool.h"
#include "recovery/block_checksums.h"

namespace hostkv {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kWorkingSetBytes = std::int64_t{128} << 20;  // half source, half target
constexpr std::int64_t kSideBytes = kWorkingSetBytes / 2;
constexpr std::uint64_t kSeed = 20261130;
constexpr auto kForever = std::chrono::nanoseconds::max();

std::vector<std::int64_t> shuffled_offsets(std::int64_t block_bytes, std::uint64_t seed) {
  std::vector<std::int64_t> offsets(static_cast<std::size_t>(kSideBytes / block_bytes));
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    offsets[i] = static_cast<std::int64_t>(i) * block_bytes;
  }
  std::shuffle(offsets.begin(), offsets.end(), std::mt19937_64(seed));
  return offsets;
}

struct Setup {
  std::unique_ptr<TransferBackend> backend;
  std::unique_ptr<HostPool> source;
  std::unique_ptr<HostPool> target;
  std::vector<CopyRun> runs;

  Setup(std::int64_t block_bytes, std::int64_t num_threads)
      : backend(create_host_backend({.copy_threads = num_threads}).value()),
        source(HostPool::create({.size_bytes = kSideBytes, .numa_node = {}}).value()),
        target(HostPool::create({.size_bytes = kSideBytes, .numa_node = {}}).value()) {
    source->prefault(1);
    target->prefault(1);
    const RegionId src = backend->register_region({source->data(), kSideBytes, Medium::kDevice}).value();
    const RegionId dst = backend->register_region({target->data(), kSideBytes, Medium::kHost}).value();
    const std::vector<std::int64_t> from = shuffled_offsets(block_bytes, kSeed);
    const std::vector<std::int64_t> to = shuffled_offsets(block_bytes, kSeed + 1);
    for (std::size_t i = 0; i < from.size(); ++i) {
      runs.push_back({src, from[i], dst, to[i], block_bytes});
    }
  }

  Clock::duration copy_plainly() const {
    const auto start = Clock::now();
    for (const CopyRun& run : runs) {
      std::memcpy(target->data() + run.dst_offset_bytes, source->data() + run.src_offset_bytes,
                  static_cast<std::size_t>(run.size_bytes));
    }
    benchmark::ClobberMemory();
    return Clock::now() - start;
  }

  // From submit() to the result in hand.
  Clock::duration copy_through_backend() {
    TransferJob job{.id = JobId{1}, .direction = Direction::kStore, .runs = runs, .after = {}, .deadline = {}};
    std::array<TransferResult, 1> result;
    const auto start = Clock::now();
    const bool done = backend->submit(std::move(job)).ok() && backend->wait(JobId{1}, kForever).ok() &&
                      backend->poll(result) == 1 && result[0].status == StatusCode::kOk;
    const auto duration = Clock::now() - start;
    return done ? duration : Clock::duration::zero();
  }
};

double seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Plain and backend copies take turns, so that what else the machine does meets both; each counts by its median.
void host_copy(benchmark::State& state) {
  Setup setup(state.range(0), state.range(1));
  std::vector<double> plain;
  std::vector<double> through;
  for (auto _ : state) {
    plain.push_back(seconds(setup.copy_plainly()));
    through.push_back(seconds(setup.copy_through_backend()));
    if (through.back() == 0.0) {
      state.SkipWithError("the backend refused or failed the job");
      return;
    }
    state.SetIterationTime(through.back());
  }
  const double plain_median = median(plain);
  const double through_median = median(through);
  state.counters["ratio_to_memcpy"] = plain_median / through_median;
  state.counters["memcpy_GBps"] = static_cast<double>(kSideBytes) / plain_median / 1e9;
  state.counters["GBps"] = static_cast<double>(kSideBytes) / through_median / 1e9;
}

Clock::duration take_checksums(const Setup& setup, BlockChecksums& checksums) {
  std::vector<BlockChecksums::Block> blocks;
  for (std::size_t i = 0; i < setup.runs.size(); ++i) {
    const CopyRun& run = setup.runs[i];
    blocks.push_back({i, {setup.target->data() + run.dst_offset_bytes, static_cast<std::size_t>(run.size_bytes)}});
  }
  const auto start = Clock::now();
  checksums.record(JobId{1}, std::move(blocks));
  checksums.drain(kForever);
  return Clock::now() - start;
}

void host_checksums(benchmark::State& state) {
  Setup setup(state.range(0), state.range(1));
  BlockChecksums checksums(ChecksumMode::kAll, setup.runs.size(), state.range(1));
  std::vector<double> copied;
  std::vector<double> summed;
  for (auto _ : state) {
    copied.push_back(seconds(setup.copy_through_backend()));
    summed.push_back(seconds(take_checksums(setup, checksums)));
    state.SetIterationTime(summed.back());
  }
  const double summed_median = median(summed);
  state.counters["share_of_copy"] = summed_median / median(copied);
  state.counters["GBps"] = static_cast<double>(kSideBytes) / summed_median / 1e9;
}

BENCHMARK(host_checksums)
    ->Name("Checksum")
    ->ArgNames({"block_bytes", "threads"})
    ->ArgsProduct({{4 << 10, 64 << 10, 2 << 20}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->MinTime(0.5);

BENCHMARK(host_copy)
    ->Name("HostCopy")
    ->ArgNames({"block_bytes", "threads"})
    ->ArgsProduct({{4 << 10, 16 << 10, 64 << 10, 256 << 10, 2 << 20}, {1, 2, 4}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->MinTime(0.5);

}  // namespace
}  // namespace hostkv

BENCHMARK_MAIN();
