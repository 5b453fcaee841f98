#ifndef HOSTKV_PYTHON_BINDINGS_ERRORS_H_
#define HOSTKV_PYTHON_BINDINGS_ERRORS_H_

// How a Status reaches Python.
//
// Purpose: kInvalidArgument is ValueError, everything else hostkv._core.HostKVError; both carry the core's message and
// begin with the name of the code. A Python value of the wrong type inside of another one is TypeError. Thread-safety:
// any thread that holds the GIL. Ownership: none. Cost: an exception where there is an error, one test where there is
// none. Failure: throws, that is its purpose.

#include <nanobind/nanobind.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "hostkv/status.h"

namespace hostkv::python {

// hostkv._core.HostKVError.
class CoreError : public std::runtime_error {
 public:
  explicit CoreError(const Status& status) : std::runtime_error(status.to_string()) {}
};

[[noreturn]] inline void raise(const Status& status) {
  if (status.code() == StatusCode::kInvalidArgument) {
    throw nanobind::value_error(status.message().c_str());
  }
  throw CoreError(status);
}

inline void must(const Status& status) {
  if (!status.ok()) {
    raise(status);
  }
}

template <class T>
T must(Result<T> result) {
  if (!result) {
    raise(result.error());
  }
  return std::move(*result);
}

}  // namespace hostkv::python

#endif  // HOSTKV_PYTHON_BINDINGS_ERRORS_H_
