#ifndef HOSTKV_BENCH_MODELS_PRESETS_H_
#define HOSTKV_BENCH_MODELS_PRESETS_H_

#include <span>
#include <string_view>

namespace hostkv::bench {

// A file of bench/models/, as text.
struct Preset {
  std::string_view name;
  std::string_view json;
};

// All presets, in the order in which they are shown. Made by CMake from the files.
std::span<const Preset> model_presets();

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_MODELS_PRESETS_H_
