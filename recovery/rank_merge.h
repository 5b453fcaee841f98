#ifndef HOSTKV_RECOVERY_RANK_MERGE_H_
#define HOSTKV_RECOVERY_RANK_MERGE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "hostkv/connector.h"

namespace hostkv {

// What all ranks together say of one job: success is unanimous, failed blocks are united. A rank answers once; what it
// says again is ignored.
//
// Thread-safety: one thread. Cost: add() is O(n log n) in the failed blocks, failed() O(log n). Failure: add() answers
// false for a rank out of range or a repeat.
class RankMerge {
 public:
  explicit RankMerge(std::int64_t num_ranks) : answered_(static_cast<std::size_t>(num_ranks), false) {}

  bool add(const JobResult& result);

  [[nodiscard]] bool complete() const { return num_answered_ == answered_.size(); }
  // kOk: every rank that has answered succeeded; else the first other status.
  [[nodiscard]] StatusCode status() const { return status_; }
  [[nodiscard]] bool failed(FailedBlock block) const;

 private:
  std::vector<bool> answered_;
  std::size_t num_answered_ = 0;
  StatusCode status_ = StatusCode::kOk;
  bool all_failed_ = false;          // a rank failed without naming blocks
  std::vector<FailedBlock> failed_;  // ascending, each once
};

}  // namespace hostkv

#endif  // HOSTKV_RECOVERY_RANK_MERGE_H_
