#ifndef HOSTKV_TESTS_SUPPORT_TRACE_FOLDER_H_
#define HOSTKV_TESTS_SUPPORT_TRACE_FOLDER_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>

namespace hostkv::testing {

// Public traces stay outside of the repository: HOSTKV_TRACES, else ../shared/traces beside the source tree.
inline std::filesystem::path trace_folder() {
  const char* set = std::getenv("HOSTKV_TRACES");
  return set != nullptr ? std::filesystem::path(set) : std::filesystem::path(HOSTKV_SOURCE_DIR "/../shared/traces");
}

// False where the traces are absent, which only CI counts as a failure.
inline bool have_traces() {
  if (std::filesystem::is_directory(trace_folder())) return true;
  const char* ci = std::getenv("CI");
  EXPECT_FALSE(ci != nullptr && std::string(ci) == "true") << "no trace folder at " << trace_folder();
  std::cout << "note: no trace folder at " << trace_folder() << " (set HOSTKV_TRACES); golden values not checked\n";
  return false;
}

}  // namespace hostkv::testing

#endif  // HOSTKV_TESTS_SUPPORT_TRACE_FOLDER_H_
