#include "base/json_depth.h"

#include <algorithm>

namespace hostkv {

std::size_t json_depth(std::string_view text) {
  std::size_t depth = 0;
  std::size_t deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      i += c == '\\' ? 1 : 0;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return deepest;
}

std::string json_depth_problem(std::string_view text) {
  const std::size_t depth = json_depth(text);
  return depth <= kMaxJsonDepth
             ? ""
             : "it nests " + std::to_string(depth) + " deep; at most " + std::to_string(kMaxJsonDepth) + " is allowed";
}

}  // namespace hostkv
