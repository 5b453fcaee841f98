#ifndef HOSTKV_OFFLOAD_KEY_EVENTS_H_
#define HOSTKV_OFFLOAD_KEY_EVENTS_H_

#include <array>
#include <cstdint>
#include <vector>

#include "hostkv/types.h"
#include "offload/offload_key.h"

namespace hostkv {

// The life of a key in an OffloadCache. Numbers are those of CacheEventKind.
enum class KeyEventKind : std::uint8_t { kPlanned = 0, kDropped = 1, kStored = 2, kRemoved = 3, kCleared = 4 };

struct KeyEvent {
  std::array<std::uint64_t, 4> hash{};  // hash and tag of its OffloadKey
  std::uint64_t tag = 0;
  std::int64_t boundary_tokens = 0;  // where the key ends; 0: not known
  RequestId request;                 // whose store was planned
  bool has_request = false;
  KeyEventKind kind = KeyEventKind::kCleared;
};

// In the order in which it happened; whoever reads it empties it.
using KeyEvents = std::vector<KeyEvent>;

}  // namespace hostkv

#endif  // HOSTKV_OFFLOAD_KEY_EVENTS_H_
