#ifndef HOSTKV_TESTS_PROPERTY_RECOVERY_RANDOM_TABLES_H_
#define HOSTKV_TESTS_PROPERTY_RECOVERY_RANDOM_TABLES_H_

// Random geometries, and tables such as an engine leaves behind: windows that have moved on, states kept here and
// there.

#include <cstdint>
#include <optional>
#include <vector>

#include "hostkv/geometry.h"
#include "tests/support/held_request.h"
#include "tests/support/random.h"

namespace hostkv::testing {

// Numbers of blocks, each given out once. `wild`: far apart, up to 2^32 - 1.
class BlockNumbers {
 public:
  BlockNumbers(Random& random, bool wild) : random_(&random), wild_(wild) {}
  BlockId next(std::size_t group);

 private:
  Random* random_;
  bool wild_;
  std::vector<std::uint32_t> last_;  // [groups]: every group has numbers of its own, so most of them are in all groups
};

// Nothing where what was drawn does not resolve or has too coarse a grid.
std::optional<Geometry> random_small_geometry(Random& random);

// `computed_tokens` >= settled: what the tables have room for.
HeldTables random_tables(Random& random, const Geometry& geometry, std::uint64_t id, std::int64_t settled_tokens,
                         std::int64_t computed_tokens, BlockNumbers& numbers);

// Mostly blocks of the request, near the end of its tables; some that fit nothing.
std::vector<FailedLoad> random_failures(Random& random, const Geometry& geometry, const HeldTables& held,
                                        std::int64_t num_ranks);

}  // namespace hostkv::testing

#endif  // HOSTKV_TESTS_PROPERTY_RECOVERY_RANDOM_TABLES_H_
