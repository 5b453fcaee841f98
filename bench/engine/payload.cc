#include "bench/engine/payload.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace hostkv::bench {
namespace {

constexpr std::uint64_t kMultiplier = 0x9FB21C651E98DF25ULL;

std::uint64_t mix(std::uint64_t value) {
  value ^= value >> 32U;
  value *= kMultiplier;
  value ^= value >> 29U;
  value *= 0xD6E8FEB86659FD93ULL;
  return value ^ (value >> 32U);
}

std::uint64_t load_word(const std::byte* memory) {
  std::uint64_t word = 0;
  std::memcpy(&word, memory, sizeof(word));
  return word;
}

std::int64_t count_different_bytes(const std::byte* a, const std::byte* b, std::int64_t size_bytes) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < size_bytes; ++i) count += a[i] != b[i] ? 1 : 0;
  return count;
}

// The usual case, one word a row, kept free of branches so that it runs at the speed of memory.
bool words_agree(const std::byte* memory, const RowRun& run, std::uint64_t salt) {
  std::uint64_t different = 0;
  const std::uint64_t* state = run.first_state;
  for (std::int64_t i = 0; i < run.num_rows; ++i) {
    different |= load_word(memory + i * 8) ^ state[i * run.token_step] ^ salt;
  }
  return different == 0;
}

}  // namespace

void extend_prefix_states(std::uint64_t seed, std::span<const std::int32_t> tokens, std::int64_t end_tokens,
                          std::vector<std::uint64_t>& states) {
  const auto end = static_cast<std::size_t>(end_tokens);
  if (states.empty()) states.push_back(mix(seed + kMultiplier));
  const std::size_t begin = states.size() - 1;
  if (begin < end) extend_prefix_states_by(tokens.subspan(begin, end - begin), states);
}

void extend_prefix_states_by(std::span<const std::int32_t> tokens, std::vector<std::uint64_t>& states) {
  std::uint64_t state = states.back();
  for (const std::int32_t token : tokens) {
    state = (state ^ static_cast<std::uint32_t>(token)) * kMultiplier;
    state ^= state >> 32U;
    states.push_back(state);
  }
}

std::vector<std::uint64_t>& PrefixStates::reserve(std::int64_t num_states) {
  const auto needed = static_cast<std::size_t>(num_states);
  if (needed <= states_->capacity()) return *states_;
  auto larger = std::make_shared<std::vector<std::uint64_t>>();
  larger->reserve(std::max(needed, 2 * states_->capacity()));
  larger->assign(states_->begin(), states_->end());
  states_ = std::move(larger);
  return *states_;
}

std::int32_t output_token(std::uint64_t output_seed, std::int64_t index) {
  return static_cast<std::int32_t>(mix(output_seed + static_cast<std::uint64_t>(index)) & 0x7FFFFFFFULL);
}

std::uint64_t draw(std::uint64_t seed, std::int64_t index) {
  return mix(mix(seed) + static_cast<std::uint64_t>(index));
}

std::uint64_t output_seed(std::uint64_t seed, std::span<const std::int32_t> prompt_tokens) {
  return XXH3_64bits_withSeed(prompt_tokens.data(), prompt_tokens.size_bytes(), seed);
}

GroupPayload::GroupPayload(std::uint64_t seed, GroupIndex group, std::int64_t rank, std::int64_t payload_bytes)
    : row_bytes_(payload_bytes) {
  std::uint64_t salt = mix(seed ^ (std::uint64_t{group.value()} << 40U) ^ (static_cast<std::uint64_t>(rank) << 20U));
  for (std::int64_t i = 0; i < (payload_bytes + 7) / 8; ++i) row_salts_.push_back(salt = mix(salt + 1));
  for (std::int64_t i = 0; i < payload_bytes; ++i) state_salts_.push_back(salt = mix(salt + 2));
}

void GroupPayload::write_rows(std::byte* memory, const RowRun& run) const {
  const std::uint64_t* state = run.first_state;
  if (row_bytes_ == 8) {
    for (std::int64_t i = 0; i < run.num_rows; ++i) {
      const std::uint64_t word = state[i * run.token_step] ^ row_salts_[0];
      std::memcpy(memory + i * 8, &word, sizeof(word));
    }
    return;
  }
  for (std::int64_t i = 0; i < run.num_rows; ++i) {
    std::int64_t left = row_bytes_;
    for (const std::uint64_t salt : row_salts_) {
      const std::uint64_t word = state[i * run.token_step] ^ salt;
      const std::int64_t size = std::min<std::int64_t>(left, 8);
      std::memcpy(memory, &word, static_cast<std::size_t>(size));
      memory += size;
      left -= size;
    }
  }
}

std::int64_t GroupPayload::check_rows(const std::byte* memory, const RowRun& run, std::int64_t& first_wrong_row) const {
  if (row_bytes_ == 8 && words_agree(memory, run, row_salts_[0])) return 0;
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < run.num_rows; ++i) {
    std::int64_t left = row_bytes_;
    std::int64_t wrong_in_row = 0;
    for (const std::uint64_t salt : row_salts_) {
      const std::uint64_t word = run.first_state[i * run.token_step] ^ salt;
      const std::int64_t size = std::min<std::int64_t>(left, 8);
      if (std::memcmp(memory, &word, static_cast<std::size_t>(size)) != 0) {
        wrong_in_row += count_different_bytes(memory, reinterpret_cast<const std::byte*>(&word), size);
      }
      memory += size;
      left -= size;
    }
    if (wrong == 0 && wrong_in_row > 0) first_wrong_row = i;
    wrong += wrong_in_row;
  }
  return wrong;
}

void GroupPayload::write_state(std::byte* memory, std::uint64_t advance) const {
  for (const std::uint64_t salt : state_salts_) {
    const std::uint64_t word = salt + advance;
    std::memcpy(memory, &word, sizeof(word));
    memory += sizeof(word);
  }
}

std::int64_t GroupPayload::check_state(const std::byte* memory, std::uint64_t advance) const {
  std::int64_t wrong = 0;
  for (const std::uint64_t salt : state_salts_) {
    const std::uint64_t word = salt + advance;
    wrong += count_different_bytes(memory, reinterpret_cast<const std::byte*>(&word), sizeof(word));
    memory += sizeof(word);
  }
  return wrong;
}

void GroupPayload::advance_state(const std::byte* from, std::byte* to, std::uint64_t advance) const {
  for (std::size_t i = 0; i < state_salts_.size(); ++i) {
    const std::uint64_t word = load_word(from + i * 8) + advance;
    std::memcpy(to + i * 8, &word, sizeof(word));
  }
}

}  // namespace hostkv::bench
