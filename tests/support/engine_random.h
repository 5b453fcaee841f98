#ifndef HOSTKV_TESTS_SUPPORT_ENGINE_RANDOM_H_
#define HOSTKV_TESTS_SUPPORT_ENGINE_RANDOM_H_

// Random engines that are as small as their requests allow, and random requests for them.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "bench/engine/kv_cache_manager.h"
#include "tests/support/engine_support.h"
#include "tests/support/random_geometry.h"

namespace hostkv::bench::testing {

// Models of all kinds; now and then one whose groups cannot all be found, or not all be moved.
inline GeometrySpec random_engine_spec(Random& random) {
  GeometrySpec spec = hostkv::testing::random_spec(random);
  for (KvCacheGroup& group : spec.groups) {
    const bool may_keep_one_state = group.kind == GroupKind::kMamba && hostkv::testing::one_in(random, 8);
    if (may_keep_one_state) group.mamba_mode = MambaMode::kNone;
    if (hostkv::testing::one_in(random, 24)) group.cacheable = false;
    if (hostkv::testing::one_in(random, 24)) group.transferable = false;
  }
  const std::int64_t block = spec.groups.front().block_tokens;
  for (const std::int64_t divisor : {1, 2, 3}) {
    if (block % divisor == 0 && hostkv::testing::one_in(random, 2)) spec.parallel.interleave_tokens = block / divisor;
  }
  return spec;
}

// Blocks that the largest of `requests` may own at once: a smaller pool refuses it.
inline std::int64_t smallest_pool(const EngineConfig& config, const std::vector<RequestSpec>& requests) {
  GeometrySpec spec = config.geometry;
  spec.parallel.tp = std::max(spec.parallel.tp, spec.parallel.dcp);
  const Result<Geometry> geometry = Geometry::resolve(spec);
  if (!geometry) return 1;
  BlockPool no_blocks(1);
  const KvCacheManager manager(*geometry, config, no_blocks);
  std::int64_t most = 1;
  for (const RequestSpec& request : requests) {
    const std::int64_t total = std::ssize(request.prompt_tokens) + request.max_new_tokens - 1;
    most = std::max(most, manager.most_blocks(total, std::min(total, config.max_batched_tokens)));
  }
  return most;
}

// Prompts of a few families, so that they share prefixes.
inline std::vector<RequestSpec> random_requests(Random& random, std::int64_t num_requests, std::int64_t most_prompt,
                                                std::int64_t most_new) {
  std::vector<RequestSpec> requests;
  for (std::int64_t i = 0; i < num_requests; ++i) {
    const auto family = static_cast<std::int32_t>(pick(random, 1, 3));
    RequestSpec request{.prompt_tokens = make_prompt(pick(random, 1, most_prompt), family)};
    if (hostkv::testing::one_in(random, 3)) request.prompt_tokens.back() = static_cast<std::int32_t>(i);
    request.max_new_tokens = pick(random, 1, most_new);
    draw_end(random, request);
    requests.push_back(std::move(request));
  }
  return requests;
}

// Null: the engine refuses this model, or the host budget is too small for it.
inline std::unique_ptr<EngineImpl> try_engine(EngineConfig config) {
  Result<std::unique_ptr<Engine>> engine = Engine::create(std::move(config));
  return std::unique_ptr<EngineImpl>(engine ? static_cast<EngineImpl*>(engine->release()) : nullptr);
}

}  // namespace hostkv::bench::testing

#endif  // HOSTKV_TESTS_SUPPORT_ENGINE_RANDOM_H_
