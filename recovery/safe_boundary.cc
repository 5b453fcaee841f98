#include "recovery/safe_boundary.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>

#include "geometry/group_rules.h"

namespace hostkv {
namespace {

// Keeps sums of a boundary and a span inside 64 bits.
constexpr std::int64_t kMaxSettledTokens = std::int64_t{1} << 60U;
// Failures between two looks at whether anything but 0 can be safe at all.
constexpr std::size_t kBetweenLooks = 4096;

Status refuse(const HeldRequest& request, const std::string& what) {
  return {StatusCode::kInvalidArgument, fmt::format("request {}: {}", request.id.value(), what)};
}

// The sign bits of all, in one pass without branches.
bool has_negative(std::span<const std::int64_t> values) {
  std::int64_t bits = 0;
  for (const std::int64_t value : values) {
    bits |= value;
  }
  return bits < 0;
}

Status check_held(const Geometry& geometry, const HeldRequest& request, GroupIndex g) {
  const HeldBlocks& held = request.groups[g.value()];
  const bool is_recurrent = geometry.group(g).kind == GroupKind::kMamba;
  if (held.table.size() > std::numeric_limits<std::uint32_t>::max()) {
    return refuse(request, fmt::format("{}: table has {} entries; allowed: {}", geometry.group_label(g),
                                       held.table.size(), std::numeric_limits<std::uint32_t>::max()));
  }
  if (held.state_tokens.size() != (is_recurrent ? held.table.size() : 0)) {
    return refuse(request, fmt::format("{}: state_tokens has {} entries; expected {}", geometry.group_label(g),
                                       held.state_tokens.size(),
                                       is_recurrent ? fmt::format("{}, one a table entry", held.table.size())
                                                    : "none, the group keeps no states"));
  }
  if (has_negative(held.state_tokens)) {
    return refuse(request, fmt::format("{}: state_tokens holds {}; allowed: at least 0", geometry.group_label(g),
                                       *std::ranges::min_element(held.state_tokens)));
  }
  return {};
}

// Full attention reads its first block at every candidate but 0.
bool can_go_on_at_all(const Geometry& geometry, const HeldRequest& request, const BadBlocks& bad) {
  for (std::uint32_t i = 0; i < geometry.num_groups(); ++i) {
    const KvCacheGroup& group = geometry.group(GroupIndex{i});
    const auto table = request.groups[i].table;
    if (detail::takes_part(group) && detail::is_attention_over_all(group.kind) &&
        (table.empty() || bad.usable_tokens(GroupIndex{i}, table[0]) == 0)) {
      return false;
    }
  }
  return true;
}

}  // namespace

Status check_request(const Geometry& geometry, const HeldRequest& request) {
  if (request.settled_tokens < 0 || request.settled_tokens > kMaxSettledTokens) {
    return refuse(request, fmt::format("settled_tokens {} is out of range; allowed: 0 to {}", request.settled_tokens,
                                       kMaxSettledTokens));
  }
  if (request.mode > LoadMode::kSynchronous) {
    return refuse(request, fmt::format("mode {} is unknown", static_cast<int>(request.mode)));
  }
  if (request.groups.size() != geometry.num_groups()) {
    return refuse(request, fmt::format("groups has {} entries; the geometry has {} groups", request.groups.size(),
                                       geometry.num_groups()));
  }
  for (std::uint32_t i = 0; i < geometry.num_groups(); ++i) {
    if (!detail::takes_part(geometry.group(GroupIndex{i}))) {
      continue;
    }
    if (Status status = check_held(geometry, request, GroupIndex{i}); !status.ok()) {
      return status;
    }
  }
  return {};
}

std::size_t num_candidates(const Geometry& geometry, const HeldRequest& request) {
  const std::int64_t settled = std::clamp<std::int64_t>(request.settled_tokens, 0, kMaxSettledTokens);
  return static_cast<std::size_t>(settled / geometry.hit_alignment_tokens()) + 1;
}

bool add_failures(const Geometry& geometry, const HeldRequest& request, std::span<const FailedLoad> failed,
                  BadBlocks& bad) {
  MarkWriter writer = bad.failed_writer();
  for (std::size_t begin = 0; begin < failed.size(); begin += kBetweenLooks) {
    for (const FailedLoad& load : failed.subspan(begin, std::min(kBetweenLooks, failed.size() - begin))) {
      if (load.group.value() < geometry.num_groups()) {
        writer.add(load.group, load.block);
      } else if (load.request == request.id) {
        return false;  // the ranks disagree about the shape: nothing of the request is known
      }
    }
    writer.flush();
    if (!can_go_on_at_all(geometry, request, bad)) {
      return false;
    }
  }
  return true;
}

void mark_candidates(const Geometry& geometry, BoundaryWalk& walk, std::span<std::uint8_t> safe) {
  const std::int64_t alignment = geometry.hit_alignment_tokens();
  std::ranges::fill(safe, std::uint8_t{0});
  for (std::int64_t boundary = walk.top(); boundary > 0; boundary = walk.next(boundary - alignment)) {
    safe[static_cast<std::size_t>(boundary / alignment)] = 1;
  }
  safe[0] = 1;
}

}  // namespace hostkv
