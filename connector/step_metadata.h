#ifndef HOSTKV_CONNECTOR_STEP_METADATA_H_
#define HOSTKV_CONNECTOR_STEP_METADATA_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "hostkv/status.h"
#include "hostkv/types.h"

namespace hostkv {

// One block of a job: the same numbers on every rank, never an address. Stores and loads: the block on the device and
// its slot. kDeviceCopy: `block` is the target, `slot` holds the number of the source block instead of a slot.
struct StepBlock {
  GroupIndex group;
  BlockId block;
  SlotId slot;
  // The source of a kDeviceCopy. The null block, which no job may name, where the number is too big for a block.
  [[nodiscard]] BlockId source() const {
    return slot.value() > kMaxBlock ? kNullBlock : BlockId{static_cast<std::uint32_t>(slot.value())};
  }
  static StepBlock device_copy(GroupIndex group, BlockId source, BlockId target) {
    return {group, target, SlotId{source.value()}};
  }
  friend bool operator==(const StepBlock&, const StepBlock&) = default;

 private:
  static constexpr std::uint64_t kMaxBlock = 0xFFFFFFFFU;
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
// direction (as in types.h), 3 bytes zero, u32 blocks; a block: u32 group, u32 block, u64 slot (of a kDeviceCopy: u64
// source block); at the end the XXH3-64 of all bytes before it. Version 2 added the direction kDeviceCopy.
inline constexpr std::uint16_t kStepMetadataVersion = 2;

std::vector<std::byte> encode_step_metadata(const StepMetadata& metadata);

// kInvalidArgument: not such a message, another version (both numbers named), cut, flipped, trailing bytes. Allocates
// no more than the message's own size allows.
Result<StepMetadata> decode_step_metadata(std::span<const std::byte> bytes);

}  // namespace hostkv

#endif  // HOSTKV_CONNECTOR_STEP_METADATA_H_
