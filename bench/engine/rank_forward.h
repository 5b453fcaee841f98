#ifndef HOSTKV_BENCH_ENGINE_RANK_FORWARD_H_
#define HOSTKV_BENCH_ENGINE_RANK_FORWARD_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/engine/device_memory.h"
#include "bench/engine/engine.h"
#include "bench/engine/payload.h"
#include "hostkv/geometry.h"
#include "hostkv/types.h"

namespace hostkv::bench {

// What a forward sees of its request: as it was when the step was launched. Later steps are planned meanwhile.
struct RequestView {
  RequestId id;
  std::vector<std::vector<BlockId>> tables;     // [num_groups][block index]
  std::vector<BlockId> state_blocks;            // align groups, [num_groups]: the state that the forward goes on from
  std::vector<std::int64_t> running_column;     // align groups, [num_groups]: of the state that it writes
  std::shared_ptr<const std::uint64_t> states;  // chained prefix state after i tokens
  std::int64_t own_start_tokens = 0;            // the rows of scratch groups begin here
};

// One request's share of a step: tokens [begin_tokens, end_tokens).
struct ForwardChunk {
  std::shared_ptr<const RequestView> request;
  std::int64_t begin_tokens = 0;
  std::int64_t end_tokens = 0;
  std::int64_t num_accepted = 0;  // the last of them are accepted drafts
  bool check = true;
  std::int64_t num_rejected = 0;         // drafts behind end_tokens that come to nothing: wrong rows are written
  std::int64_t checkpoint_tokens = 0;    // the state there goes into the column before the running one; 0: no
  std::int64_t replay_begin_tokens = 0;  // scratch groups begin here

  [[nodiscard]] std::int64_t known_end_tokens() const { return end_tokens - num_accepted; }
};

// Appends the blocks of one group that the forward of a chunk reads or writes. Cost: O(blocks).
void append_used_blocks(const Geometry& geometry, GroupIndex g, const ForwardChunk& chunk, std::vector<BlockId>& used);

struct CheckCounts {
  std::int64_t bytes_checked = 0;
  std::int64_t bytes_wrong = 0;
  std::optional<WrongByte> first_wrong;
};

// The "model" on one rank: checks what attention would read, continues the recurrent states, writes the new rows.
//
// Thread-safety: run() and take_counts() on the rank's compute stream only. Ownership:
// the geometry and the memory are the caller's. Cost: O(rows read + rows written). Failure: a byte that is not as it
// should be, and a null block where a row should be read, is counted; a null block where a row must be written aborts.
class RankForward {
 public:
  RankForward(const Geometry& geometry, DeviceMemory& memory, std::uint64_t seed, std::int64_t rank,
              std::int64_t payload_bytes);

  void run(const ForwardChunk& of_step);
  CheckCounts take_counts() { return std::exchange(counts_, {}); }  // since the last call

 private:
  struct Rows {  // consecutive rows of one block, of tokens that are token_step apart
    std::int64_t block_index = 0;
    std::int64_t row = 0;
    std::int64_t num_rows = 0;
    std::int64_t first_token = 0;
    std::int64_t token_step = 1;
  };
  template <class Visit>
  void for_each_rows(GroupIndex g, std::int64_t begin, std::int64_t end, const Visit& visit) const;
  template <class Visit>
  void for_each_sharded_rows(std::int64_t block_index, std::int64_t block_tokens, std::int64_t begin, std::int64_t end,
                             const Visit& visit) const;
  template <class Visit>
  void for_each_piece(GroupIndex g, const ForwardChunk& chunk, Rows rows, const Visit& visit);

  void check_rows(GroupIndex g, const ForwardChunk& chunk);
  void write_rows(GroupIndex g, const ForwardChunk& chunk);
  void check_state(GroupIndex g, const ForwardChunk& chunk);
  void continue_state(GroupIndex g, const ForwardChunk& chunk);
  void continue_align_state(GroupIndex g, const ForwardChunk& chunk);
  void write_rejected(GroupIndex g, const ForwardChunk& chunk);
  [[nodiscard]] BlockId state_block(const ForwardChunk& chunk, GroupIndex g, std::int64_t tokens) const;
  void note_wrong(const ForwardChunk& chunk, GroupIndex g, std::int64_t position, std::int64_t wrong_bytes,
                  std::string what);

  const Geometry& geometry_;
  DeviceMemory& memory_;
  std::int64_t rank_;
  std::int64_t payload_bytes_;
  std::vector<GroupPayload> payloads_;  // [num_groups]
  CheckCounts counts_;
};

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_ENGINE_RANK_FORWARD_H_
