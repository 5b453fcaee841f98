#ifndef HOSTKV_CONNECTOR_JOB_TABLE_H_
#define HOSTKV_CONNECTOR_JOB_TABLE_H_

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "connector/step_metadata.h"
#include "hostkv/types.h"
#include "offload/block_index.h"
#include "recovery/rank_merge.h"

namespace hostkv {

// One block of a transfer; all that it names is pinned until the job has ended on all ranks.
struct JobBlock {
  GroupIndex group;
  BlockId block;                // stores: the source; loads and device copies: the target
  EntryId entry = kNoEntry;     // stores and loads: the place on the host
  BlockId source = kNullBlock;  // device copies: the source
};

// A transfer from its planning to the last rank's answer.
struct PlannedJob {
  JobId id;
  Direction direction = Direction::kStore;
  std::uint64_t epoch = 0;
  RequestId request;
  std::vector<JobBlock> blocks;
  std::vector<std::uint32_t> set_ends;  // stores: blocks [set_ends[i - 1], set_ends[i]) are one boundary set
  std::uint32_t chain = 0;
  bool sent = false;        // in the metadata of a step
  bool of_victims = false;  // stores: its sources are what the engine drops next
  RankMerge merge;
};

}  // namespace hostkv

#endif  // HOSTKV_CONNECTOR_JOB_TABLE_H_
