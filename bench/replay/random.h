#ifndef HOSTKV_BENCH_REPLAY_RANDOM_H_
#define HOSTKV_BENCH_REPLAY_RANDOM_H_

#include <cstdint>

namespace hostkv::bench {

// A bijection on 64 bits that spreads its input (the finaliser of SplitMix64).
constexpr std::uint64_t mix64(std::uint64_t x) {
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31U);
}

// SplitMix64. The standard library's distributions differ between implementations, this does not.
class Random {
 public:
  explicit constexpr Random(std::uint64_t seed) : state_(seed) {}
  constexpr std::uint64_t next() { return mix64(state_ += 0x9E3779B97F4A7C15ULL); }
  // min .. max, both included. REQUIRES: 0 <= min <= max.
  constexpr std::int64_t between(std::int64_t min, std::int64_t max) {
    return min + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(max - min + 1));
  }

 private:
  std::uint64_t state_;
};

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_REPLAY_RANDOM_H_
