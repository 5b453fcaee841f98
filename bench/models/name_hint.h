#ifndef HOSTKV_BENCH_MODELS_NAME_HINT_H_
#define HOSTKV_BENCH_MODELS_NAME_HINT_H_

// "Did you mean" for messages. Thread-safety: pure functions.

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hostkv::bench {

// The candidates that begin with `name` where there are 1 to 3 of them, else the nearest one and those that are as
// near; empty: nothing is near.
std::vector<std::string_view> near_names(std::string_view name, std::span<const std::string_view> candidates);

// "did you mean a or b?", each name between `quote`; empty: nothing is near.
std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates,
                         std::string_view quote = "");

// "a, b, c"
std::string joined(std::span<const std::string_view> names);

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_MODELS_NAME_HINT_H_
