#ifndef HOSTKV_TESTS_PROPERTY_CONNECTOR_JOINT_CASE_H_
#define HOSTKV_TESTS_PROPERTY_CONNECTOR_JOINT_CASE_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/support/random_geometry.h"
#include "tests/support/request_builders.h"

namespace hostkv::testing {

// A lookup over a host and a device of which only the keys are known: per group the boundaries at which they end.
struct JointCase {
  Geometry geometry;
  CachedKeys host;
  CachedKeys device;
  std::int64_t hashed_tokens = 0;
  std::int64_t num_tokens = 0;
  std::int64_t num_local_tokens = 0;
};

// The longest boundary, found by trying every one and looking at every block of every group. Written from the rules of
// the engine, token by token; knows nothing of the library's table of needs.
std::int64_t longest_by_trying_all(const JointCase& c);

// "" where the library's search agrees with it, and every block that its load names is where it says, is needed, and
// comes from the device where the device has it.
std::string problem_of(const JointCase& c);
// Answers that the first hashes were enough for, in all calls of problem_of so far.
extern std::uint64_t num_known_early;

// The same with fewer keys, tokens and groups' keys, as long as there is a problem.
JointCase shrunk(JointCase c);
std::string described(const JointCase& c);

// Fine and coarse ones, DCP 1 to 8, drafts; nullopt where the numbers do not fit together.
std::optional<Geometry> random_joint_geometry(Random& random);

}  // namespace hostkv::testing

#endif  // HOSTKV_TESTS_PROPERTY_CONNECTOR_JOINT_CASE_H_
