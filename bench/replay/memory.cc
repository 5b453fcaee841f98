#include "bench/replay/memory.h"

#include <algorithm>
#include <vector>

#include "bench/engine/block_pool.h"
#include "bench/engine/engine.h"
#include "bench/engine/kv_cache_manager.h"
#include "offload/pool_plan.h"

namespace hostkv::bench {
namespace {

constexpr std::int64_t kMostBlocks = std::int64_t{1} << 24;

EngineConfig config_of(const GeometrySpec& spec, std::int64_t payload_bytes) {
  EngineConfig config;
  config.geometry = spec;
  config.payload_bytes = payload_bytes;
  return config;
}

}  // namespace

double device_bytes(const GeometrySpec& spec, std::int64_t payload_bytes, std::int64_t num_blocks) {
  const std::vector<std::int64_t> sizes = payload_block_bytes(config_of(spec, payload_bytes));
  const auto largest = static_cast<double>(std::ranges::max(sizes));
  return largest * static_cast<double>(num_blocks) * static_cast<double>(spec.parallel.dcp);
}

double host_bytes(const GeometrySpec& spec, std::int64_t payload_bytes, std::int64_t num_blocks) {
  return static_cast<double>(host_bytes_for_blocks(config_of(spec, payload_bytes), 1)) *
         static_cast<double>(num_blocks);
}

Result<std::int64_t> least_device_blocks(const GeometrySpec& spec, std::int64_t prompt_tokens) {
  const Result<Geometry> geometry = Geometry::resolve(spec);
  if (!geometry) return error(geometry.error());
  BlockPool pool(1);  // only asked for by calls that take blocks
  const KvCacheManager manager(*geometry, EngineConfig(), pool);
  return manager.most_blocks(prompt_tokens, std::min(prompt_tokens, EngineConfig().max_batched_tokens));
}

Result<std::int64_t> least_host_blocks(const GeometrySpec& spec, std::int64_t payload_bytes) {
  const Result<Geometry> geometry = Geometry::resolve(spec);
  if (!geometry) return error(geometry.error());
  const EngineConfig config = config_of(spec, payload_bytes);
  const std::vector<std::int64_t> sizes = payload_block_bytes(config);
  const std::int64_t one_block = host_bytes_for_blocks(config, 1);
  const auto fits = [&](std::int64_t blocks) {
    return PoolPlan::make(*geometry, sizes, blocks * one_block).has_value();
  };
  std::int64_t enough = 1;
  while (!fits(enough)) {
    if (enough >= kMostBlocks) return error(PoolPlan::make(*geometry, sizes, enough * one_block).error());
    enough *= 2;
  }
  std::int64_t too_few = enough / 2;
  while (enough - too_few > 1) {
    const std::int64_t middle = too_few + (enough - too_few) / 2;
    (fits(middle) ? enough : too_few) = middle;
  }
  return enough;
}

}  // namespace hostkv::bench
