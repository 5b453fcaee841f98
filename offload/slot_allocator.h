#ifndef HOSTKV_OFFLOAD_SLOT_ALLOCATOR_H_
#define HOSTKV_OFFLOAD_SLOT_ALLOCATOR_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "hostkv/types.h"

namespace hostkv {

// Hands out slots of several sizes from slabs of one size. A slab serves one size class at a time and returns to the
// common stock when its last slot is freed, so that memory moves between sizes as demand moves. Numbers only: no
// address, the same on every rank.
//
// The last reserved_slabs() free slabs are taken by urgent calls only; a slab that becomes empty refills them first.
//
// Thread-safety: one thread. Cost: O(1) per call. Failure: allocate() answers nullopt when neither a slot nor a slab
// that it may take is free.
class SlotAllocator {
 public:
  static constexpr std::uint32_t kNoClass = 0xFFFFFFFFU;

  // slots_per_slab: [num_size_classes], each 1 .. 65536.
  SlotAllocator(std::vector<std::uint32_t> slots_per_slab, std::uint64_t num_slabs);

  std::optional<SlotId> allocate(std::uint32_t size_class, bool urgent = false);
  // allocate() would answer a slot.
  [[nodiscard]] bool has_room(std::uint32_t size_class, bool urgent = false) const {
    return !partial_slabs_[size_class].empty() || free_slabs_.size() > (urgent ? 0 : reserved_slabs_);
  }
  void free(SlotId slot);

  void set_reserved_slabs(std::uint64_t num_slabs) { reserved_slabs_ = num_slabs; }
  // Fewer slabs are free than are reserved.
  [[nodiscard]] bool reserve_is_short() const { return free_slabs_.size() < reserved_slabs_; }

  [[nodiscard]] std::uint32_t num_size_classes() const { return static_cast<std::uint32_t>(slots_per_slab_.size()); }
  [[nodiscard]] std::uint32_t slots_per_slab(std::uint32_t size_class) const { return slots_per_slab_[size_class]; }
  [[nodiscard]] std::uint32_t max_slots_per_slab() const { return max_slots_per_slab_; }
  [[nodiscard]] std::uint64_t num_slabs() const { return slabs_.size(); }
  [[nodiscard]] std::uint64_t num_free_slabs() const { return free_slabs_.size(); }
  // kNoClass: the slab is free.
  [[nodiscard]] std::uint32_t class_of_slab(std::uint64_t slab) const { return slabs_[slab].size_class; }
  [[nodiscard]] std::uint64_t num_used_slots() const { return num_used_slots_; }

 private:
  struct Slab {
    std::uint32_t size_class = kNoClass;
    std::uint32_t place_in_partial = 0;      // index in partial_slabs_[size_class] while it has free slots
    std::vector<std::uint16_t> free_places;  // stack, lowest place on top at first
  };

  void take_slab(std::uint32_t size_class);
  void remove_partial(std::uint64_t slab);
  void add_partial(std::uint64_t slab);

  std::vector<std::uint32_t> slots_per_slab_;
  std::uint32_t max_slots_per_slab_ = 0;
  std::vector<Slab> slabs_;
  std::vector<std::uint64_t> free_slabs_;                  // stack, lowest number on top at first
  std::vector<std::vector<std::uint64_t>> partial_slabs_;  // [size class]: slabs with a free and a used slot
  std::uint64_t num_used_slots_ = 0;
  std::uint64_t reserved_slabs_ = 0;
};

}  // namespace hostkv

#endif  // HOSTKV_OFFLOAD_SLOT_ALLOCATOR_H_
