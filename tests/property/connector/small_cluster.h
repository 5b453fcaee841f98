#ifndef HOSTKV_TESTS_PROPERTY_CONNECTOR_SMALL_CLUSTER_H_
#define HOSTKV_TESTS_PROPERTY_CONNECTOR_SMALL_CLUSTER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "hostkv/connector.h"
#include "tests/support/layout_builders.h"
#include "tests/support/step_backend.h"

namespace hostkv::testing {

// Device blocks with owners and pins; a block of neither is free, and free blocks hold garbage.
class DeviceBlocks final : public EngineBlocks {
 public:
  explicit DeviceBlocks(std::uint32_t num_blocks);
  void pin(std::span<const BlockId> blocks) override;
  void unpin(std::span<const BlockId> blocks) override;
  [[nodiscard]] GroupTable block_table(RequestId request, GroupIndex group, std::int64_t first_block) override;

  [[nodiscard]] std::size_t num_free() const { return free_.size(); }
  BlockId take();
  void give_back(BlockId& block);
  // Blocks that became free since the last call.
  std::vector<BlockId> take_freed() { return std::exchange(freed_, {}); }

  std::map<RequestId, std::vector<std::vector<BlockId>>> tables;  // [num_groups][blocks]
  bool misused = false;

 private:
  void free_if_unused(BlockId block);

  std::vector<std::uint32_t> owners_;
  std::vector<std::uint32_t> pins_;
  std::deque<BlockId> free_;
  std::vector<BlockId> freed_;
};

// An engine of one scheduler and some ranks in one process, whose steps, faults and delays are drawn at random. The
// bytes of a block are made from the tokens before its end, its group and the rank, so that whatever a load brings can
// be judged alone.
//
// Purpose: the property "a load delivers exactly the bytes of its key, on every rank". Thread-safety: one thread.
// Ownership: all its memory. Cost: one step is some hundred small copies. Failure: gtest failures.
class SmallCluster {
 public:
  struct Limits {
    std::int64_t num_ranks = 1;
    std::uint32_t num_device_blocks = 64;
    std::int64_t num_host_slots = 24;
    std::uint64_t max_requests = 6;
  };
  SmallCluster(const Geometry& geometry, Limits limits, std::uint64_t seed);

  void step();
  // Ends everything, without faults, and checks that nothing is left.
  void finish();

  [[nodiscard]] std::int64_t good_loads() const { return good_loads_; }
  [[nodiscard]] std::int64_t failed_loads() const { return failed_loads_; }
  [[nodiscard]] SchedulerMetrics metrics() const { return scheduler_->metrics(); }

 private:
  enum class Phase : std::uint8_t { kWaiting, kPromised, kLoading, kRunning };
  struct Request {
    std::string text;  // a letter for each hash block
    std::int64_t num_tokens = 0;
    std::int64_t num_local = 0;
    std::int64_t num_external = 0;
    std::int64_t num_computed = 0;
    Phase phase = Phase::kWaiting;
  };
  struct Rank {
    OwnedLayout device;
    StepBackend* backend = nullptr;  // the worker's
    std::unique_ptr<WorkerConnector> worker;
  };

  bool chance(std::uint64_t percent) { return random_() % 100 < percent; }
  void add_rank(std::uint32_t rank, const Limits& limits);
  void add_requests();
  void admit(RequestId id, Request& request);
  bool give_blocks(RequestId id, const Request& request);
  void release_blocks(RequestId id);
  void disturb();
  void run_step();
  void compute(RequestId id, const Request& request, std::int64_t end_tokens);
  void move_bytes();
  void deliver(bool all);
  void take_outcomes();
  void check_load(RequestId id, const Request& request);
  void end(RequestId id);
  void scribble_freed();

  [[nodiscard]] std::vector<unsigned char> content(std::uint32_t rank, GroupIndex group, const Request& request,
                                                   std::int64_t end_tokens) const;
  void write(RequestId id, const Request& request, GroupIndex group, std::int64_t block_index);
  [[nodiscard]] std::vector<unsigned char> read(std::uint32_t rank, GroupIndex group, BlockId block) const;
  void fill(std::uint32_t rank, GroupIndex group, BlockId block, const std::vector<unsigned char>& bytes);
  [[nodiscard]] bool is_state(GroupIndex group) const { return geometry_.group(group).kind == GroupKind::kMamba; }

  Geometry geometry_;
  Limits limits_;
  std::mt19937_64 random_;
  DeviceBlocks blocks_;
  std::unique_ptr<SchedulerConnector> scheduler_;
  std::vector<Rank> ranks_;
  std::map<RequestId, Request> requests_;
  std::vector<RequestId> preempted_;
  std::vector<JobResult> results_;  // not delivered yet
  std::uint64_t last_request_ = 0;
  bool with_faults_ = true;
  std::int64_t good_loads_ = 0;
  std::int64_t failed_loads_ = 0;
};

}  // namespace hostkv::testing

#endif  // HOSTKV_TESTS_PROPERTY_CONNECTOR_SMALL_CLUSTER_H_
