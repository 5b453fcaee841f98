#ifndef HOSTKV_CONNECTOR_CACHE_EVENTS_H_
#define HOSTKV_CONNECTOR_CACHE_EVENTS_H_

#include <cstdint>
#include <vector>

#include "hostkv/connector.h"
#include "offload/key_events.h"

namespace hostkv {

// What the cache has recorded, as an engine reads it.
//
// Thread-safety: a function of its arguments. Cost: O(events). Failure: none.
std::vector<CacheEvent> make_cache_events(const KeyEvents& recorded, std::uint64_t namespace_fingerprint);

}  // namespace hostkv

#endif  // HOSTKV_CONNECTOR_CACHE_EVENTS_H_
