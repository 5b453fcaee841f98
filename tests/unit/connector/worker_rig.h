#ifndef HOSTKV_TESTS_UNIT_CONNECTOR_WORKER_RIG_H_
#define HOSTKV_TESTS_UNIT_CONNECTOR_WORKER_RIG_H_

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "connector/step_metadata.h"
#include "hostkv/connector.h"
#include "tests/support/layout_builders.h"

namespace hostkv::testing {

inline constexpr std::chrono::seconds kLong{20};

// A worker over a backend of the test's choice; the test writes the scheduler's messages.
struct WorkerRig {
  WorkerRig(const Geometry& geometry, OwnedLayout owned, std::unique_ptr<TransferBackend> backend,
            std::int64_t pool_bytes = 1 << 16, WorkerSpec spec = {}, ChecksumMode checksums = ChecksumMode::kOff)
      : device(std::move(owned)) {
    ConnectorOptions options;
    options.cpu_bytes_to_use_per_rank = pool_bytes;
    options.checksums = checksums;
    auto made = WorkerConnector::create(geometry, options, spec, std::move(backend));
    EXPECT_TRUE(made.has_value()) << (made ? "" : made.error().message());
    worker = std::move(*made);
  }

  WorkerCapacity register_layout() {
    const Result<WorkerCapacity> capacity = worker->register_layout(device.layout);
    EXPECT_TRUE(capacity.has_value()) << (capacity ? "" : capacity.error().message());
    return capacity ? *capacity : WorkerCapacity{};
  }
  Status bind(std::vector<StepJob> jobs, StreamHandle compute = {}) {
    return worker->bind_step(encode_step_metadata({.epoch = 1, .sequence = ++sequence, .jobs = std::move(jobs)}),
                             compute);
  }
  std::vector<JobResult> poll() {
    Result<std::vector<JobResult>> results = worker->poll();
    EXPECT_TRUE(results.has_value()) << (results ? "" : results.error().message());
    return results ? *results : std::vector<JobResult>{};
  }
  // One step with these jobs, to its end; kOk only if all of them are.
  StatusCode run(std::vector<StepJob> jobs) {
    const std::size_t num_jobs = jobs.size();
    EXPECT_EQ(bind(std::move(jobs)), Status());
    std::vector<JobResult> results = poll();
    EXPECT_EQ(worker->wait_idle(kLong), Status());
    for (JobResult& late : poll()) {
      results.push_back(std::move(late));
    }
    EXPECT_EQ(results.size(), num_jobs);
    StatusCode code = StatusCode::kOk;
    for (const JobResult& result : results) {
      code = result.status == StatusCode::kOk ? code : result.status;
    }
    return code;
  }

  [[nodiscard]] std::vector<unsigned char> read(GroupIndex group, BlockId block) const {
    std::vector<unsigned char> bytes;
    for (const KvBlockRange& range : device.layout.groups[group.value()]) {
      const auto* from = static_cast<const unsigned char*>(device.layout.regions[range.region].base) +
                         range.offset_bytes + block.value() * range.block_stride_bytes;
      bytes.insert(bytes.end(), from, from + range.size_bytes);
    }
    return bytes;
  }
  void write(GroupIndex group, BlockId block, const std::vector<unsigned char>& bytes) {
    const unsigned char* from = bytes.data();
    for (const KvBlockRange& range : device.layout.groups[group.value()]) {
      std::memcpy(static_cast<unsigned char*>(device.layout.regions[range.region].base) + range.offset_bytes +
                      block.value() * range.block_stride_bytes,
                  from, static_cast<std::size_t>(range.size_bytes));
      from += range.size_bytes;
    }
  }
  // Different in every byte's neighbourhood and for every seed.
  void fill_device(std::uint64_t seed) {
    for (const KvRegion& region : device.layout.regions) {
      for (std::int64_t i = 0; i < region.size_bytes; ++i) {
        seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
        static_cast<unsigned char*>(region.base)[i] = static_cast<unsigned char>(seed >> 56U);
      }
    }
  }

  OwnedLayout device;
  std::unique_ptr<WorkerConnector> worker;
  std::uint64_t sequence = 0;
};

inline StepJob store_job(std::uint64_t id, std::vector<StepBlock> blocks) {
  return {JobId{id}, Direction::kStore, std::move(blocks)};
}
inline StepJob load_job(std::uint64_t id, std::vector<StepBlock> blocks) {
  return {JobId{id}, Direction::kLoad, std::move(blocks)};
}
inline StepJob device_copy_job(std::uint64_t id, std::vector<StepBlock> blocks) {
  return {JobId{id}, Direction::kDeviceCopy, std::move(blocks)};
}
inline StepBlock copy_block(std::uint32_t group, std::uint32_t source, std::uint32_t target) {
  return StepBlock::device_copy(GroupIndex{group}, BlockId{source}, BlockId{target});
}
inline StepBlock step_block(std::uint32_t group, std::uint32_t block, SlotId slot) {
  return {GroupIndex{group}, BlockId{block}, slot};
}

}  // namespace hostkv::testing

#endif  // HOSTKV_TESTS_UNIT_CONNECTOR_WORKER_RIG_H_
