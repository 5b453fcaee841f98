#ifndef HOSTKV_INCLUDE_HOSTKV_TYPES_H_
#define HOSTKV_INCLUDE_HOSTKV_TYPES_H_

// Ids and small values shared by all public headers.
//
// Purpose: an id is never added to a count of something else; each kind of id is a type of its own.
// Thread-safety: values. Ownership: none. Cost: the size of the integer inside. Failure: none.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace hostkv {

template <class Tag, class Rep>
class StrongId {
 public:
  using rep = Rep;
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep value) : value_(value) {}
  [[nodiscard]] constexpr Rep value() const { return value_; }
  friend constexpr auto operator<=>(StrongId, StrongId) = default;

 private:
  Rep value_ = 0;
};

// The engine's number of a block of device memory. One id space for all groups; a block belongs to one group at a
// time. 0 is the null block: a placeholder in block tables, never copied, pinned or stored.
using BlockId = StrongId<struct BlockIdTag, std::uint32_t>;
inline constexpr BlockId kNullBlock{0};

// Position of a kv_cache_group in GeometrySpec::groups.
using GroupIndex = StrongId<struct GroupIndexTag, std::uint32_t>;

// Worker number inside one engine, 0 .. num_ranks - 1 (TP x PP x PCP).
using RankIndex = StrongId<struct RankIndexTag, std::uint32_t>;

// The engine's number of a request. Unique among the requests that are alive; may be used again afterwards.
using RequestId = StrongId<struct RequestIdTag, std::uint64_t>;

// A transfer planned by the scheduler side. Never used twice by one SchedulerConnector.
using JobId = StrongId<struct JobIdTag, std::uint64_t>;

// Place in the host pool that holds one block of one group. The same number names the same place on every rank.
// Bits 16.. are the slab, bits 0..15 the place inside the slab.
using SlotId = StrongId<struct SlotIdTag, std::uint64_t>;
constexpr SlotId make_slot_id(std::uint64_t slab, std::uint32_t index_in_slab) {
  return SlotId{(slab << 16U) | index_in_slab};
}
constexpr std::uint64_t slab_of(SlotId slot) {
  return slot.value() >> 16U;
}
constexpr std::uint32_t index_in_slab(SlotId slot) {
  return static_cast<std::uint32_t>(slot.value() & 0xFFFFU);
}

// A registered range of memory, as a TransferBackend knows it.
using RegionId = StrongId<struct RegionIdTag, std::uint32_t>;

// kStore: device to host. kLoad: host to device. kDeviceCopy: from one block of device memory to another.
enum class Direction : std::uint8_t { kStore = 0, kLoad = 1, kDeviceCopy = 2 };
inline constexpr std::size_t kNumDirections = 3;

enum class Medium : std::uint8_t { kDevice = 0, kHost = 1 };

// An engine's compute stream, as the backend understands it: HostStream* for the host backend, CUstream for CUDA.
// Null: there is nothing to wait for, everything issued before in program order has been executed.
struct StreamHandle {
  void* native = nullptr;
};

}  // namespace hostkv

template <class Tag, class Rep>
struct std::hash<hostkv::StrongId<Tag, Rep>> {
  std::size_t operator()(hostkv::StrongId<Tag, Rep> id) const noexcept { return std::hash<Rep>{}(id.value()); }
};

#endif  // HOSTKV_INCLUDE_HOSTKV_TYPES_H_
