#ifndef HOSTKV_OFFLOAD_REGION_TABLE_H_
#define HOSTKV_OFFLOAD_REGION_TABLE_H_

#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "hostkv/status.h"
#include "hostkv/transfer_backend.h"
#include "offload/copy_executor.h"

namespace hostkv {

// A job's runs as addresses, and the regions it keeps in use.
struct ResolvedRuns {
  std::vector<CopySpan> spans;    // one a run, in the order of the runs
  std::vector<RegionId> regions;  // each once, ascending
  std::int64_t size_bytes = 0;
};

// The registered regions of a backend whose memory can be addressed by the CPU.
//
// Purpose: every bounds check of a job in one place, before anything is queued; regions in use cannot go (R13).
// Thread-safety: thread-safe. Ownership: the memory is the caller's.
// Cost: resolve() is O(runs). Failure: as transfer_backend.h says; a failure leaves nothing behind.
class RegionTable {
 public:
  Result<RegionId> add(const RegionDesc& region);
  Status remove(RegionId region);

  // On success every region named is in use until release().
  Result<ResolvedRuns> resolve_and_hold(std::span<const CopyRun> runs);
  void release(std::span<const RegionId> regions);

 private:
  struct Entry {
    std::byte* base = nullptr;
    std::int64_t size_bytes = 0;
    std::int64_t num_jobs = 0;
  };

  Result<ResolvedRuns> resolve(std::span<const CopyRun> runs) const;
  Result<std::byte*> resolve_side(RegionId region, std::int64_t offset_bytes, std::int64_t size_bytes) const;
  [[nodiscard]] std::string known_ids() const;

  std::mutex mutex_;
  std::unordered_map<RegionId, Entry> entries_;
  std::uint32_t next_id_ = 1;
};

}  // namespace hostkv

#endif  // HOSTKV_OFFLOAD_REGION_TABLE_H_
