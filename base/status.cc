#include "hostkv/status.h"

#include <array>

namespace hostkv {

std::string_view status_code_name(StatusCode code) {
  static constexpr std::array<std::string_view, 12> kNames = {
      "kOk",       "kInvalidArgument",   "kFailedPrecondition", "kNotSupported",
      "kNotFound", "kResourceExhausted", "kUnavailable",        "kDeadlineExceeded",
      "kCanceled", "kDataCorruption",    "kDeviceError",        "kInternal"};
  const auto index = static_cast<std::size_t>(code);
  return index < kNames.size() ? kNames[index] : "kUnknown";
}

std::string Status::to_string() const {
  std::string text(status_code_name(code_));
  if (!ok()) {
    text += ": " + message_;
  }
  return text;
}

}  // namespace hostkv
