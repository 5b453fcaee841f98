#ifndef HOSTKV_BASE_NEAREST_NAME_H_
#define HOSTKV_BASE_NEAREST_NAME_H_

#include <span>
#include <string_view>

namespace hostkv {

// The candidate with the smallest edit distance to `name`, for "did you mean"; empty when there is none or nothing is
// near (distance over a third of the longer name, at least 2). Case and '-' against '_' do not count.
std::string_view nearest_name(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace hostkv

#endif  // HOSTKV_BASE_NEAREST_NAME_H_
