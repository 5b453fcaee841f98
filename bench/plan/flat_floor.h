#ifndef HOSTKV_BENCH_PLAN_FLAT_FLOOR_H_
#define HOSTKV_BENCH_PLAN_FLAT_FLOOR_H_

#include <cstdint>

namespace hostkv::bench {

// Nanoseconds of one prefetched probe of a flat open-addressed table with `num_keys` random keys of 32 bytes, half full
// or less: `num_probes` keys in the order in which they were inserted, best of several runs. What no index can do
// without. Measured once a size and kept.
double floor_ns_per_key(std::int64_t num_keys, std::int64_t num_probes);

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_PLAN_FLAT_FLOOR_H_
