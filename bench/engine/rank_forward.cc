#include "bench/engine/rank_forward.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "base/check.h"
#include "bench/engine/group_rules.h"

namespace hostkv::bench {
namespace {

BlockId block_at(const ForwardChunk& chunk, GroupIndex g, std::int64_t block_index) {
  const std::vector<BlockId>& table = chunk.request->tables[g.value()];
  return block_index < std::ssize(table) ? table[static_cast<std::size_t>(block_index)] : kNullBlock;
}

std::int64_t first_read_token(const KvCacheGroup& group, const ForwardChunk& chunk) {
  std::int64_t first = 0;
  switch (group.kind) {
    case GroupKind::kSlidingWindow:
      first = std::max<std::int64_t>(0, chunk.begin_tokens - group.window_tokens + 1);
      break;
    case GroupKind::kChunkedLocal:
      first = chunk.begin_tokens / group.chunk_tokens * group.chunk_tokens;
      break;
    case GroupKind::kScratch:
      first = std::max<std::int64_t>(0, chunk.begin_tokens - group.block_tokens);
      break;
    default:
      break;
  }
  // A ring is never found again: it has only the rows that this admission wrote.
  return group.kind == GroupKind::kScratch ? std::max(first, chunk.request->own_start_tokens) : first;
}

// Columns of the block boundaries that the forward of an align group passes with its last known token or a draft, as
// far as they lie before the running one.
BlockIndexRange passed_columns(const Geometry& geometry, GroupIndex g, const ForwardChunk& chunk) {
  const std::int64_t span = geometry.span_tokens(g);
  const std::int64_t running = chunk.request->running_column[g.value()];
  return {cdiv(chunk.known_end_tokens(), span) - 1, std::min(chunk.end_tokens / span, running)};
}

}  // namespace

void append_used_blocks(const Geometry& geometry, GroupIndex g, const ForwardChunk& chunk, std::vector<BlockId>& used) {
  const KvCacheGroup& group = geometry.group(g);
  const std::int64_t span = geometry.span_tokens(g);
  const auto append = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      if (const BlockId block = block_at(chunk, g, i); block != kNullBlock) used.push_back(block);
    }
  };
  if (has_one_block(group)) {
    append(0, 1);
  } else if (is_mamba(group, MambaMode::kAlign)) {
    const std::int64_t running = chunk.request->running_column[g.value()];
    if (chunk.begin_tokens > 0) used.push_back(chunk.request->state_blocks[g.value()]);
    const BlockIndexRange passed = passed_columns(geometry, g, chunk);
    append(passed.first_block, passed.end_block);
    append(chunk.checkpoint_tokens > 0 ? running - 1 : running, std::ssize(chunk.request->tables[g.value()]));
  } else if (group.kind == GroupKind::kMamba) {
    append(chunk.begin_tokens == 0 ? 0 : (chunk.begin_tokens - 1) / span, cdiv(chunk.end_tokens, span));
  } else {
    append(first_read_token(group, chunk) / span, cdiv(chunk.end_tokens + chunk.num_rejected, span));
  }
}

RankForward::RankForward(const Geometry& geometry, DeviceMemory& memory, std::uint64_t seed, std::int64_t rank,
                         std::int64_t payload_bytes)
    : geometry_(geometry), memory_(memory), rank_(rank), payload_bytes_(payload_bytes) {
  for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
    payloads_.emplace_back(seed, GroupIndex{g}, rank, payload_bytes);
  }
}

void RankForward::run(const ForwardChunk& of_step) {
  for (std::uint32_t i = 0; i < geometry_.num_groups(); ++i) {
    const GroupIndex g{i};
    ForwardChunk chunk = of_step;
    if (geometry_.group(g).kind == GroupKind::kScratch) chunk.begin_tokens = chunk.replay_begin_tokens;
    if (geometry_.group(g).kind == GroupKind::kMamba) {
      if (chunk.check) check_state(g, chunk);
      if (is_mamba(geometry_.group(g), MambaMode::kAlign)) {
        continue_align_state(g, chunk);
      } else {
        continue_state(g, chunk);
      }
    } else {
      if (chunk.check) check_rows(g, chunk);
      write_rows(g, chunk);
      write_rejected(g, chunk);
    }
  }
}

// The tokens of one sharded block that are ours, in runs of rows. Offsets are tokens from the start of the block.
template <class Visit>
void RankForward::for_each_sharded_rows(std::int64_t block_index, std::int64_t block_tokens, std::int64_t begin,
                                        std::int64_t end, const Visit& visit) const {
  const std::int64_t dcp = geometry_.spec().parallel.dcp;
  const std::int64_t interleave = geometry_.spec().parallel.interleave_tokens;
  const std::int64_t first_of_block = block_index * block_tokens * dcp;
  if (interleave == 1) {
    const std::int64_t first_row = cdiv(std::max<std::int64_t>(begin - rank_, 0), dcp);
    const std::int64_t end_row = cdiv(std::max<std::int64_t>(end - rank_, 0), dcp);
    if (first_row < end_row) {
      visit(Rows{block_index, first_row, end_row - first_row, first_of_block + first_row * dcp + rank_, dcp});
    }
    return;
  }
  const std::int64_t turn_tokens = interleave * dcp;
  for (std::int64_t turn = begin / turn_tokens; turn * turn_tokens < end; ++turn) {
    const std::int64_t first_of_turn = turn * turn_tokens + rank_ * interleave;
    const std::int64_t first = std::max(begin, first_of_turn);
    const std::int64_t last = std::min(end, first_of_turn + interleave);
    if (first >= last) continue;
    visit(Rows{block_index, turn * interleave + first - first_of_turn, last - first, first_of_block + first, 1});
  }
}

template <class Visit>
void RankForward::for_each_rows(GroupIndex g, std::int64_t begin, std::int64_t end, const Visit& visit) const {
  const KvCacheGroup& group = geometry_.group(g);
  const bool is_sharded = group.sharded && geometry_.spec().parallel.dcp > 1;
  const std::int64_t span = is_sharded ? group.block_tokens * geometry_.spec().parallel.dcp : group.block_tokens;
  for (std::int64_t block = begin / span; block * span < end; ++block) {
    const std::int64_t first = std::max(begin, block * span);
    const std::int64_t last = std::min(end, (block + 1) * span);
    if (is_sharded) {
      for_each_sharded_rows(block, group.block_tokens, first - block * span, last - block * span, visit);
    } else {
      const bool is_ring = group.kind == GroupKind::kScratch;
      visit(Rows{is_ring ? 0 : block, first - block * span, last - first, first, 1});
    }
  }
}

// Where a block lies in two parts, rows are cut at the border.
template <class Visit>
void RankForward::for_each_piece(GroupIndex g, const ForwardChunk& chunk, Rows rows, const Visit& visit) {
  const BlockId block = block_at(chunk, g, rows.block_index);
  while (rows.num_rows > 0) {
    std::int64_t num_rows = rows.num_rows;
    std::byte* memory = memory_.rows(g, block, rows.row, num_rows);
    const RowRun run{chunk.request->states.get() + rows.first_token + 1, rows.token_step, num_rows};
    visit(memory, run, rows.first_token);
    rows.row += num_rows;
    rows.num_rows -= num_rows;
    rows.first_token += num_rows * rows.token_step;
  }
}

void RankForward::check_rows(GroupIndex g, const ForwardChunk& chunk) {
  const GroupPayload& payload = payloads_[g.value()];
  for_each_rows(g, first_read_token(geometry_.group(g), chunk), chunk.begin_tokens, [&](const Rows& rows) {
    counts_.bytes_checked += rows.num_rows * payload_bytes_;
    if (block_at(chunk, g, rows.block_index) == kNullBlock) {
      note_wrong(chunk, g, rows.first_token, rows.num_rows * payload_bytes_, "expected a block, found the null block");
      return;
    }
    for_each_piece(g, chunk, rows, [&](const std::byte* memory, const RowRun& run, std::int64_t first_token) {
      std::int64_t wrong_row = 0;
      const std::int64_t wrong = payload.check_rows(memory, run, wrong_row);
      if (wrong == 0) return;
      std::vector<std::byte> expected(static_cast<std::size_t>(payload_bytes_));
      payload.write_rows(expected.data(), RowRun{run.first_state + wrong_row * run.token_step, 1, 1});
      const std::byte* found = memory + wrong_row * payload_bytes_;
      const auto at = std::mismatch(expected.begin(), expected.end(), found);
      note_wrong(chunk, g, first_token + wrong_row * run.token_step, wrong,
                 "expected byte " + std::to_string(std::to_integer<int>(*at.first)) + ", found " +
                     std::to_string(std::to_integer<int>(*at.second)));
    });
  });
}

void RankForward::write_rows(GroupIndex g, const ForwardChunk& chunk) {
  const KvCacheGroup& group = geometry_.group(g);
  std::int64_t begin = chunk.begin_tokens;
  if (group.kind == GroupKind::kScratch) begin = std::max(begin, chunk.end_tokens - group.block_tokens);
  for_each_rows(g, begin, chunk.end_tokens, [&](const Rows& rows) {
    HOSTKV_CHECK(block_at(chunk, g, rows.block_index) != kNullBlock, "a row must be written, but there is no block");
    for_each_piece(g, chunk, rows, [&](std::byte* memory, const RowRun& run, std::int64_t) {
      payloads_[g.value()].write_rows(memory, run);
    });
  });
}

// Where the state after `tokens` is, for a chunk that begins or ends there.
BlockId RankForward::state_block(const ForwardChunk& chunk, GroupIndex g, std::int64_t tokens) const {
  const KvCacheGroup& group = geometry_.group(g);
  if (has_one_block(group)) return block_at(chunk, g, 0);
  if (!is_mamba(group, MambaMode::kAlign)) return block_at(chunk, g, (tokens - 1) / geometry_.span_tokens(g));
  return chunk.request->state_blocks[g.value()];
}

void RankForward::check_state(GroupIndex g, const ForwardChunk& chunk) {
  if (chunk.begin_tokens == 0) return;
  const BlockId block = state_block(chunk, g, chunk.begin_tokens);
  const std::int64_t size_bytes = kStateRows * payload_bytes_;
  counts_.bytes_checked += size_bytes;
  if (block == kNullBlock) {
    note_wrong(chunk, g, chunk.begin_tokens, size_bytes, "expected a state, found the null block");
    return;
  }
  const std::uint64_t* states = chunk.request->states.get();
  const std::uint64_t advance = states[chunk.begin_tokens] - states[0];
  const std::int64_t wrong = payloads_[g.value()].check_state(memory_.state(g, block), advance);
  if (wrong > 0) note_wrong(chunk, g, chunk.begin_tokens, wrong, "the recurrent state is not the one of this prefix");
}

void RankForward::continue_state(GroupIndex g, const ForwardChunk& chunk) {
  const std::int64_t span = geometry_.span_tokens(g);
  const std::uint64_t* states = chunk.request->states.get();
  std::int64_t from = chunk.begin_tokens;
  while (from < chunk.end_tokens) {
    // A dense table gets the state of every block boundary that the chunk passes.
    std::int64_t to = chunk.end_tokens;
    if (is_mamba(geometry_.group(g), MambaMode::kAll)) to = std::min(to, (from / span + 1) * span);
    const BlockId target = state_block(chunk, g, to);
    HOSTKV_CHECK(target != kNullBlock, "a state must be written, but there is no block");
    const std::uint64_t advance = states[to] - states[from];
    if (from == 0) {
      payloads_[g.value()].write_state(memory_.state(g, target), advance);
    } else {
      payloads_[g.value()].advance_state(memory_.state(g, state_block(chunk, g, from)), memory_.state(g, target),
                                         advance);
    }
    from = to;
  }
}

// The known tokens lead to the running block, unless an accepted draft passes its end: then to that end. The last
// accepted draft's state is in that draft's block, those of others come to nothing. The running column is that of the
// tokens that the scheduler counts: with drafts in flight it may be ahead. The state of a boundary that is passed only
// now goes into the boundary's own column.
void RankForward::continue_align_state(GroupIndex g, const ForwardChunk& chunk) {
  const std::uint64_t* states = chunk.request->states.get();
  const std::int64_t running = chunk.request->running_column[g.value()];
  const auto size_bytes = static_cast<std::size_t>(kStateRows * payload_bytes_);
  // One of the blocks that are written may be the one that all begin with.
  std::vector<std::byte> from(size_bytes);
  if (chunk.begin_tokens > 0) {
    std::memcpy(from.data(), memory_.state(g, state_block(chunk, g, chunk.begin_tokens)), size_bytes);
  }
  const auto write = [&](std::int64_t column, std::int64_t to) {
    const BlockId target = block_at(chunk, g, column);
    HOSTKV_CHECK(target != kNullBlock, "a state must be written, but there is no block");
    const std::uint64_t advance = states[to] - states[chunk.begin_tokens];
    if (chunk.begin_tokens == 0) return payloads_[g.value()].write_state(memory_.state(g, target), advance);
    payloads_[g.value()].advance_state(from.data(), memory_.state(g, target), advance);
  };
  const std::int64_t columns = std::ssize(chunk.request->tables[g.value()]);
  for (std::int64_t column = running + 1; column < columns; ++column) memory_.scrub(g, block_at(chunk, g, column));
  if (chunk.num_accepted > 0) write(running + chunk.num_accepted, chunk.end_tokens);
  if (chunk.checkpoint_tokens > 0) write(running - 1, chunk.checkpoint_tokens);
  const std::int64_t span = geometry_.span_tokens(g);
  const BlockIndexRange passed = passed_columns(geometry_, g, chunk);
  for (std::int64_t column = passed.first_block; column < passed.end_block; ++column) {
    if (block_at(chunk, g, column) != kNullBlock) write(column, (column + 1) * span);
  }
  const std::int64_t block_end = (running + 1) * span;
  write(running, block_end <= chunk.end_tokens ? block_end : chunk.known_end_tokens());
}

// Rejected drafts leave rows behind that the next steps write again; a ring has no room for them.
void RankForward::write_rejected(GroupIndex g, const ForwardChunk& chunk) {
  if (chunk.num_rejected == 0 || geometry_.group(g).kind == GroupKind::kScratch) return;
  for_each_rows(g, chunk.end_tokens, chunk.end_tokens + chunk.num_rejected, [&](const Rows& rows) {
    const BlockId block = block_at(chunk, g, rows.block_index);
    HOSTKV_CHECK(block != kNullBlock, "a draft's row must be written, but there is no block");
    std::int64_t row = rows.row;
    for (std::int64_t left = rows.num_rows; left > 0;) {
      std::int64_t num_rows = left;
      std::byte* memory = memory_.rows(g, block, row, num_rows);
      std::memset(memory, 0x5A, static_cast<std::size_t>(num_rows * payload_bytes_));
      row += num_rows;
      left -= num_rows;
    }
  });
}

void RankForward::note_wrong(const ForwardChunk& chunk, GroupIndex g, std::int64_t position, std::int64_t wrong_bytes,
                             std::string what) {
  counts_.bytes_wrong += wrong_bytes;
  if (!counts_.first_wrong) counts_.first_wrong = WrongByte{chunk.request->id, g, rank_, position, std::move(what)};
}

}  // namespace hostkv::bench
