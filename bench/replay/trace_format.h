#ifndef HOSTKV_BENCH_REPLAY_TRACE_FORMAT_H_
#define HOSTKV_BENCH_REPLAY_TRACE_FORMAT_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace hostkv::bench {

inline constexpr std::size_t kTraceHeadBytes = 4096;

// Empty when the first bytes of a file may begin a Mooncake trace; else what the file seems to be and what to do.
std::string foreign_format(std::string_view head);

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_REPLAY_TRACE_FORMAT_H_
