#ifndef HOSTKV_TESTS_SUPPORT_RANDOM_GEOMETRY_H_
#define HOSTKV_TESTS_SUPPORT_RANDOM_GEOMETRY_H_

#include "tests/support/geometry_builders.h"
#include "tests/support/random.h"

namespace hostkv::testing {

inline KvCacheGroup random_group(Random& random, std::int64_t unit) {
  const std::int64_t block = unit * pick(random, 1, 4);
  switch (pick(random, 0, 5)) {
    case 0:
      return full(block, one_in(random, 2));
    case 1:
      return mla(block, one_in(random, 2));
    case 2:
      return window(block, pick(random, 1, 5 * block), pick(random, 0, 1) * pick(random, 0, 2 * block));
    case 3:
      return chunked(block, block * pick(random, 1, 4));
    case 4:
      return mamba(block, MambaMode::kAll);
    default:
      return mamba(block);
  }
}

// Not every one of them resolves.
inline GeometrySpec random_spec(Random& random) {
  GeometrySpec spec;
  const std::int64_t unit = pick(random, 1, 4);
  for (std::int64_t i = pick(random, 1, 4); i > 0; --i) {
    spec.groups.push_back(one_in(random, 16) ? ring(unit) : random_group(random, unit));
    KvCacheGroup& group = spec.groups.back();
    group.eagle = one_in(random, 4) && group.kind != GroupKind::kMamba && group.kind != GroupKind::kChunkedLocal &&
                  group.kind != GroupKind::kScratch;
  }
  spec.parallel = dcp_of(one_in(random, 2) ? 1 : pick(random, 1, 8));
  return spec;
}

// For the message of a failed case.
inline std::string described(const Geometry& geometry) {
  std::string text = "scheduler block " + std::to_string(geometry.scheduler_block_tokens()) + ", hash block " +
                     std::to_string(geometry.hash_block_tokens());
  for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
    const KvCacheGroup& group = geometry.group(GroupIndex{g});
    text += "; " + geometry.group_label(GroupIndex{g}) + " span " +
            std::to_string(geometry.span_tokens(GroupIndex{g})) + " window " + std::to_string(group.window_tokens) +
            "+" + std::to_string(group.extra_retained_tokens) + " chunk " + std::to_string(group.chunk_tokens) +
            (geometry.drops_unit(GroupIndex{g}) ? " drops" : "");
  }
  return text;
}

}  // namespace hostkv::testing

#endif  // HOSTKV_TESTS_SUPPORT_RANDOM_GEOMETRY_H_
