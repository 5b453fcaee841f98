#ifndef HOSTKV_BASE_LOG_H_
#define HOSTKV_BASE_LOG_H_

// The one way to log. Lines go to standard error as "hostkv level key=value ...". The library logs little: start-up
// facts at info, what an operator should change at warning. Thread-safe.

#include <string_view>

namespace hostkv {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

void set_log_level(LogLevel level);  // default: kWarning
void log_line(LogLevel level, std::string_view line);

}  // namespace hostkv

#endif  // HOSTKV_BASE_LOG_H_
