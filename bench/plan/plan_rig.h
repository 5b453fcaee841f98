#ifndef HOSTKV_BENCH_PLAN_PLAN_RIG_H_
#define HOSTKV_BENCH_PLAN_PLAN_RIG_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "hostkv/connector.h"

namespace hostkv::bench {

inline constexpr std::int64_t kRequestTokens = 131'072;
inline constexpr std::size_t kHashBytes = 32;

// num_groups 1: full attention, 16 tokens a block and rank. 2: beside it a sliding window of 1,024 tokens in blocks of
// 16. 3: and recurrent states a full-attention block apart.
struct Model {
  std::int64_t num_groups = 1;
  std::int64_t dcp = 1;
};

// Blocks that exist as far as the connector can tell: every request has the same tables. Pins are counted, nothing
// else.
class CountedBlocks final : public EngineBlocks {
 public:
  explicit CountedBlocks(const Geometry& geometry);
  void pin(std::span<const BlockId> blocks) override { pins_ += std::ssize(blocks); }
  void unpin(std::span<const BlockId> blocks) override { pins_ -= std::ssize(blocks); }
  [[nodiscard]] GroupTable block_table(RequestId /*request*/, GroupIndex group, std::int64_t /*first_block*/) override {
    return tables_[group.value()];
  }
  [[nodiscard]] const std::vector<GroupTable>& all() const { return views_; }

 private:
  std::vector<std::vector<BlockId>> tables_;
  std::vector<GroupTable> views_;
  std::int64_t pins_ = 0;
};

// A scheduler side whose index is full, and the requests that filled it. A request is a prompt of `prompt_tokens` and
// one token more, computed in one step that hands off a state every 8,192 tokens. Any error ends the program.
class PlanRig {
 public:
  PlanRig(Model model, std::int64_t host_blocks, std::int64_t prompt_tokens = kRequestTokens);

  [[nodiscard]] std::vector<std::byte> fresh_hashes();
  RequestId add(const std::vector<std::byte>& hashes);
  void allocate(RequestId id, std::int64_t num_external_tokens);
  RequestId admit(const std::vector<std::byte>& hashes);
  std::vector<std::byte> plan(RequestId id);
  // So many new requests in steps of one full-attention block each: their blocks lie by turns in the host pool. The
  // last one becomes last_stored(). REQUIRES: one group.
  void store_by_turns(std::int64_t num_requests);
  // Every job of the step succeeds. The number of its blocks.
  std::int64_t answer(const std::vector<std::byte>& metadata);
  void finish(RequestId id);

  [[nodiscard]] SchedulerConnector& connector() { return *connector_; }
  [[nodiscard]] const std::vector<std::byte>& last_stored() const { return last_stored_; }
  [[nodiscard]] std::int64_t full_blocks() const { return prompt_tokens_ / geometry_.span_tokens(GroupIndex{0}); }

 private:
  void make_hand_offs(RequestId id);

  std::int64_t prompt_tokens_;
  Geometry geometry_;
  CountedBlocks blocks_;
  std::unique_ptr<SchedulerConnector> connector_;
  std::mt19937_64 random_{20261130};
  std::uint64_t last_id_ = 0;
  std::vector<std::byte> last_stored_;
  std::vector<BoundaryHandOff> hand_offs_;
};

[[noreturn]] void give_up(const std::string& why);
void must(const Status& status);
template <class T>
T must(Result<T> result) {
  if (!result) {
    must(result.error());
  }
  return std::move(*result);
}

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_PLAN_PLAN_RIG_H_
