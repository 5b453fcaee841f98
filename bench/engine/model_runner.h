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
// is the caller's. Cost: launch() only enqueues; settle() and synchronize() wait. Failure: std::bad_alloc.
class ModelRunner {
 public:
  // A step that was launched: reached when it has ended on a rank, and what the rank's forward has counted then.
  struct LaunchedStep {
    std::vector<HostEvent> ends;                       // [num_ranks]
    std::shared_ptr<std::vector<CheckCounts>> counts;  // [num_ranks]
  };

  ModelRunner(const Geometry& geometry, const EngineConfig& config);

  [[nodiscard]] std::int64_t num_ranks() const { return static_cast<std::int64_t>(ranks_.size()); }
  // As a connector registers it: without the groups that are not offloadable.
  [[nodiscard]] KvLayout connector_layout(RankIndex rank) const;
  [[nodiscard]] StreamHandle stream(RankIndex rank) { return ranks_[rank.value()]->stream.handle(); }

  // Copies blocks in order, on every rank, behind what was launched so far.
  void copy(std::span<const BlockCopy> copies);
  // Overwrites blocks that a load will fill, on every rank, behind what was launched so far.
  void scrub(std::span<const FailedBlock> blocks);
  // The forward of a step, behind what was launched so far. Also without chunks.
  [[nodiscard]] LaunchedStep launch(std::vector<ForwardChunk> chunks);
  // Waits until the step has ended on all ranks, and counts what it has seen. Steps in order, each once.
  void settle(const LaunchedStep& step);
  void synchronize();
  // Of all settled steps; the first wrong byte is that of the lowest rank of the first step with one.
  [[nodiscard]] const CheckCounts& counts() const { return counts_; }

  // For tests. A byte of a block, to be damaged: call it synchronised.
  [[nodiscard]] HostStream& compute_stream(RankIndex rank) { return ranks_[rank.value()]->stream; }
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
  CheckCounts counts_;
};

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_ENGINE_MODEL_RUNNER_H_
