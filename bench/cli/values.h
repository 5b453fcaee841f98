#ifndef HOSTKV_BENCH_CLI_VALUES_H_
#define HOSTKV_BENCH_CLI_VALUES_H_

// From the text of an option to its values. A list is written with commas. Failure: kInvalidArgument, one sentence with
// the option, the value, what is allowed and, for names, the nearest known one.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hostkv/status.h"

namespace hostkv::bench {

Result<std::vector<std::string>> parse_text_list(std::string_view option, std::string_view text);
Result<std::int64_t> parse_integer(std::string_view option, std::string_view text, std::int64_t min, std::int64_t max);
Result<std::vector<std::int64_t>> parse_integer_list(std::string_view option, std::string_view text, std::int64_t min,
                                                     std::int64_t max);
// "64GiB" and the like.
Result<std::vector<std::int64_t>> parse_size_list(std::string_view option, std::string_view text);
// Positions in `allowed`.
Result<std::vector<std::size_t>> parse_choice_list(std::string_view option, std::string_view text,
                                                   std::span<const std::string_view> allowed);

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_CLI_VALUES_H_
