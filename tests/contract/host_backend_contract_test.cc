#include <cstring>

#include "hostkv/host_backend.h"
#include "tests/contract/transfer_backend_contract.h"
#include "tests/support/fault_backend.h"
#include "tests/support/stream_gate.h"

namespace hostkv::testing {
namespace {

class HostContractStream final : public ContractStream {
 public:
  [[nodiscard]] StreamHandle handle() override { return stream_.handle(); }
  void hold() override { gate_ = std::make_unique<StreamGate>(stream_); }
  void open() override { gate_.reset(); }
  void enqueue_fill(void* target, std::int64_t size_bytes, std::uint8_t value) override {
    stream_.enqueue([=] { std::memset(target, value, static_cast<std::size_t>(size_bytes)); });
  }
  void synchronize() override { stream_.synchronize(); }

 private:
  HostStream stream_{"compute"};
  std::unique_ptr<StreamGate> gate_;  // goes first: the stream's destructor runs what is queued
};

class HostContractMemory final : public ContractMemory {
 public:
  HostContractMemory(std::int64_t size_bytes, Medium medium)
      : bytes_(static_cast<std::size_t>(size_bytes)), medium_(medium) {}
  [[nodiscard]] RegionDesc region() override {
    return {bytes_.data(), static_cast<std::int64_t>(bytes_.size()), medium_};
  }
  void write(std::int64_t offset_bytes, const std::vector<std::uint8_t>& bytes) override {
    std::copy(bytes.begin(), bytes.end(), bytes_.begin() + offset_bytes);
  }
  [[nodiscard]] std::vector<std::uint8_t> read(std::int64_t offset_bytes, std::int64_t size_bytes) override {
    return {bytes_.begin() + offset_bytes, bytes_.begin() + offset_bytes + size_bytes};
  }

 private:
  std::vector<std::uint8_t> bytes_;
  Medium medium_;
};

class HostSubject : public ContractSubject {
 public:
  explicit HostSubject(std::int64_t copy_threads) : copy_threads_(copy_threads) {}
  std::unique_ptr<TransferBackend> make_backend(std::int64_t max_jobs_in_flight) override {
    return create_host_backend({.copy_threads = copy_threads_, .max_jobs_in_flight = max_jobs_in_flight}).value();
  }
  std::unique_ptr<ContractStream> make_stream() override { return std::make_unique<HostContractStream>(); }
  std::unique_ptr<ContractMemory> make_memory(std::int64_t size_bytes, Medium medium) override {
    return std::make_unique<HostContractMemory>(size_bytes, medium);
  }

 private:
  std::int64_t copy_threads_;
};

class FaultOverHostSubject final : public HostSubject {
 public:
  using HostSubject::HostSubject;
  std::unique_ptr<TransferBackend> make_backend(std::int64_t max_jobs_in_flight) override {
    return std::make_unique<FaultBackend>(HostSubject::make_backend(max_jobs_in_flight));
  }
};

}  // namespace

std::vector<ContractParam> contract_params() {
  return {{"OneThread", [] { return std::make_unique<HostSubject>(1); }},
          {"FourThreads", [] { return std::make_unique<HostSubject>(4); }},
          {"BehindFaults", [] { return std::make_unique<FaultOverHostSubject>(2); }}};
}

}  // namespace hostkv::testing
