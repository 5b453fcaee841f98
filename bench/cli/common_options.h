#ifndef HOSTKV_BENCH_CLI_COMMON_OPTIONS_H_
#define HOSTKV_BENCH_CLI_COMMON_OPTIONS_H_

// Options that scenario and replay share.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/cli/command_line.h"
#include "bench/engine/engine.h"
#include "bench/models/model.h"
#include "hostkv/options.h"
#include "hostkv/status.h"

namespace hostkv::bench {

inline constexpr std::int64_t kMaxParallel = 64;
inline constexpr std::int64_t kMaxInterleave = 1'048'576;
inline constexpr std::int64_t kMaxPayloadBytes = 4096;

template <class T>
Status take(Result<T> from, T& to) {
  if (!from) return from.error();
  to = *std::move(from);
  return {};
}
template <class T>
void add_once(std::vector<T>& values, const T& value) {
  if (std::ranges::find(values, value) == values.end()) values.push_back(value);
}

Result<std::uint64_t> seed_of(const CommandLine& line);
// Values of a list option; `fallback` where it was not given.
Result<std::vector<std::int64_t>> integers_of(const CommandLine& line, std::string_view option,
                                              std::string_view fallback, std::int64_t min, std::int64_t max);
Result<std::int64_t> integer_of(const CommandLine& line, std::string_view option, std::string_view fallback,
                                std::int64_t min, std::int64_t max);
Result<std::vector<Model>> models_of(const CommandLine& line, const std::vector<std::string>& fallback);
Result<std::vector<StoreMode>> store_modes_of(const CommandLine& line);
Result<std::vector<Boundaries>> boundaries_of(const CommandLine& line);
Result<std::vector<EvictionPolicyKind>> policies_of(const CommandLine& line);
std::string_view store_mode_name(StoreMode mode);
std::string_view boundaries_name(Boundaries boundaries);
std::string_view policy_name(EvictionPolicyKind policy);

// Whether the geometry stands; the message names the cell.
Status check_geometry(const GeometrySpec& spec, std::string_view model);
// Whether any group of the model can leave the device at all. REQUIRES: check_geometry is ok.
Status check_offloadable(const GeometrySpec& spec, std::string_view model);

std::string wrong_text(const WrongByte& wrong);

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_CLI_COMMON_OPTIONS_H_
