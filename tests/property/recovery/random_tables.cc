#include "tests/property/recovery/random_tables.h"

#include <algorithm>
#include <limits>

#include "tests/property/recovery/token_oracle.h"
#include "tests/support/random_geometry.h"

namespace hostkv::testing {
namespace {

constexpr std::int64_t kMaxAlignment = 48;

// Blocks that are read from some boundary on are there, and of what lies before some runs that were retained.
std::vector<bool> kept_blocks(Random& random, const KvCacheGroup& group, std::int64_t span, std::int64_t settled,
                              std::int64_t computed) {
  std::vector<bool> kept(static_cast<std::size_t>((computed + span - 1) / span), true);
  if (group.kind == GroupKind::kSlidingWindow || group.kind == GroupKind::kChunkedLocal) {
    const std::int64_t pruned_at =
        one_in(random, 2) ? pick(random, 0, settled / 2) : settled - pick(random, 0, settled / 2);
    for (std::size_t i = 0; i < kept.size(); ++i) {
      const std::int64_t end = std::min((static_cast<std::int64_t>(i) + 1) * span, pruned_at);
      kept[i] = end <= static_cast<std::int64_t>(i) * span || is_read(group, end - 1, pruned_at);
    }
    if (one_in(random, 2) && !kept.empty()) {
      const auto first = static_cast<std::size_t>(pick(random, 0, std::ssize(kept) - 1));
      const auto end = std::min(kept.size(), first + static_cast<std::size_t>(pick(random, 1, 8)));
      std::fill(kept.begin() + static_cast<std::ptrdiff_t>(first), kept.begin() + static_cast<std::ptrdiff_t>(end),
                true);
    }
  }
  if (one_in(random, 24) && !kept.empty()) {
    kept[static_cast<std::size_t>(pick(random, 0, std::ssize(kept) - 1))] = false;  // a hole
  }
  if (one_in(random, 20)) {
    kept.resize(kept.size() - static_cast<std::size_t>(pick(random, 0, std::min<std::int64_t>(2, std::ssize(kept)))));
  }
  return kept;
}

// States at boundaries of hits, most of them where their position says.
void add_states(Random& random, const Geometry& geometry, std::size_t g, std::int64_t computed, HeldTables& held,
                BlockNumbers& numbers) {
  const std::int64_t span = geometry.group(GroupIndex{static_cast<std::uint32_t>(g)}).block_tokens;
  const std::int64_t step = geometry.hit_alignment_tokens();
  std::vector<BlockId>& table = held.tables[g];
  std::vector<std::int64_t>& tokens = held.state_tokens[g];
  table.assign(static_cast<std::size_t>((computed + span - 1) / span + pick(random, 0, 2)), kNullBlock);
  tokens.assign(table.size(), 0);
  const std::int64_t density = std::max<std::int64_t>(1, pick(random, -2, 3));
  for (std::int64_t boundary = step; boundary <= computed && !table.empty(); boundary += step) {
    if (!one_in(random, density)) {
      continue;
    }
    auto column = static_cast<std::size_t>((boundary - 1) / span);
    if (one_in(random, 8)) {
      column = static_cast<std::size_t>(pick(random, 0, std::ssize(table) - 1));
    }
    table[column] = numbers.next(g);
    tokens[column] = one_in(random, 16) ? pick(random, 1, computed) : boundary;
    if (one_in(random, 24)) {  // a state that was copied: twice in the table
      const auto twin = static_cast<std::size_t>(pick(random, 0, std::ssize(table) - 1));
      table[twin] = twin == column ? table[twin] : numbers.next(g);
      tokens[twin] = tokens[column];
    }
  }
}

}  // namespace

BlockId BlockNumbers::next(std::size_t group) {
  last_.resize(std::max(last_.size(), group + 1), 0);
  std::uint32_t& last = last_[group];
  const auto step = static_cast<std::uint32_t>(wild_ ? pick(*random_, 1, 40'000'000) : 1);
  last =
      last > std::numeric_limits<std::uint32_t>::max() - step ? std::numeric_limits<std::uint32_t>::max() : last + step;
  return BlockId{last};
}

std::optional<Geometry> random_small_geometry(Random& random) {
  GeometrySpec spec = random_spec(random);
  if (one_in(random, 10)) {
    spec.groups[static_cast<std::size_t>(pick(random, 0, std::ssize(spec.groups) - 1))].cacheable = false;
  }
  Result<Geometry> geometry = Geometry::resolve(std::move(spec));
  if (!geometry || geometry->hit_alignment_tokens() > kMaxAlignment) {
    return std::nullopt;
  }
  return *std::move(geometry);
}

HeldTables random_tables(Random& random, const Geometry& geometry, std::uint64_t id, std::int64_t settled_tokens,
                         std::int64_t computed_tokens, BlockNumbers& numbers) {
  HeldTables held(id, settled_tokens, std::vector<std::vector<std::uint32_t>>(geometry.num_groups()));
  for (std::size_t g = 0; g < geometry.num_groups(); ++g) {
    const KvCacheGroup& group = geometry.group(GroupIndex{static_cast<std::uint32_t>(g)});
    if (group.kind == GroupKind::kMamba) {
      add_states(random, geometry, g, computed_tokens, held, numbers);
      continue;
    }
    for (const bool kept : kept_blocks(random, group, span_of(geometry, group), settled_tokens, computed_tokens)) {
      held.tables[g].push_back(kept ? numbers.next(g) : kNullBlock);
    }
  }
  return held;
}

std::vector<FailedLoad> random_failures(Random& random, const Geometry& geometry, const HeldTables& held,
                                        std::int64_t num_ranks) {
  std::vector<FailedLoad> failed;
  const std::int64_t count = one_in(random, 16) ? pick(random, 5, 40) : pick(random, 0, 3);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto g = static_cast<std::size_t>(pick(random, 0, geometry.num_groups() - 1));
    const std::vector<BlockId>& table = held.tables[g];
    FailedLoad load{held.id, GroupIndex{static_cast<std::uint32_t>(g)}, BlockId{7},
                    RankIndex{static_cast<std::uint32_t>(pick(random, 0, num_ranks - 1))}};
    if (!table.empty() && !one_in(random, 12)) {
      const std::int64_t last = std::ssize(table) - 1;
      const std::int64_t index = one_in(random, 3) ? pick(random, 0, last) : last - pick(random, 0, last / 3);
      load.block = table[static_cast<std::size_t>(index)];
    } else if (one_in(random, 2)) {
      load.block = BlockId{static_cast<std::uint32_t>(pick(random, 0, 5'000'000'000) & 0xFFFFFFFF)};
    }
    failed.push_back(load);
  }
  return failed;
}

}  // namespace hostkv::testing
