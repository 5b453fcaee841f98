#ifndef HOSTKV_CONNECTOR_STEP_METADATA_H_
#define HOSTKV_CONNECTOR_STEP_METADATA_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
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
// A message without jobs has this size, and only such a one. It tells a worker nothing and may be left out.
inline constexpr std::size_t kEmptyStepMetadataBytes = 4 + 2 + 2 + 8 + 8 + 4 + 8;

// Writes a message piece by piece into its final place.
//
// Thread-safety: one thread. Ownership: the message is the caller's after finish(). Cost: O(bytes).
// Failure: none; REQUIRES exactly the announced jobs and blocks.
class StepMetadataWriter {
 public:
  StepMetadataWriter(std::uint64_t epoch, std::uint64_t sequence, std::size_t num_jobs, std::size_t num_blocks);

  // Its `num_blocks` blocks come next.
  void begin_job(JobId id, Direction direction, std::size_t num_blocks);
  void add_block(const StepBlock& block) {
    put(block.group.value());
    put(block.block.value());
    put(block.slot.value());
  }
  std::vector<std::byte> finish();

 private:
  template <class Int>
  void put(Int value);

  std::vector<std::byte> bytes_;  // of its final size from the start
  std::byte* at_;
};

// Little endian, whatever the machine.
template <class Int>
void StepMetadataWriter::put(Int value) {
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(at_, &value, sizeof(value));
  } else {
    for (std::size_t i = 0; i < sizeof(value); ++i) {
      at_[i] = static_cast<std::byte>((static_cast<std::uint64_t>(value) >> (8 * i)) & 0xFFU);
    }
  }
  at_ += sizeof(value);
}

std::vector<std::byte> encode_step_metadata(const StepMetadata& metadata);

// kInvalidArgument: not such a message, another version (both numbers named), cut, flipped, trailing bytes. Allocates
// no more than the message's own size allows.
Result<StepMetadata> decode_step_metadata(std::span<const std::byte> bytes);

}  // namespace hostkv

#endif  // HOSTKV_CONNECTOR_STEP_METADATA_H_
