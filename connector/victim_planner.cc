#include "connector/victim_planner.h"

#include <algorithm>
#include <span>
#include <unordered_set>
#include <utility>

#include "connector/working_geometry.h"

namespace hostkv {
namespace {

constexpr std::int64_t kLeastHorizonBlocks = 256;
constexpr std::int64_t kWalksAHorizon = 4;
constexpr std::uint32_t kNoChain = 0;

}  // namespace

VictimPlanner::VictimPlanner(StorePlanner::Context context)
    : context_(std::move(context)), can_store_(host_can_serve(context_.geometry)) {}

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
  most_a_step_ = std::max(most_a_step_, handed_out - std::exchange(last_handed_out_, handed_out));
  horizon_blocks_ = std::max(kLeastHorizonBlocks, kWalksAHorizon * static_cast<std::int64_t>(most_a_step_));
  return is_due();
}

void VictimPlanner::plan(PlannedJob& job) {
  walked_handed_out_ = last_handed_out_;
  walked_free_ = context_.engine.num_free_blocks();
  victims_.clear();
  context_.engine.next_victims(static_cast<std::size_t>(horizon_blocks_), victims_);
  const std::size_t most_pins = static_cast<std::size_t>(std::max<std::int64_t>(1, walked_free_ / 2));
  is_unfinished_ = false;
  order_.clear();
  for (const CachedBlock& victim : victims_) {
    if (order_.empty() || order_.back() != victim.block) {  // a block may have several keys
      order_.push_back(victim.block);
    }
  }
  for (const CachedBlock& victim : victims_) {
    if (job.blocks.size() >= most_pins) {
      is_unfinished_ = true;
      break;
    }
    save(victim, job);
  }
  // The engine drops a chain's end first: what it drops last is published last, and leaves the host last.
  std::ranges::reverse(job.blocks);
  for (std::size_t i = 0; i < job.blocks.size(); ++i) {
    job.set_ends.push_back(static_cast<std::uint32_t>(i + 1));
  }
  std::vector<BlockId> pinned;
  for (const JobBlock& block : job.blocks) {
    pinned.push_back(block.block);
  }
  context_.engine.pin(pinned);
  is_in_flight_ = !pinned.empty();
}

void VictimPlanner::give_back(std::span<const BlockId> blocks) {
  is_in_flight_ = false;
  victims_.clear();
  context_.engine.next_victims(static_cast<std::size_t>(horizon_blocks_), victims_);
  std::unordered_set<BlockId> waiting;
  for (const CachedBlock& victim : victims_) {
    waiting.insert(victim.block);
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

void VictimPlanner::save(const CachedBlock& victim, PlannedJob& job) {
  const bool knows_it = victim.group.value() < context_.geometry.num_groups() &&
                        context_.geometry.offloadable(victim.group) && !victim.hash.empty() &&
                        victim.hash.size() <= kMaxHashSizeBytes && victim.block != kNullBlock;
  if (!knows_it) {
    return;
  }
  const OffloadKey key = make_offload_key(victim.hash, victim.group, context_.namespace_fingerprint);
  if (context_.cache.find(key, hash_of(key)) != kNoEntry) {
    return;
  }
  const GroupKind kind = context_.geometry.group(victim.group).kind;
  const StoreWant want{key, context_.class_of_group[victim.group.value()],
                       kind == GroupKind::kFullAttention || kind == GroupKind::kMla};
  reserved_.clear();
  ++context_.metrics.planned_store_blocks;
  if (!context_.cache.reserve(std::span(&want, 1), kNoChain, reserved_)) {
    ++context_.metrics.dropped_full_blocks;
    return;
  }
  job.blocks.push_back(JobBlock{victim.group, victim.block, reserved_.front(), kNullBlock});
}

}  // namespace hostkv
