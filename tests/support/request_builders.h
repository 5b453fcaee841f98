#ifndef HOSTKV_TESTS_SUPPORT_REQUEST_BUILDERS_H_
#define HOSTKV_TESTS_SUPPORT_REQUEST_BUILDERS_H_

// Prefix hashes and caches for tests of lookups and store plans.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include "connector/request_state.h"
#include "connector/working_geometry.h"
#include "tests/support/cache_helpers.h"
#include "tests/support/geometry_builders.h"

namespace hostkv::testing {

inline constexpr std::uint64_t kTestNamespace = 42;

// As both sides of the connector resolve it.
inline Geometry coarse(GeometrySpec spec) {
  Result<Geometry> made = working_geometry(resolved(std::move(spec)), Boundaries::kCoarse);
  EXPECT_TRUE(made.has_value()) << (made ? "" : made.error().message());
  return made ? *std::move(made) : resolved({.groups = {full(1)}});
}

// The hashes of all whole hash blocks of a text; texts with one number have one prefix.
inline void append_hashes(const Geometry& geometry, std::uint64_t text, std::int64_t num_tokens, HashChain& chain) {
  chain.hash_size_bytes = sizeof(std::uint64_t);
  chain.hash_block_tokens = geometry.hash_block_tokens();
  while (chain.hashed_tokens() + chain.hash_block_tokens <= num_tokens) {
    const std::uint64_t hash = (text << 32U) + static_cast<std::uint64_t>(chain.size()) + 1;
    const auto bytes = std::as_bytes(std::span(&hash, 1));
    chain.bytes.insert(chain.bytes.end(), bytes.begin(), bytes.end());
  }
}
inline HashChain hashes_of(const Geometry& geometry, std::uint64_t text, std::int64_t num_tokens) {
  HashChain chain;
  append_hashes(geometry, text, num_tokens, chain);
  return chain;
}

inline OffloadKey key_at(const HashChain& hashes, GroupIndex group, std::int64_t boundary_tokens) {
  return make_offload_key(hashes.at_boundary(boundary_tokens), group, kTestNamespace);
}

}  // namespace hostkv::testing

#endif  // HOSTKV_TESTS_SUPPORT_REQUEST_BUILDERS_H_
