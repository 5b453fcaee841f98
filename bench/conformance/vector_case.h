#ifndef HOSTKV_BENCH_CONFORMANCE_VECTOR_CASE_H_
#define HOSTKV_BENCH_CONFORMANCE_VECTOR_CASE_H_

// One line of a vector file, checked and without JSON, and the steps between text and answer.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hostkv/geometry.h"
#include "hostkv/recovery.h"
#include "hostkv/status.h"

namespace hostkv::bench {

enum class VectorKind : std::uint8_t { kResolve, kNeeds, kSlots, kHit, kRecover };
inline constexpr std::array<std::string_view, 5> kVectorKindNames = {"resolve", "needs", "slots", "hit", "recover"};

// Keys of one group that a cache holds.
struct CachedKeys {
  struct Inner {
    std::int64_t block_index = 0;
    std::int64_t boundary_tokens = 0;
  };
  std::vector<std::int64_t> whole_blocks;  // block indices, >= 0; each has its key at its end
  std::vector<Inner> inner;                // at a boundary inside a block
};

// What a request holds of one group.
struct HeldTable {
  std::vector<BlockId> table;
  std::vector<std::int64_t> state_tokens;  // recurrent groups: as many as the table has; else empty
};

struct VectorCase {
  std::string id;
  VectorKind kind = VectorKind::kResolve;
  GeometrySpec spec;
  GroupIndex group;                     // needs, slots: inside spec.groups
  std::int64_t boundary_tokens = 0;     // needs: >= 0
  std::vector<std::int64_t> table;      // slots: block ids
  std::vector<std::int64_t> positions;  // slots: >= 0
  std::vector<std::int64_t> lengths;    // slots: >= 0
  std::int64_t prompt_tokens = 0;       // hit: >= 1
  std::int64_t alignment_tokens = 0;    // hit, recover: > 0, answers are multiples of it
  std::vector<CachedKeys> cached;       // hit: one a group
  std::int64_t settled_tokens = 0;      // recover: >= 0
  std::vector<HeldTable> held;          // recover: one a group
  std::vector<FailedLoad> failed;       // recover: all of one request
  std::string expect;                   // canonical JSON text; of a refusal only {"error":true}
  std::string expect_shown;             // with everything that the line says
};

struct VectorAnswer {
  std::string text;   // to compare with VectorCase::expect
  std::string shown;  // with the reason of a refusal, or the arrangement that differs
};

// The text of "unknown kind": what is known, and the nearest name.
std::string unknown_name_message(std::string_view what, std::string_view name, std::string_view known_names,
                                 std::string_view nearest);

// What a line says its kind is, or why the line is no JSON object with a kind.
Result<std::string> read_kind(std::string_view line);
// REQUIRES: read_kind(line) succeeded with the name of `kind`.
Result<VectorCase> read_case(std::string_view line, VectorKind kind);
// Asks the library. kInvalidArgument for a question that no geometry can answer (a position behind the table).
Result<VectorAnswer> answer_case(const VectorCase& question);
// The same for kind hit, whose blocks can be in more than one place: on the device, on the host, dealt out between the
// two. The answer is the first that differs from what the case expects; where none does, that of all.
Result<VectorAnswer> answer_hit(const Geometry& geometry, const VectorCase& question);
// The same for kind recover: where one scheduler knows all failures, and where each rank knows its own. Of answers that
// differ the first that is not the expected one.
Result<VectorAnswer> answer_recover(const Geometry& geometry, const VectorCase& question);

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_CONFORMANCE_VECTOR_CASE_H_
