#ifndef HOSTKV_CONNECTOR_DEVICE_VIEW_H_
#define HOSTKV_CONNECTOR_DEVICE_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "connector/request_state.h"
#include "hostkv/connector.h"

namespace hostkv {

// What the engine's own prefix cache holds of one group of one prompt, asked in batches.
//
// Boundaries are asked for in one direction, `step_tokens` apart. The first question asks the engine for one key, each
// further one that was not answered ahead for twice as many, so that a miss at the first block costs one call and a
// long run few. Thread-safety: one thread. Ownership: borrows the engine; keeps its scratch. Cost: the engine's
// find_cached.
class DeviceView {
 public:
  static constexpr std::int64_t kMostAhead = 64;

  explicit DeviceView(EngineBlocks* engine) : engine_(engine) {}

  [[nodiscard]] bool can_see() const { return engine_ != nullptr; }

  // Starts anew: boundaries begin, begin + step, ... before `end_tokens` (a negative step: down to behind it).
  void begin(const HashChain& hashes, GroupIndex group, std::int64_t begin_tokens, std::int64_t end_tokens,
             std::int64_t step_tokens);
  // The cached block with the key at the boundary; the null block: none. REQUIRES: a boundary of begin()'s, not before
  // the last one asked for.
  [[nodiscard]] BlockId find(std::int64_t boundary_tokens);
  // One key, whatever begin() said.
  [[nodiscard]] BlockId find_one(const HashChain& hashes, GroupIndex group, std::int64_t boundary_tokens);

 private:
  void ask(std::int64_t first_index, std::int64_t count);

  EngineBlocks* engine_;
  const HashChain* hashes_ = nullptr;
  GroupIndex group_;
  std::int64_t begin_tokens_ = 0;
  std::int64_t step_tokens_ = 1;
  std::int64_t num_boundaries_ = 0;
  std::int64_t ahead_ = 1;
  std::int64_t first_known_ = 0;  // known_ is of boundaries begin + (first_known + k) * step
  std::vector<BlockId> known_;
  std::vector<std::byte> keys_;
};

}  // namespace hostkv

#endif  // HOSTKV_CONNECTOR_DEVICE_VIEW_H_
