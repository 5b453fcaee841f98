#include "geometry/fingerprint.h"

#include <xxhash.h>

#include <vector>

namespace hostkv::detail {
namespace {

// Raised when a field is added or an order changes: old fingerprints then match nothing.
constexpr std::int64_t kFormat = 1;

class Serialiser {
 public:
  void add(std::int64_t value) {
    auto bits = static_cast<std::uint64_t>(value);
    for (int i = 0; i < 8; ++i) {
      bytes_.push_back(static_cast<unsigned char>(bits & 0xFFU));
      bits >>= 8U;
    }
  }
  [[nodiscard]] std::uint64_t digest() const { return XXH3_64bits(bytes_.data(), bytes_.size()); }

 private:
  std::vector<unsigned char> bytes_;
};

void add_group(Serialiser& out, const KvCacheGroup& group) {
  out.add(static_cast<std::int64_t>(group.kind));
  out.add(group.block_tokens);
  out.add(group.sharded ? 1 : 0);
  out.add(group.page_bytes);
  out.add(group.window_tokens);
  out.add(group.extra_retained_tokens);
  out.add(group.chunk_tokens);
  out.add(group.tokens_per_entry);
  out.add(group.eagle ? 1 : 0);
  out.add(group.cacheable ? 1 : 0);
  out.add(group.transferable ? 1 : 0);
  out.add(static_cast<std::int64_t>(group.mamba_mode));
}

}  // namespace

std::uint64_t fingerprint_of(const GeometrySpec& spec, std::int64_t hash_block_tokens) {
  Serialiser out;
  out.add(kFormat);
  const ParallelLayout& parallel = spec.parallel;
  for (const std::int64_t value :
       {parallel.tp, parallel.pp, parallel.dcp, parallel.pcp, parallel.interleave_tokens, hash_block_tokens}) {
    out.add(value);
  }
  out.add(static_cast<std::int64_t>(spec.groups.size()));
  for (const KvCacheGroup& group : spec.groups) {
    add_group(out, group);
  }
  return out.digest();
}

}  // namespace hostkv::detail
