#include "offload/offload_key.h"

#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <unordered_set>
#include <vector>

#include "tests/support/cache_helpers.h"

namespace hostkv::testing {
namespace {

OffloadKey key_of_bytes(const std::string& text) {
  return make_offload_key(std::as_bytes(std::span(text)), GroupIndex{0}, 1);
}

TEST(OffloadKey, DiffersWithEveryByteOfTheHashAtEverySize) {
  for (std::size_t size = 1; size <= kMaxHashSizeBytes; ++size) {
    const std::string text(size, 'a');
    for (std::size_t at = 0; at < size; ++at) {
      std::string other = text;
      other[at] = 'b';
      EXPECT_NE(key_of_bytes(text), key_of_bytes(other)) << "size " << size << " byte " << at;
      EXPECT_NE(hash_of(key_of_bytes(text)), hash_of(key_of_bytes(other))) << "size " << size << " byte " << at;
    }
  }
}

TEST(OffloadKey, DiffersWithTheSizeOfAHashThatEndsInZeros) {
  EXPECT_NE(key_of_bytes(std::string(8, '\0')), key_of_bytes(std::string(16, '\0')));
}

// Counters must not cluster in the low bits, which choose the bucket, nor in the high ones, which are the tag.
TEST(OffloadKey, SpreadsPlainCountersOverAllBits) {
  constexpr std::uint64_t kKeys = 1 << 16;
  std::vector<std::uint32_t> low(kKeys / 16);
  std::unordered_set<std::uint32_t> high;
  for (std::uint64_t i = 0; i < kKeys; ++i) {
    const std::uint64_t hash = hash_of(key_of(i));
    ++low[hash % low.size()];
    high.insert(static_cast<std::uint32_t>(hash >> 32U));
  }
  for (const std::uint32_t count : low) {
    EXPECT_LE(count, 16U + 6 * 4) << "six standard deviations of a random spread";
  }
  EXPECT_GE(high.size(), kKeys - 16);
}

TEST(OffloadKey, OneFlippedBitFlipsAboutHalfOfTheHash) {
  for (int bit = 0; bit < 64; ++bit) {
    int flipped = 0;
    for (std::uint64_t i = 0; i < 64; ++i) {
      const std::uint64_t number = i * 0x9E3779B97F4A7C15ULL;
      flipped += std::popcount(hash_of(key_of(number)) ^ hash_of(key_of(number ^ (std::uint64_t{1} << bit))));
    }
    EXPECT_NEAR(flipped / 64.0, 32.0, 6.0) << "bit " << bit;
  }
}

TEST(OffloadKey, NamespacesFollowGeometryAndText) {
  const std::string first = "prod";
  const std::string second = "test";
  const auto bytes = [](const std::string& text) { return std::as_bytes(std::span(text)); };
  EXPECT_EQ(make_namespace_fingerprint(1, bytes(first)), make_namespace_fingerprint(1, bytes(first)));
  EXPECT_NE(make_namespace_fingerprint(1, bytes(first)), make_namespace_fingerprint(1, bytes(second)));
  EXPECT_NE(make_namespace_fingerprint(1, bytes(first)), make_namespace_fingerprint(2, bytes(first)));
  EXPECT_NE(make_namespace_fingerprint(1, {}), make_namespace_fingerprint(2, {}));
}

}  // namespace
}  // namespace hostkv::testing
