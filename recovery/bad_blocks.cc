#include "recovery/bad_blocks.h"

#include <algorithm>
#include <tuple>

namespace hostkv {
namespace {

auto name_of(const VoidBlock& block) {
  return std::tuple(block.group, block.block);
}

}  // namespace

void BadBlocks::clear() {
  marks_.clear();
  voids_.clear();
}

void BadBlocks::add_void(std::span<const VoidBlock> blocks) {
  std::vector<VoidBlock> fresh;
  for (const VoidBlock& block : blocks) {
    if (block.block != kNullBlock && !has_failed(block.group, block.block)) {
      fresh.push_back(block);
    }
  }
  // Marked only now: what is marked and not yet known as void would look like a failed block.
  for (const VoidBlock& block : fresh) {
    marks_.add(block.group, block.block);
    voids_.push_back(block);
  }
  std::ranges::sort(voids_, {},
                    [](const VoidBlock& block) { return std::tuple(block.group, block.block, block.usable_tokens); });
  const auto same = [](const VoidBlock& a, const VoidBlock& b) { return name_of(a) == name_of(b); };
  voids_.erase(std::unique(voids_.begin(), voids_.end(), same), voids_.end());
}

const VoidBlock* BadBlocks::find_void(GroupIndex group, BlockId block) const {
  const auto found = std::ranges::lower_bound(voids_, std::tuple(group, block), {}, name_of);
  return found != voids_.end() && found->group == group && found->block == block ? &*found : nullptr;
}

std::int64_t BadBlocks::usable_tokens_of_marked(GroupIndex group, BlockId block) const {
  const VoidBlock* const found = voids_.empty() ? nullptr : find_void(group, block);
  return found == nullptr ? 0 : found->usable_tokens;
}

}  // namespace hostkv
