#include "connector/victim_planner.h"

#include <algorithm>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "connector/working_geometry.h"

namespace hostkv {
namespace {

constexpr std::int64_t kLeastHorizonBlocks = 16;  // before the first steps have shown what a step takes
constexpr std::int64_t kWalksAHorizon = 4;
constexpr std::int64_t kMostAStep = std::int64_t{1} << 20U;
constexpr std::uint32_t kNoChain = 0;

}  // namespace

VictimPlanner::VictimPlanner(StorePlanner::Context context)
    : context_(std::move(context)),
      can_store_(host_can_serve(context_.geometry)),
      last_handed_out_(context_.engine.num_handed_out()) {}

// The blocks that were walked last time last for several of the biggest steps so far; a queue that was shorter than
// that was walked to its end, and has got longer.
bool VictimPlanner::is_due() const {
  const std::uint64_t handed_out = context_.engine.num_handed_out();
  const std::int64_t free = context_.engine.num_free_blocks();
  const bool has_moved = handed_out != walked_handed_out_ || free != walked_free_;
  const std::int64_t taken =
      static_cast<std::int64_t>(handed_out - walked_handed_out_) + std::max<std::int64_t>(0, walked_free_ - free);
  const bool was_short = walked_free_ <= horizon_blocks_;
  const bool is_worn = has_moved && (was_short || taken * kWalksAHorizon >= horizon_blocks_);
  return can_store_ && !is_in_flight_ && (is_unfinished_ || is_worn);
}

bool VictimPlanner::begin_step() {
  const std::uint64_t handed_out = context_.engine.num_handed_out();
  const auto taken = static_cast<std::int64_t>(handed_out - std::exchange(last_handed_out_, handed_out));
  most_a_step_ = std::clamp(taken, most_a_step_, std::max(most_a_step_, kMostAStep));
  horizon_blocks_ = std::max(kLeastHorizonBlocks, kWalksAHorizon * most_a_step_);
  return is_due();
}

void VictimPlanner::plan(PlannedJob& job) {
  walked_handed_out_ = last_handed_out_;
  walked_free_ = context_.engine.num_free_blocks();
  walk();
  // What is being copied is not free: the engine takes the next blocks instead. So the ones that its next step may take
  // stay where they are until those behind them are saved.
  const std::size_t next_step = std::min(order_.size(), static_cast<std::size_t>(most_a_step_));
  const bool all_behind = save_range(next_step, order_.size(), job);
  const bool saved_behind = !job.blocks.empty();
  is_unfinished_ = saved_behind || !save_range(0, next_step, job) || !all_behind;
  // The engine drops a chain's end first: what it drops last is published last, and leaves the host last.
  std::ranges::reverse(job.blocks);
  std::vector<BlockId> pinned;
  for (const JobBlock& block : job.blocks) {
    pinned.push_back(block.block);
    job.set_ends.push_back(static_cast<std::uint32_t>(pinned.size()));
  }
  context_.engine.pin(pinned);
  is_in_flight_ = !pinned.empty();
}

// Who waits now; what was saved before and waits still is remembered, what has left is not.
void VictimPlanner::walk() {
  cached_.clear();
  context_.engine.next_victims(static_cast<std::size_t>(horizon_blocks_), cached_);
  order_.clear();
  victims_.clear();
  std::unordered_set<std::uint64_t> still_saved;
  std::unordered_map<BlockId, std::size_t> place_of;  // a block may have several keys
  for (const CachedBlock& cached : cached_) {
    if (cached.block == kNullBlock) {
      continue;
    }
    const auto [place, is_new] = place_of.try_emplace(cached.block, order_.size());
    if (is_new) {
      order_.push_back(cached.block);
    }
    const bool knows_it = cached.group.value() < context_.geometry.num_groups() &&
                          context_.geometry.offloadable(cached.group) && !cached.hash.empty() &&
                          cached.hash.size() <= kMaxHashSizeBytes;
    if (!knows_it || (context_.withheld != nullptr && context_.withheld->contains(cached.hash)) ||
        (context_.damaged != nullptr && context_.damaged->contains(cached.hash))) {
      continue;
    }
    const OffloadKey key = make_offload_key(cached.hash, cached.group, context_.namespace_fingerprint);
    const std::uint64_t stay = hash_of(key) ^ (std::uint64_t{cached.block.value()} * 0x9E3779B97F4A7C15ULL);
    victims_.push_back(Victim{key, stay, cached.block, cached.group, place->second});
    if (saved_.contains(stay)) {
      still_saved.insert(stay);
    }
  }
  saved_ = std::move(still_saved);
}

// Victims whose places in the order are [first, end). False: more than half of the free blocks would be pinned.
bool VictimPlanner::save_range(std::size_t first, std::size_t end, PlannedJob& job) {
  const auto most_pins = static_cast<std::size_t>(std::max<std::int64_t>(1, walked_free_ / 2));
  for (const Victim& victim : victims_) {
    if (victim.place < first || victim.place >= end || saved_.contains(victim.stay)) {
      continue;
    }
    if (job.blocks.size() >= most_pins) {
      return false;
    }
    save(victim, job);
  }
  return true;
}

void VictimPlanner::save(const Victim& victim, PlannedJob& job) {
  if (context_.cache.find(victim.key, hash_of(victim.key)) != kNoEntry) {
    return;
  }
  const GroupKind kind = context_.geometry.group(victim.group).kind;
  const StoreWant want{victim.key, context_.class_of_group[victim.group.value()],
                       kind == GroupKind::kFullAttention || kind == GroupKind::kMla};
  reserved_.clear();
  ++context_.metrics.planned_store_blocks;
  if (!context_.cache.reserve(std::span(&want, 1), kNoChain, reserved_)) {
    ++context_.metrics.dropped_full_blocks;
    return;
  }
  if (context_.events != nullptr) {
    context_.events->push_back(
        KeyEvent{.hash = victim.key.hash, .tag = victim.key.tag, .request = {}, .kind = KeyEventKind::kPlanned});
  }
  saved_.insert(victim.stay);
  job.blocks.push_back(JobBlock{victim.group, victim.block, reserved_.front(), kNullBlock});
}

void VictimPlanner::give_back(std::span<const BlockId> blocks) {
  is_in_flight_ = false;
  cached_.clear();
  context_.engine.next_victims(static_cast<std::size_t>(horizon_blocks_), cached_);
  std::unordered_set<BlockId> waiting;
  for (const CachedBlock& cached : cached_) {
    waiting.insert(cached.block);
  }
  const std::unordered_multiset<BlockId> returning(blocks.begin(), blocks.end());
  std::vector<BlockId> pinned;
  std::vector<BlockId> in_order;
  for (const BlockId block : order_) {
    in_order.insert(in_order.end(), returning.count(block), block);
    if (waiting.erase(block) > 0 && !returning.contains(block)) {
      pinned.push_back(block);
      in_order.push_back(block);
    }
  }
  context_.engine.pin(pinned);
  context_.engine.unpin_to_front(in_order);
}

}  // namespace hostkv
