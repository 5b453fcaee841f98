#include "offload/copy_executor.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace hostkv {
namespace {

constexpr std::int64_t kPiecesPerThread = 4;  // so that a thread that starts late does not leave the others waiting
constexpr std::int64_t kCacheLineBytes = 64;

// Where a piece begins: a span and a place in it.
struct Cut {
  std::size_t span = 0;
  std::int64_t offset_bytes = 0;
};

std::int64_t total_size_bytes(std::span<const CopySpan> spans) {
  std::int64_t total = 0;
  for (const CopySpan& span : spans) {
    total += span.size_bytes;
  }
  return total;
}

// `cut` moved on by `num_bytes`, at most to the end of the spans.
Cut advance(std::span<const CopySpan> spans, Cut cut, std::int64_t num_bytes) {
  cut.offset_bytes += num_bytes;
  while (cut.span < spans.size() && cut.offset_bytes >= spans[cut.span].size_bytes) {
    cut.offset_bytes -= spans[cut.span].size_bytes;
    ++cut.span;
  }
  return cut;
}

void copy_bytes(std::span<const CopySpan> spans, Cut from, std::int64_t num_bytes) {
  for (std::size_t i = from.span; i < spans.size() && num_bytes > 0; ++i) {
    const std::int64_t offset = i == from.span ? from.offset_bytes : 0;
    const std::int64_t size = std::min(spans[i].size_bytes - offset, num_bytes);
    std::memcpy(spans[i].dst + offset, spans[i].src + offset, static_cast<std::size_t>(size));
    num_bytes -= size;
  }
}

}  // namespace

void CopyExecutor::copy(std::span<const CopySpan> spans) {
  const std::int64_t total_bytes = total_size_bytes(spans);
  if (num_threads_ == 1 || total_bytes < kInlineBytes) {
    copy_bytes(spans, Cut{}, total_bytes);
    return;
  }
  const std::int64_t num_shares = num_threads_ * kPiecesPerThread;
  const std::int64_t share_bytes =
      ((total_bytes + num_shares - 1) / num_shares + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes;
  std::vector<Cut> cuts;
  cuts.reserve(static_cast<std::size_t>(num_shares));
  for (Cut cut; cut.span < spans.size(); cut = advance(spans, cut, share_bytes)) {
    cuts.push_back(cut);
  }
  team_.run(static_cast<std::int64_t>(cuts.size()),
            [&](std::int64_t piece) { copy_bytes(spans, cuts[static_cast<std::size_t>(piece)], share_bytes); });
}

}  // namespace hostkv
