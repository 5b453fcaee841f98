#include "connector/cache_events.h"

#include <algorithm>
#include <cstring>

namespace hostkv {
namespace {

template <KeyEventKind kRecorded, CacheEventKind kShown>
constexpr bool kSameNumber = static_cast<int>(kRecorded) == static_cast<int>(kShown);
static_assert(kSameNumber<KeyEventKind::kPlanned, CacheEventKind::kPlanned>);
static_assert(kSameNumber<KeyEventKind::kDropped, CacheEventKind::kDropped>);
static_assert(kSameNumber<KeyEventKind::kStored, CacheEventKind::kStored>);
static_assert(kSameNumber<KeyEventKind::kRemoved, CacheEventKind::kRemoved>);
static_assert(kSameNumber<KeyEventKind::kCleared, CacheEventKind::kCleared>);

}  // namespace

std::vector<CacheEvent> make_cache_events(const KeyEvents& recorded, std::uint64_t namespace_fingerprint) {
  std::vector<CacheEvent> events;
  events.reserve(recorded.size());
  for (const KeyEvent& record : recorded) {
    CacheEvent& event = events.emplace_back();
    event.kind = static_cast<CacheEventKind>(record.kind);
    if (record.kind == KeyEventKind::kCleared) {
      continue;
    }
    const KeyTagParts parts = split_key_tag(record.tag, namespace_fingerprint);
    event.group = parts.group;
    event.boundary_tokens = record.boundary_tokens;
    event.request = record.request;
    event.has_request = record.has_request;
    event.hash_size_bytes = static_cast<std::uint8_t>(std::min(parts.hash_size_bytes, event.hash.size()));
    std::memcpy(event.hash.data(), record.hash.data(), event.hash.size());
  }
  return events;
}

}  // namespace hostkv
