#ifndef HOSTKV_BENCH_ENGINE_MODEL_RUNNER_H_
#define HOSTKV_BENCH_ENGINE_MODEL_RUNNER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bench/engine/device_memory.h"
#include "bench/engine/engine.h"
#include "bench/engine/kv_cache_manager.h"
#include "bench/engine/rank_forward.h"
#include "hostkv/connector.h"
#include "hostkv/geometry.h"
#include "hostkv/host_backend.h"
#include "hostkv/kv_layout.h"

namespace hostkv::bench {

// Device memory and compute stream of every rank, and the forwards that run there.
//
// Thread-safety: one thread calls; forwards run on the ranks' streams. Ownership: owns memory and streams; the geometry
// is the caller's. Cost: launch() only enqueues; synchronize() waits. Failure: std::bad_alloc.
class ModelRunner {
 public:
  ModelRunner(const Geometry& geometry, const EngineConfig& config);

  [[nodiscard]] std::int64_t num_ranks() const { return static_cast<std::int64_t>(ranks_.size()); }
  // As a connector registers it: without the groups that are not offloadable.
  [[nodiscard]] KvLayout connector_layout(RankIndex rank) const;
  [[nodiscard]] StreamHandle stream(RankIndex rank) { return ranks_[rank.value()]->stream.handle(); }

  // Copies blocks in order, on every rank, behind what was launched so far.
  void copy(std::span<const BlockCopy> copies);
  // Overwrites blocks that a load will fill, on every rank, behind what was launched so far.
  void scrub(std::span<const FailedBlock> blocks);
  // The forward of a step. The requests must not change before synchronize().
  void launch(std::vector<ForwardChunk> chunks);
  void synchronize();
  // Of all ranks since the start; the first wrong byte is the first of the lowest rank. Call it synchronised.
  [[nodiscard]] CheckCounts counts() const;

  // A byte of a block for tests that damage it. Call it synchronised.
  [[nodiscard]] std::byte* byte_at(RankIndex rank, GroupIndex group, BlockId block, std::int64_t offset_bytes);

 private:
  struct Rank {
    Rank(const Geometry& geometry, const EngineConfig& config, std::int64_t rank);
    DeviceMemory memory;
    RankForward forward;
    HostStream stream;  // last: its thread ends before what it works on
  };
  const Geometry& geometry_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_ENGINE_MODEL_RUNNER_H_
