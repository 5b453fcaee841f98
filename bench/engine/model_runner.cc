#include "bench/engine/model_runner.h"

#include <string>
#include <utility>

namespace hostkv::bench {

ModelRunner::Rank::Rank(const Geometry& geometry, const EngineConfig& config, std::int64_t rank)
    : memory(geometry, config.payload_bytes, config.num_device_blocks + 1),
      forward(geometry, memory, config.seed, rank, config.payload_bytes),
      stream("compute" + std::to_string(rank)) {}

ModelRunner::ModelRunner(const Geometry& geometry, const EngineConfig& config) : geometry_(geometry) {
  for (std::int64_t rank = 0; rank < geometry.spec().parallel.dcp; ++rank) {
    ranks_.push_back(std::make_unique<Rank>(geometry, config, rank));
  }
}

KvLayout ModelRunner::connector_layout(RankIndex rank) const {
  KvLayout layout = ranks_[rank.value()]->memory.layout();
  for (std::uint32_t g = 0; g < geometry_.num_groups(); ++g) {
    if (!geometry_.offloadable(GroupIndex{g})) layout.groups[g].clear();
  }
  return layout;
}

void ModelRunner::copy(std::span<const BlockCopy> copies) {
  if (copies.empty()) return;
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    rank->stream.enqueue([target = rank.get(), list = std::vector<BlockCopy>(copies.begin(), copies.end())] {
      for (const BlockCopy& copy : list) {
        if (copy.from != copy.to) target->memory.copy(copy.group, copy.from, copy.to);
      }
    });
  }
}

void ModelRunner::scrub(std::span<const FailedBlock> blocks) {
  if (blocks.empty()) return;
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    rank->stream.enqueue([target = rank.get(), list = std::vector<FailedBlock>(blocks.begin(), blocks.end())] {
      for (const FailedBlock& entry : list) target->memory.scrub(entry.group, entry.block);
    });
  }
}

ModelRunner::LaunchedStep ModelRunner::launch(std::vector<ForwardChunk> chunks) {
  LaunchedStep step{.ends = {}, .counts = std::make_shared<std::vector<CheckCounts>>(ranks_.size())};
  const auto shared = std::make_shared<const std::vector<ForwardChunk>>(std::move(chunks));
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    Rank* rank = ranks_[r].get();
    if (!shared->empty()) {
      rank->stream.enqueue([rank, shared, r, counts = step.counts] {
        for (const ForwardChunk& chunk : *shared) rank->forward.run(chunk);
        (*counts)[r] = rank->forward.take_counts();
      });
    }
    step.ends.push_back(rank->stream.record_event());
  }
  return step;
}

void ModelRunner::settle(const LaunchedStep& step) {
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    step.ends[r].wait();
    const CheckCounts& counts = (*step.counts)[r];
    counts_.bytes_checked += counts.bytes_checked;
    counts_.bytes_wrong += counts.bytes_wrong;
    if (!counts_.first_wrong) counts_.first_wrong = counts.first_wrong;
  }
}

void ModelRunner::synchronize() {
  for (const std::unique_ptr<Rank>& rank : ranks_) rank->stream.synchronize();
}

std::byte* ModelRunner::byte_at(RankIndex rank, GroupIndex group, BlockId block, std::int64_t offset_bytes) {
  return ranks_[rank.value()]->memory.byte_at(group, block, offset_bytes);
}

}  // namespace hostkv::bench
