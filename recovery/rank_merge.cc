#include "recovery/rank_merge.h"

#include <algorithm>

namespace hostkv {

bool RankMerge::add(const JobResult& result) {
  const std::size_t rank = result.rank.value();
  if (rank >= answered_.size() || answered_[rank]) {
    return false;
  }
  answered_[rank] = true;
  ++num_answered_;
  if (result.status != StatusCode::kOk) {
    status_ = status_ == StatusCode::kOk ? result.status : status_;
    all_failed_ = all_failed_ || result.failed.empty();
    failed_.insert(failed_.end(), result.failed.begin(), result.failed.end());
    std::ranges::sort(failed_);
    failed_.erase(std::unique(failed_.begin(), failed_.end()), failed_.end());
  }
  return true;
}

bool RankMerge::failed(FailedBlock block) const {
  return all_failed_ || std::ranges::binary_search(failed_, block);
}

}  // namespace hostkv
