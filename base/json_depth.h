#ifndef HOSTKV_BASE_JSON_DEPTH_H_
#define HOSTKV_BASE_JSON_DEPTH_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace hostkv {

// No input of ours nests deeper; a text that does would exhaust the stack of whatever prints it.
inline constexpr std::size_t kMaxJsonDepth = 64;

// The deepest nesting of '[' and '{' outside of strings. The text need not be valid. Cost: one pass.
std::size_t json_depth(std::string_view text);

// "it nests N deep; at most 64 is allowed", or empty.
std::string json_depth_problem(std::string_view text);

}  // namespace hostkv

#endif  // HOSTKV_BASE_JSON_DEPTH_H_
