// What holds after every step: no block is lost, and none is taken from a step that still uses it.

#include <algorithm>
#include <string>
#include <vector>

#include "bench/engine/engine_impl.h"

namespace hostkv::bench {

Status EngineImpl::check_conservation() const {
  if (Status status = check_owners(); !status.ok()) return status;
  if (Status status = check_steps_in_flight(); !status.ok()) return status;
  return link_ ? link_->scheduler().check_conservation() : Status();
}

Status EngineImpl::check_owners() const {
  std::vector<std::int32_t> owners(static_cast<std::size_t>(pool_.num_usable()) + 1, 0);
  const auto add = [&](const std::vector<BlockId>& blocks) {
    for (const BlockId block : blocks) {
      if (block != kNullBlock) ++owners[block.value()];
    }
  };
  for (const auto& entry : requests_) {
    for (const std::vector<BlockId>& table : entry.second->tables) add(table);
    add(entry.second->copied_states);
  }
  for (const DeferredFrees& deferred : scheduler_.deferred_frees()) {
    for (const std::vector<BlockId>& blocks : deferred.blocks) add(blocks);
  }
  return pool_.check_conservation(owners);
}

// R13: what a forward in flight reads or writes is still its request's, or is kept until the forward has ended.
Status EngineImpl::check_steps_in_flight() const {
  std::vector<BlockId> deferred;
  for (const DeferredFrees& entry : scheduler_.deferred_frees()) {
    for (const std::vector<BlockId>& blocks : entry.blocks)
      deferred.insert(deferred.end(), blocks.begin(), blocks.end());
  }
  std::ranges::sort(deferred);
  for (const StepInFlight& step : in_flight_) {
    for (const LaunchedChunk& chunk : step.chunks) {
      if (chunk.forward.request == nullptr) continue;
      const Request* owner = request(chunk.id);
      if (owner != nullptr && owner->report.num_preemptions != chunk.admission) owner = nullptr;
      for (std::uint32_t g = 0; g < geometry_.num_groups(); ++g) {
        std::vector<BlockId> kept = owner == nullptr ? deferred : owner->tables[g];
        if (owner != nullptr) std::ranges::sort(kept);
        std::vector<BlockId> used;
        append_used_blocks(geometry_, GroupIndex{g}, chunk.forward, used);
        const auto lost =
            std::ranges::find_if_not(used, [&](BlockId block) { return std::ranges::binary_search(kept, block); });
        if (lost == used.end()) continue;
        return Status(StatusCode::kInternal, "R13: step " + std::to_string(step.number) +
                                                 " is in flight and uses block " + std::to_string(lost->value()) +
                                                 " of " + geometry_.group_label(GroupIndex{g}) + ", which request " +
                                                 std::to_string(chunk.id.value()) + " has given back");
      }
    }
  }
  return {};
}

}  // namespace hostkv::bench
