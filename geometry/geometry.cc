#include "hostkv/geometry.h"

#include <algorithm>
#include <array>

namespace hostkv {
namespace {

// In the order of GroupKind.
constexpr std::array<std::string_view, 6> kKindNames = {"full",          "mla",   "sliding_window",
                                                        "chunked_local", "mamba", "ring"};

}  // namespace

std::string_view group_kind_name(GroupKind kind) {
  const auto index = static_cast<std::size_t>(kind);
  return index < kKindNames.size() ? kKindNames[index] : "unknown";
}

std::optional<GroupKind> group_kind_from_name(std::string_view name) {
  const auto found = std::find(kKindNames.begin(), kKindNames.end(), name);
  if (found == kKindNames.end()) {
    return std::nullopt;
  }
  return static_cast<GroupKind>(found - kKindNames.begin());
}

std::int64_t required_interleave_tokens(std::int64_t requested_tokens, std::int64_t block_tokens,
                                        const std::vector<ConnectorCapabilities>& connectors) {
  const bool widen = std::any_of(connectors.begin(), connectors.end(),
                                 [](const ConnectorCapabilities& c) { return c.needs_block_interleave; });
  return widen ? block_tokens : requested_tokens;
}

}  // namespace hostkv
