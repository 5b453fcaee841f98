#ifndef HOSTKV_INCLUDE_HOSTKV_STATUS_H_
#define HOSTKV_INCLUDE_HOSTKV_STATUS_H_

// Status and Result<T>: how every fallible call of HostKV answers.
//
// Purpose: failure is a value. No public call throws except for std::bad_alloc, and no exception crosses a thread.
// Thread-safety: values; a const object may be read by many threads.
// Ownership: a Status owns its message.
// Cost: kOk carries no allocation; an error allocates its message.
//
// A lookup miss is not an error and never a Status: see connector.h.

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>  // the std::expected of C++20 builds; see docs/adr/0001-result-type.md
#include <utility>

namespace hostkv {

// Stable numbers (they travel in messages between processes). Behind each: what the caller should do.
enum class StatusCode : std::uint8_t {
  kOk = 0,                  // nothing
  kInvalidArgument = 1,     // fix the call: a value is outside what the contract allows
  kFailedPrecondition = 2,  // fix the order of calls: right call, wrong state
  kNotSupported = 3,        // choose another mode: this build or machine cannot
  kNotFound = 4,            // the id is unknown
  kResourceExhausted = 5,   // back off, evict or enlarge
  kUnavailable = 6,         // retry later
  kDeadlineExceeded = 7,    // the deadline passed; what it covered must not be used
  kCanceled = 8,            // somebody cancelled it
  kDataCorruption = 9,      // drop the bytes and recompute
  kDeviceError = 10,        // the device or the operating system said no; native error in the message
  kInternal = 11,           // a bug in HostKV: report it
};

// "kOk", "kInvalidArgument", ...; "kUnknown" for a number outside the list.
std::string_view status_code_name(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // kOk
  // REQUIRES: code != kOk. `message` says what, sizes, ids and what is allowed; never only "failed".
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  [[nodiscard]] bool ok() const { return code_ == StatusCode::kOk; }
  [[nodiscard]] StatusCode code() const { return code_; }
  [[nodiscard]] const std::string& message() const { return message_; }
  // "kInvalidArgument: ...", or "kOk".
  [[nodiscard]] std::string to_string() const;

  friend bool operator==(const Status&, const Status&) = default;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// A value or the reason why there is none; the interface of std::expected.
template <class T>
using Result = tl::expected<T, Status>;

// `return error(StatusCode::kNotFound, "request 7 is unknown");` in a function that returns Result<T>.
inline tl::unexpected<Status> error(StatusCode code, std::string message) {
  return tl::unexpected<Status>(Status(code, std::move(message)));
}
// Passes a failure on: `if (!status.ok()) return error(std::move(status));`
inline tl::unexpected<Status> error(Status status) {
  return tl::unexpected<Status>(std::move(status));
}

}  // namespace hostkv

#endif  // HOSTKV_INCLUDE_HOSTKV_STATUS_H_
