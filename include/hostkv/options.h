#ifndef HOSTKV_INCLUDE_HOSTKV_OPTIONS_H_
#define HOSTKV_INCLUDE_HOSTKV_OPTIONS_H_

// Options of a connector: one table makes parsing, help, the documentation page and the errors.
//
// Purpose: what an operator may set. The names are the ones that vLLM's users know where they exist there.
// Thread-safety: values. Ownership: own their strings. Cost: parsing allocates; done once at start.
// Failure: kInvalidArgument naming the option, the value, the allowed range and, for an unknown option, the nearest
// known name.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "hostkv/status.h"

namespace hostkv {

// When blocks go to the host. kEager: as soon as they are complete. kLazy: when the device is about to drop them. In
// both, what a hand-off or tail boundary needs and the device does not keep by itself is stored at once.
enum class StoreMode : std::uint8_t { kEager = 0, kLazy = 1 };
// Where hits may end. kFine: wherever the engine's own do (hash blocks, also inside a block, where the model has such
// hits). kCoarse: on the scheduler block only.
enum class Boundaries : std::uint8_t { kFine = 0, kCoarse = 1 };
// Which blocks are checked for bytes that have changed in host memory since they were stored: XXH3-64, one a block and
// rank. kSampled: one block in 16, the same places always, which finds what is wrong with many.
enum class ChecksumMode : std::uint8_t { kOff = 0, kSampled = 1, kAll = 2 };
enum class EvictionPolicyKind : std::uint8_t { kLru = 0 };

struct ConnectorOptions {
  // Host memory for KV, over all ranks of one engine. A number is bytes; "64GiB", "500MB" are understood.
  std::int64_t cpu_bytes_to_use = std::int64_t{8} << 30;
  // Per rank; wins over cpu_bytes_to_use when set.
  std::optional<std::int64_t> cpu_bytes_to_use_per_rank;
  StoreMode store_mode = StoreMode::kEager;
  Boundaries boundaries = Boundaries::kFine;
  EvictionPolicyKind eviction_policy = EvictionPolicyKind::kLru;
  // A block that does not pass makes its load fail: its tokens are computed again.
  ChecksumMode checksums = ChecksumMode::kSampled;
  // Threads of one rank that share the copies of one job, in the backend that a worker makes for itself.
  std::int64_t copy_threads = 2;
  // A transfer that has not started after this long is given up: a store is dropped, a load fails.
  double transfer_timeout_seconds = 30.0;
  // Share of the device's blocks that loads in flight may hold before lookups that would load more wait.
  double max_loading_share = 0.5;
  // Separates caches that must never meet although their geometry is equal: model, weights version, engine version,
  // hash seed.
  std::string cache_namespace;

  // Host bytes of one rank: cpu_bytes_to_use_per_rank, or cpu_bytes_to_use / num_ranks.
  [[nodiscard]] std::int64_t bytes_per_rank(std::int64_t num_ranks) const;
  // Every value in its range. Run by every consumer.
  [[nodiscard]] Status validate() const;

  // `json` is an object of option names. Nothing is applied unless all of it is valid.
  static Result<ConnectorOptions> from_json(std::string_view json);
  // All options as resolved, defaults included.
  [[nodiscard]] std::string to_json() const;
};

// A row of the table.
struct OptionInfo {
  std::string_view name;
  std::string_view type;           // "size", "integer", "number", "string", "name"
  std::string_view unit;           // "bytes", "seconds", "threads", ""
  std::string_view default_value;  // as a user would write it
  std::string_view range;          // "1 .. 64", "eager", ...
  std::string_view help;           // one sentence
};
std::span<const OptionInfo> connector_option_table();
// docs/options.md, made from the table.
std::string connector_options_markdown();

// "64GiB", "500MB", "1.5TiB", "4096" -> bytes. K, M, G, T with iB = powers of 1024, with B = powers of 1000; a bare
// number is bytes.
Result<std::int64_t> parse_size_bytes(std::string_view text);

}  // namespace hostkv

#endif  // HOSTKV_INCLUDE_HOSTKV_OPTIONS_H_
