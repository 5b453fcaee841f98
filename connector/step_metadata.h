#ifndef HOSTKV_CONNECTOR_STEP_METADATA_H_
#define HOSTKV_CONNECTOR_STEP_METADATA_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "hostkv/status.h"
#include "hostkv/types.h"

namespace hostkv {

// One block of a job: the same numbers on every rank, never an address.
struct StepBlock {
  GroupIndex group;
  BlockId block;
  SlotId slot;
  friend bool operator==(const StepBlock&, const StepBlock&) = default;
};

struct StepJob {
  JobId id;
  Direction direction = Direction::kStore;
  std::vector<StepBlock> blocks;
  friend bool operator==(const StepJob&, const StepJob&) = default;
};

// What the scheduler side tells every worker in one step.
struct StepMetadata {
  std::uint64_t epoch = 0;
  std::uint64_t sequence = 0;  // of the step; grows by one
  std::vector<StepJob> jobs;
  friend bool operator==(const StepMetadata&, const StepMetadata&) = default;
};

// Wire form, little endian: "HKVS", u16 version, u16 zero, u64 epoch, u64 sequence, u32 jobs; a job: u64 id, u8
// direction, 3 bytes zero, u32 blocks; a block: u32 group, u32 block, u64 slot; at the end the XXH3-64 of all bytes
// before it.
inline constexpr std::uint16_t kStepMetadataVersion = 1;

std::vector<std::byte> encode_step_metadata(const StepMetadata& metadata);

// kInvalidArgument: not such a message, another version (both numbers named), cut, flipped, trailing bytes. Allocates
// no more than the message's own size allows.
Result<StepMetadata> decode_step_metadata(std::span<const std::byte> bytes);

}  // namespace hostkv

#endif  // HOSTKV_CONNECTOR_STEP_METADATA_H_
