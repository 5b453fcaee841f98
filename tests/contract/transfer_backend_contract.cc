#include "tests/contract/transfer_backend_contract.h"

#include <array>
#include <numeric>

namespace hostkv::testing {

TransferBackendContract::TransferBackendContract()
    : subject_(GetParam().make()),
      device_(subject_->make_memory(kRegionBytes, Medium::kDevice)),
      host_(subject_->make_memory(kRegionBytes, Medium::kHost)),
      stream_(subject_->make_stream()) {
  device_->write(0, pattern(kRegionBytes, 1));
  host_->write(0, constant(kRegionBytes, 0));
  start_backend(kMaxJobs);
}

TransferBackendContract::~TransferBackendContract() {
  stream_->open();  // a test that failed half-way must not hang
}

void TransferBackendContract::start_backend(std::int64_t max_jobs_in_flight) {
  backend_ = subject_->make_backend(max_jobs_in_flight);
  device_region_ = backend_->register_region(device_->region()).value();
  host_region_ = backend_->register_region(host_->region()).value();
}

CopyRun TransferBackendContract::store_run(std::int64_t src_offset, std::int64_t dst_offset, std::int64_t size) const {
  return {device_region_, src_offset, host_region_, dst_offset, size};
}

CopyRun TransferBackendContract::load_run(std::int64_t src_offset, std::int64_t dst_offset, std::int64_t size) const {
  return {host_region_, src_offset, device_region_, dst_offset, size};
}

CopyRun TransferBackendContract::device_run(std::int64_t src_offset, std::int64_t dst_offset, std::int64_t size) const {
  return {device_region_, src_offset, device_region_, dst_offset, size};
}

TransferJob TransferBackendContract::job(std::uint64_t id, Direction direction, std::vector<CopyRun> runs) {
  return {.id = JobId{id}, .direction = direction, .runs = std::move(runs), .after = {}, .deadline = {}};
}

TransferJob TransferBackendContract::store_after_stream(std::uint64_t id, std::int64_t size) {
  TransferJob store = job(id, Direction::kStore, {store_run(0, 0, size)});
  store.after = stream_->handle();
  return store;
}

std::vector<TransferResult> TransferBackendContract::drain_results() {
  const Status drained = backend_->drain(kForever);
  EXPECT_TRUE(drained.ok()) << drained.to_string();
  std::vector<TransferResult> all;
  std::array<TransferResult, 3> some;
  for (std::size_t count = backend_->poll(some); count > 0; count = backend_->poll(some)) {
    all.insert(all.end(), some.begin(), some.begin() + static_cast<std::ptrdiff_t>(count));
  }
  return all;
}

TransferResult TransferBackendContract::only_result_of(JobId id) {
  std::array<TransferResult, 1> result;
  EXPECT_EQ(backend_->poll(result), 1U);
  EXPECT_EQ(result[0].id, id);
  return result[0];
}

TransferResult TransferBackendContract::only_result() {
  const std::vector<TransferResult> results = drain_results();
  EXPECT_EQ(results.size(), 1U);
  return results.empty() ? TransferResult{} : results.front();
}

void TransferBackendContract::expect_untouched(ContractMemory& memory, std::int64_t offset, std::int64_t size,
                                               std::uint8_t value) {
  EXPECT_EQ(memory.read(offset, size), constant(size, value));
}

void TransferBackendContract::expect_all_failed(const TransferResult& result, StatusCode code, std::uint32_t num_runs) {
  std::vector<std::uint32_t> all(num_runs);
  std::iota(all.begin(), all.end(), 0U);
  EXPECT_EQ(result.status, code);
  EXPECT_EQ(result.failed_runs, all);
  EXPECT_EQ(result.bytes_moved, 0);
}

std::vector<std::uint8_t> TransferBackendContract::pattern(std::int64_t size, std::uint8_t salt) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::uint8_t>((i * 37 + i / 251 + salt) % 256);
  }
  return bytes;
}

std::vector<std::uint8_t> TransferBackendContract::constant(std::int64_t size, std::uint8_t value) {
  return std::vector<std::uint8_t>(static_cast<std::size_t>(size), value);
}

INSTANTIATE_TEST_SUITE_P(All, TransferBackendContract, ::testing::ValuesIn(contract_params()), contract_name);

}  // namespace hostkv::testing
