#ifndef HOSTKV_TESTS_SUPPORT_TEST_SEED_H_
#define HOSTKV_TESTS_SUPPORT_TEST_SEED_H_

#include <cstdint>

namespace hostkv::testing {

// HOSTKV_TEST_SEED, or `fallback`. A test prints the seed that it uses.
std::uint64_t test_seed(std::uint64_t fallback);
// HOSTKV_TEST_ROUNDS, or `fallback`: how long a random test runs.
std::uint64_t test_rounds(std::uint64_t fallback);

}  // namespace hostkv::testing

#endif  // HOSTKV_TESTS_SUPPORT_TEST_SEED_H_
