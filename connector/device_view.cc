#include "connector/device_view.h"

#include <algorithm>
#include <cstring>

namespace hostkv {

void DeviceView::begin(const HashChain& hashes, GroupIndex group, std::int64_t begin_tokens, std::int64_t end_tokens,
                       std::int64_t step_tokens) {
  hashes_ = &hashes;
  group_ = group;
  begin_tokens_ = begin_tokens;
  step_tokens_ = step_tokens;
  const std::int64_t distance = step_tokens > 0 ? end_tokens - begin_tokens : begin_tokens - end_tokens;
  const std::int64_t step = std::abs(step_tokens);
  num_boundaries_ = distance <= 0 ? 0 : (distance + step - 1) / step;
  ahead_ = 1;
  first_known_ = 0;
  known_.clear();
}

BlockId DeviceView::find(std::int64_t boundary_tokens) {
  const std::int64_t index = (boundary_tokens - begin_tokens_) / step_tokens_;
  if (!can_see() || index >= num_boundaries_) {
    return kNullBlock;
  }
  if (index >= first_known_ + std::ssize(known_)) {
    ask(index, std::min(ahead_, num_boundaries_ - index));
    ahead_ = std::min(2 * ahead_, kMostAhead);
  }
  return known_[static_cast<std::size_t>(index - first_known_)];
}

BlockId DeviceView::find_one(const HashChain& hashes, GroupIndex group, std::int64_t boundary_tokens) {
  BlockId found = kNullBlock;
  if (can_see() && boundary_tokens > 0 && boundary_tokens <= hashes.hashed_tokens() &&
      boundary_tokens % hashes.hash_block_tokens == 0) {
    engine_->find_cached(group, hashes.at_boundary(boundary_tokens), hashes.hash_size_bytes, std::span(&found, 1));
  }
  return found;
}

void DeviceView::ask(std::int64_t first_index, std::int64_t count) {
  const std::size_t size = hashes_->hash_size_bytes;
  keys_.resize(static_cast<std::size_t>(count) * size);
  known_.assign(static_cast<std::size_t>(count), kNullBlock);
  for (std::int64_t k = 0; k < count; ++k) {
    const auto hash = hashes_->at_boundary(begin_tokens_ + (first_index + k) * step_tokens_);
    std::memcpy(keys_.data() + static_cast<std::size_t>(k) * size, hash.data(), size);
  }
  first_known_ = first_index;
  engine_->find_cached(group_, keys_, size, known_);
}

}  // namespace hostkv
