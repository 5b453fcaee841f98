#ifndef HOSTKV_OFFLOAD_DEADLINE_H_
#define HOSTKV_OFFLOAD_DEADLINE_H_

#include <chrono>

namespace hostkv {

// Now + timeout, without overflow: nanoseconds::max() means "for ever".
inline std::chrono::steady_clock::time_point deadline_after(std::chrono::nanoseconds timeout) {
  using TimePoint = std::chrono::steady_clock::time_point;
  const TimePoint now = std::chrono::steady_clock::now();
  return timeout > TimePoint::max() - now ? TimePoint::max() : now + timeout;
}

}  // namespace hostkv

#endif  // HOSTKV_OFFLOAD_DEADLINE_H_
