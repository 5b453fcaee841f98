#include "offload/slot_allocator.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace hostkv {

SlotAllocator::SlotAllocator(std::vector<std::uint32_t> slots_per_slab, std::uint64_t num_slabs)
    : slots_per_slab_(std::move(slots_per_slab)), slabs_(num_slabs), partial_slabs_(slots_per_slab_.size()) {
  for (const std::uint32_t slots : slots_per_slab_) {
    max_slots_per_slab_ = std::max(max_slots_per_slab_, slots);
  }
  free_slabs_.reserve(num_slabs);
  for (std::uint64_t slab = num_slabs; slab > 0; --slab) {
    free_slabs_.push_back(slab - 1);
  }
}

std::optional<SlotId> SlotAllocator::allocate(std::uint32_t size_class, bool urgent) {
  if (!has_room(size_class, urgent)) {
    return std::nullopt;
  }
  std::vector<std::uint64_t>& partial = partial_slabs_[size_class];
  if (partial.empty()) {
    take_slab(size_class);
  }
  const std::uint64_t slab = partial.back();
  std::vector<std::uint16_t>& places = slabs_[slab].free_places;
  const std::uint16_t place = places.back();
  places.pop_back();
  if (places.empty()) {
    remove_partial(slab);
  }
  ++num_used_slots_;
  return make_slot_id(slab, place);
}

void SlotAllocator::free(SlotId slot) {
  const std::uint64_t slab = slab_of(slot);
  HOSTKV_DCHECK(slab < slabs_.size() && slabs_[slab].size_class != kNoClass, "R15: only a used slot is freed");
  Slab& owner = slabs_[slab];
  if (owner.free_places.empty()) {
    add_partial(slab);
  }
  owner.free_places.push_back(static_cast<std::uint16_t>(index_in_slab(slot)));
  --num_used_slots_;
  if (owner.free_places.size() == slots_per_slab_[owner.size_class]) {
    remove_partial(slab);
    owner.size_class = kNoClass;
    owner.free_places.clear();
    free_slabs_.push_back(slab);
  }
}

void SlotAllocator::take_slab(std::uint32_t size_class) {
  const std::uint64_t slab = free_slabs_.back();
  free_slabs_.pop_back();
  slabs_[slab].size_class = size_class;
  for (std::uint32_t place = slots_per_slab_[size_class]; place > 0; --place) {
    slabs_[slab].free_places.push_back(static_cast<std::uint16_t>(place - 1));
  }
  add_partial(slab);
}

void SlotAllocator::add_partial(std::uint64_t slab) {
  std::vector<std::uint64_t>& partial = partial_slabs_[slabs_[slab].size_class];
  slabs_[slab].place_in_partial = static_cast<std::uint32_t>(partial.size());
  partial.push_back(slab);
}

void SlotAllocator::remove_partial(std::uint64_t slab) {
  std::vector<std::uint64_t>& partial = partial_slabs_[slabs_[slab].size_class];
  const std::uint32_t place = slabs_[slab].place_in_partial;
  partial[place] = partial.back();
  slabs_[partial[place]].place_in_partial = place;
  partial.pop_back();
}

}  // namespace hostkv
