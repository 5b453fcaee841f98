#ifndef HOSTKV_TESTS_UNIT_CONNECTOR_ALLOCATION_PROBE_H_
#define HOSTKV_TESTS_UNIT_CONNECTOR_ALLOCATION_PROBE_H_

#include <cstddef>

namespace hostkv::testing {

// The largest single allocation of this thread since it was made. One at a time.
class AllocationProbe {
 public:
  AllocationProbe();
  [[nodiscard]] std::size_t largest_bytes() const;
};

}  // namespace hostkv::testing

#endif  // HOSTKV_TESTS_UNIT_CONNECTOR_ALLOCATION_PROBE_H_
