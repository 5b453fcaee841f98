#ifndef HOSTKV_INCLUDE_HOSTKV_METRICS_H_
#define HOSTKV_INCLUDE_HOSTKV_METRICS_H_

// Counters of a connector as plain values (R24). Counters only grow; gauges say what is true now.
//
// Thread-safety: values. Ownership: none. Cost: a copy of the numbers. Failure: none.

#include <cstdint>

namespace hostkv {

struct SchedulerMetrics {
  // Lookups.
  std::int64_t lookups = 0;          // match_prefix calls that searched
  std::int64_t queried_tokens = 0;   // num_tokens - local tokens, once per admission
  std::int64_t delayed_lookups = 0;  // match_prefix calls that answered kRetry
  std::int64_t hit_tokens = 0;       // tokens whose load was planned
  // Stores, in blocks. planned = stored + dropped_* + in flight.
  std::int64_t planned_store_blocks = 0;
  std::int64_t stored_blocks = 0;          // published
  std::int64_t present_blocks = 0;         // wanted, found stored or in flight already
  std::int64_t dropped_full_blocks = 0;    // no slot could be freed for their boundary set
  std::int64_t dropped_failed_blocks = 0;  // a rank failed to copy the set
  std::int64_t dropped_reset_blocks = 0;   // a reset came before the ranks were done
  std::int64_t evicted_blocks = 0;
  std::int64_t unstorable_boundaries = 0;  // a source block was gone (null) and its key not stored: nothing planned
  std::int64_t dropped_hand_offs = 0;      // boundaries of handed-off states that found no slot: lost for good
  std::int64_t ignored_hand_offs = 0;  // for unknown, finished or preempted requests, null blocks, off-grid boundaries
  // Loads.
  std::int64_t planned_load_blocks = 0;    // from the host and from other blocks of the device
  std::int64_t planned_device_copies = 0;  // of these, from the device
  std::int64_t loaded_blocks = 0;
  std::int64_t failed_load_blocks = 0;
  // Results.
  std::int64_t ignored_results = 0;  // repeats, unknown jobs, ranks or epochs
  // Gauges.
  std::int64_t capacity_bytes = 0;  // of one rank
  std::int64_t used_bytes = 0;      // whole slabs in use
  std::int64_t stored_keys = 0;     // keys a lookup can find
  std::int64_t pinned_slots = 0;    // slots that must not be evicted: promised, loading or being stored
  std::int64_t jobs_in_flight = 0;
  std::int64_t pinned_device_blocks = 0;
};

struct WorkerMetrics {
  std::int64_t stored_bytes = 0;
  std::int64_t loaded_bytes = 0;
  std::int64_t device_copied_bytes = 0;  // between blocks of the device
  std::int64_t failed_jobs = 0;
  std::int64_t checked_blocks = 0;  // loaded blocks held against their checksum (option checksums)
  std::int64_t changed_blocks = 0;  // of these, whose bytes had changed in host memory: their loads failed
  std::int64_t jobs_in_flight = 0;
  std::int64_t pool_bytes = 0;  // mapped host memory
};

}  // namespace hostkv

#endif  // HOSTKV_INCLUDE_HOSTKV_METRICS_H_
