#ifndef HOSTKV_TESTS_SUPPORT_RANDOM_H_
#define HOSTKV_TESTS_SUPPORT_RANDOM_H_

// Random choices of property tests.

#include <cstdint>
#include <random>

namespace hostkv::testing {

using Random = std::mt19937_64;

// Both ends included.
inline std::int64_t pick(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}
inline bool one_in(Random& random, std::int64_t n) {
  return pick(random, 1, n) == 1;
}
inline bool happens(Random& random, double probability) {
  return std::bernoulli_distribution(probability)(random);
}

}  // namespace hostkv::testing

#endif  // HOSTKV_TESTS_SUPPORT_RANDOM_H_
