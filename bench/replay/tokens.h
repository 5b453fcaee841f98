#ifndef HOSTKV_BENCH_REPLAY_TOKENS_H_
#define HOSTKV_BENCH_REPLAY_TOKENS_H_

#include <cstdint>
#include <span>
#include <vector>

namespace hostkv::bench {

// The prompt of a list of block ids: `block_tokens` tokens for each id and one more at the end, so that the last block
// is reusable although the last token of a prompt is always computed. Token j of a block is a function of (id, j): two
// prompts share a prefix of blocks exactly where they share the ids. REQUIRES: block_tokens >= 2, ids < 2^53.
std::vector<std::int32_t> prompt_tokens(std::span<const std::int64_t> block_ids, std::int64_t block_tokens);

// `num_tokens` tokens that belong to `seed` alone.
std::vector<std::int32_t> random_prompt(std::uint64_t seed, std::int64_t num_tokens);

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_REPLAY_TOKENS_H_
