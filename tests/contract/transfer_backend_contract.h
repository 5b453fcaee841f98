#ifndef HOSTKV_TESTS_CONTRACT_TRANSFER_BACKEND_CONTRACT_H_
#define HOSTKV_TESTS_CONTRACT_TRANSFER_BACKEND_CONTRACT_H_

// The one suite that every TransferBackend passes: it proves the sentences of hostkv/transfer_backend.h.
//
// A backend joins with a ContractSubject (how to make the backend, a compute stream and memory) and a definition of
// contract_params(), linked with the tests in transfer_backend_*contract.cc. Interleavings are chosen by holding the
// compute stream, never by sleeping.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "hostkv/transfer_backend.h"

namespace hostkv::testing {

inline constexpr std::chrono::nanoseconds kForever = std::chrono::nanoseconds::max();

// A compute stream: work in order, that the test can hold.
class ContractStream {
 public:
  virtual ~ContractStream() = default;
  [[nodiscard]] virtual StreamHandle handle() = 0;
  // Work enqueued later runs only after open().
  virtual void hold() = 0;
  virtual void open() = 0;
  // A kernel that writes `value` to every byte of [target, target + size_bytes).
  virtual void enqueue_fill(void* target, std::int64_t size_bytes, std::uint8_t value) = 0;
  virtual void synchronize() = 0;
};

// Memory that the backend can copy from and to, seen by the test byte by byte.
class ContractMemory {
 public:
  virtual ~ContractMemory() = default;
  [[nodiscard]] virtual RegionDesc region() = 0;
  virtual void write(std::int64_t offset_bytes, const std::vector<std::uint8_t>& bytes) = 0;
  [[nodiscard]] virtual std::vector<std::uint8_t> read(std::int64_t offset_bytes, std::int64_t size_bytes) = 0;
};

class ContractSubject {
 public:
  virtual ~ContractSubject() = default;
  virtual std::unique_ptr<TransferBackend> make_backend(std::int64_t max_jobs_in_flight) = 0;
  virtual std::unique_ptr<ContractStream> make_stream() = 0;
  virtual std::unique_ptr<ContractMemory> make_memory(std::int64_t size_bytes, Medium medium) = 0;
};

struct ContractParam {
  std::string name;
  std::function<std::unique_ptr<ContractSubject>()> make;
};

inline void PrintTo(const ContractParam& param, std::ostream* out) {
  *out << param.name;
}

// Defined by each test executable: the backends to prove.
std::vector<ContractParam> contract_params();

inline std::string contract_name(const ::testing::TestParamInfo<ContractParam>& info) {
  return info.param.name;
}

// A backend with one device region and one host region of 64 KiB, and a compute stream.
class TransferBackendContract : public ::testing::TestWithParam<ContractParam> {
 protected:
  static constexpr std::int64_t kRegionBytes = 64 * 1024;
  static constexpr std::int64_t kMaxJobs = 8;

  TransferBackendContract();
  ~TransferBackendContract() override;

  // Makes the backend anew, with both regions registered.
  void start_backend(std::int64_t max_jobs_in_flight);
  void stop_backend() { backend_.reset(); }

  [[nodiscard]] CopyRun store_run(std::int64_t src_offset, std::int64_t dst_offset, std::int64_t size) const;
  [[nodiscard]] CopyRun load_run(std::int64_t src_offset, std::int64_t dst_offset, std::int64_t size) const;
  // Inside the device region.
  [[nodiscard]] CopyRun device_run(std::int64_t src_offset, std::int64_t dst_offset, std::int64_t size) const;
  // A job of one or more runs, not ordered after anything.
  static TransferJob job(std::uint64_t id, Direction direction, std::vector<CopyRun> runs);
  // A store of device bytes [0, size) to the same place of the host region, ordered after the stream.
  [[nodiscard]] TransferJob store_after_stream(std::uint64_t id, std::int64_t size = 4096);

  // All results until no job is in flight and nothing is left to poll.
  std::vector<TransferResult> drain_results();
  // The next result, that must be the job's.
  TransferResult only_result_of(JobId id);
  // Ends the only job in flight.
  TransferResult only_result();
  void expect_untouched(ContractMemory& memory, std::int64_t offset, std::int64_t size, std::uint8_t value);
  static void expect_all_failed(const TransferResult& result, StatusCode code, std::uint32_t num_runs);
  // Bytes that tell their place.
  static std::vector<std::uint8_t> pattern(std::int64_t size, std::uint8_t salt);
  static std::vector<std::uint8_t> constant(std::int64_t size, std::uint8_t value);

  std::unique_ptr<ContractSubject> subject_;
  std::unique_ptr<ContractMemory> device_;
  std::unique_ptr<ContractMemory> host_;
  std::unique_ptr<ContractStream> stream_;
  std::unique_ptr<TransferBackend> backend_;
  RegionId device_region_;
  RegionId host_region_;
};

}  // namespace hostkv::testing

#endif  // HOSTKV_TESTS_CONTRACT_TRANSFER_BACKEND_CONTRACT_H_
