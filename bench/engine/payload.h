#ifndef HOSTKV_BENCH_ENGINE_PAYLOAD_H_
#define HOSTKV_BENCH_ENGINE_PAYLOAD_H_

// The byte function of the reference engine's "model".
//
// Purpose: a chained state P[i] = f(seed, tokens [0, i)) names a prefix. Word j of the row of token i is P[i + 1] xor a
// salt of (group, rank, j). Word k of a recurrent state after B tokens is a salt of (group, rank, k) plus P[B] - P[0],
// so that the state after a chunk follows from the bytes of the state before it: a wrong state stays wrong.
// Thread-safety: values; GroupPayload is immutable. Ownership: none. Cost: a few machine words a row. Failure: none.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "hostkv/types.h"

namespace hostkv::bench {

inline constexpr std::int64_t kStateRows = 8;  // a recurrent state has the bytes of so many rows

// Appends states to `states` until it holds P[0] .. P[end_tokens].
void extend_prefix_states(std::uint64_t seed, std::span<const std::int32_t> tokens, std::int64_t end_tokens,
                          std::vector<std::uint64_t>& states);
// Appends a state for each token that follows.
void extend_prefix_states_by(std::span<const std::int32_t> tokens, std::vector<std::uint64_t>& states);

// The chained states of one request's tokens, which grow while forwards on other threads read the first ones.
// Thread-safety: one thread grows; what share() gave stays as it is and may be read by others. Cost: amortised O(1) a
// state.
class PrefixStates {
 public:
  // The vector to append to, with room for `num_states` in all. What was shared is never moved.
  std::vector<std::uint64_t>& reserve(std::int64_t num_states);
  [[nodiscard]] std::shared_ptr<const std::uint64_t> share() const { return {states_, states_->data()}; }

 private:
  std::shared_ptr<std::vector<std::uint64_t>> states_ = std::make_shared<std::vector<std::uint64_t>>();
};

// The output token number `index` of a request.
std::int32_t output_token(std::uint64_t output_seed, std::int64_t index);
// A number that looks drawn, the same for the same arguments.
std::uint64_t draw(std::uint64_t seed, std::int64_t index);
std::uint64_t output_seed(std::uint64_t seed, std::span<const std::int32_t> prompt_tokens);

// Rows of consecutive places in memory, of tokens that are `token_step` apart.
struct RowRun {
  const std::uint64_t* first_state = nullptr;  // P[i + 1] of the first row's token
  std::int64_t token_step = 1;
  std::int64_t num_rows = 0;
};

// The function of one group on one rank.
class GroupPayload {
 public:
  GroupPayload(std::uint64_t seed, GroupIndex group, std::int64_t rank, std::int64_t payload_bytes);

  void write_rows(std::byte* memory, const RowRun& run) const;
  // Bytes that differ. `first_wrong_row`: the first row with one, untouched when there is none.
  std::int64_t check_rows(const std::byte* memory, const RowRun& run, std::int64_t& first_wrong_row) const;

  // Recurrent states are `kStateRows * payload_bytes` bytes. `advance` is P[B] - P[0].
  void write_state(std::byte* memory, std::uint64_t advance) const;
  std::int64_t check_state(const std::byte* memory, std::uint64_t advance) const;
  // The state in `from` moved on by `advance`; the two may be the same memory.
  void advance_state(const std::byte* from, std::byte* to, std::uint64_t advance) const;

 private:
  std::int64_t row_bytes_;
  std::vector<std::uint64_t> row_salts_;    // [ceil(row_bytes / 8)]
  std::vector<std::uint64_t> state_salts_;  // [row_bytes]: a state's bytes in words of 8
};

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_ENGINE_PAYLOAD_H_
