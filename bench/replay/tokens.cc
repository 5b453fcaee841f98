#include "bench/replay/tokens.h"

#include "bench/replay/random.h"

namespace hostkv::bench {
namespace {

constexpr std::int32_t token_of(std::uint64_t bits) {
  return static_cast<std::int32_t>(bits >> 33U);
}

}  // namespace

std::vector<std::int32_t> prompt_tokens(std::span<const std::int64_t> block_ids, std::int64_t block_tokens) {
  const auto block = static_cast<std::size_t>(block_tokens);
  std::vector<std::int32_t> tokens(block_ids.size() * block + 1, 1);
  std::int32_t* out = tokens.data();
  for (const std::int64_t signed_id : block_ids) {
    const auto id = static_cast<std::uint64_t>(signed_id);
    const std::uint64_t start = mix64(id);
    for (std::size_t j = 0; j < block; ++j) out[j] = token_of((start + j) * 0x9E3779B97F4A7C15ULL);
    // The id itself in two tokens: blocks of different ids differ for certain, not only most likely.
    out[0] = static_cast<std::int32_t>(id & 0x7FFFFFFFU);
    out[1] = static_cast<std::int32_t>((id >> 31U) & 0x7FFFFFFFU);
    out += block;
  }
  return tokens;
}

std::vector<std::int32_t> random_prompt(std::uint64_t seed, std::int64_t num_tokens) {
  Random random(seed);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(num_tokens));
  for (std::int32_t& token : tokens) token = token_of(random.next());
  return tokens;
}

}  // namespace hostkv::bench
