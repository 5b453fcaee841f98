#include "tests/support/test_seed.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace hostkv::testing {
namespace {

std::uint64_t number_in_environment(const char* name, std::uint64_t fallback) {
  const char* const text = std::getenv(name);
  if (text == nullptr) {
    return fallback;
  }
  const std::string_view digits(text);
  std::uint64_t number = fallback;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number;
}

}  // namespace

std::uint64_t test_seed(std::uint64_t fallback) {
  return number_in_environment("HOSTKV_TEST_SEED", fallback);
}

std::uint64_t test_rounds(std::uint64_t fallback) {
  return number_in_environment("HOSTKV_TEST_ROUNDS", fallback);
}

}  // namespace hostkv::testing
