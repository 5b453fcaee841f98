#ifndef HOSTKV_TESTS_SUPPORT_CONNECTOR_HARNESS_H_
#define HOSTKV_TESTS_SUPPORT_CONNECTOR_HARNESS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "connector/step_metadata.h"
#include "hostkv/connector.h"

namespace hostkv::testing {

// An engine's block pool that only counts: tables as the test sets them, pins by block, and what a connector must never
// do (pin the null block or a stale table entry, unpin what is not pinned).
class FakeBlocks final : public EngineBlocks {
 public:
  void pin(std::span<const BlockId> blocks) override;
  void unpin(std::span<const BlockId> blocks) override;
  [[nodiscard]] GroupTable block_table(RequestId request, GroupIndex group, std::int64_t first_block) override;

  [[nodiscard]] std::int64_t num_blocks() const override { return num_device_blocks; }

  std::int64_t num_device_blocks = 0;  // 0: not told

  // A table of blocks that nobody else has, [num_groups][num_blocks].
  std::vector<std::vector<BlockId>>& give(RequestId request, std::uint32_t num_groups, std::size_t num_blocks);
  void forget(RequestId request) { tables_.erase(request); }
  [[nodiscard]] std::vector<GroupTable> tables(RequestId request) const;
  [[nodiscard]] std::vector<std::vector<BlockId>>& table(RequestId request) { return tables_[request]; }

  [[nodiscard]] std::int64_t num_pins() const;
  [[nodiscard]] const std::map<BlockId, std::int64_t>& pins() const { return pins_; }
  [[nodiscard]] const std::vector<std::string>& errors() const { return errors_; }

 private:
  static constexpr BlockId kStaleBlock{0xDEADBEEF};

  std::map<RequestId, std::vector<std::vector<BlockId>>> tables_;
  std::map<RequestId, std::map<GroupIndex, std::vector<BlockId>>> shown_;
  std::map<BlockId, std::int64_t> pins_;  // no zeros
  std::vector<std::string> errors_;
  std::uint32_t last_block_ = 0;
};

// Prefix hashes of `num_blocks` hash blocks of the text `text`: equal for equal texts, 32 bytes each.
std::vector<std::byte> hashes_of(const std::string& text, std::int64_t num_blocks);

// A scheduler side with a fake engine; the ranks' answers come from the test.
struct SchedulerRig {
  SchedulerRig(const Geometry& geometry, std::int64_t num_ranks, ConnectorOptions options = {},
               EngineTraits traits = {});

  // Every rank reports `num_slabs` slabs of one slot for each offloadable group (all groups share them).
  void report_all(std::uint64_t num_slabs);
  [[nodiscard]] WorkerCapacity capacity(std::uint32_t rank, std::uint64_t num_slabs) const;

  // A request with the hashes of all its blocks.
  void add(std::uint64_t id, const std::string& text, std::int64_t num_tokens);
  std::int64_t match(std::uint64_t id, std::int64_t num_tokens, std::int64_t num_local_tokens = 0);
  Status allocate(std::uint64_t id, std::int64_t num_tokens, std::int64_t num_external_tokens = 0);
  // One step in which `id` computes its tokens [from, to); what every rank is told.
  StepMetadata step(std::uint64_t id, std::int64_t from, std::int64_t to);
  StepMetadata step(const StepInput& input = {});
  // Adds, allocates and computes the request in one step, and finishes it; its stores are planned, not answered.
  StepMetadata run(std::uint64_t id, const std::string& text, std::int64_t num_tokens);
  // run(), answered with kOk by all ranks.
  void store(std::uint64_t id, const std::string& text, std::int64_t num_tokens);
  void finish(std::uint64_t id, std::int64_t num_computed_tokens);

  [[nodiscard]] static JobResult result(const StepMetadata& step, const StepJob& job, std::uint32_t rank,
                                        StatusCode status = StatusCode::kOk, std::vector<FailedBlock> failed = {});
  void answer(const JobResult& result) { connector->on_worker_results({&result, 1}); }
  // All ranks, in order.
  void answer_all(const StepMetadata& step, StatusCode status = StatusCode::kOk);

  // R15 and the engine's own count of pins.
  void expect_consistent() const;
  // Nothing is pinned, in flight or to be taken.
  void expect_idle() const;

  std::int64_t num_ranks;
  FakeBlocks engine;
  std::unique_ptr<SchedulerConnector> connector;
};

bool equal(const SchedulerMetrics& a, const SchedulerMetrics& b);

}  // namespace hostkv::testing

#endif  // HOSTKV_TESTS_SUPPORT_CONNECTOR_HARNESS_H_
