#ifndef HOSTKV_BENCH_ENGINE_GROUP_RULES_H_
#define HOSTKV_BENCH_ENGINE_GROUP_RULES_H_

// Small questions about groups that several parts of the engine ask. Pure functions, O(1).

#include <cstdint>

#include "hostkv/geometry.h"

namespace hostkv::bench {

constexpr std::int64_t cdiv(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

inline bool is_mamba(const KvCacheGroup& group, MambaMode mode) {
  return group.kind == GroupKind::kMamba && group.mamba_mode == mode;
}
inline bool is_full_attention(const KvCacheGroup& group) {
  return group.kind == GroupKind::kFullAttention || group.kind == GroupKind::kMla;
}
// One block a request, used over and over.
inline bool has_one_block(const KvCacheGroup& group) {
  return group.kind == GroupKind::kScratch || is_mamba(group, MambaMode::kNone);
}

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_ENGINE_GROUP_RULES_H_
