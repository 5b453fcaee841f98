#ifndef HOSTKV_BENCH_MODELS_MODEL_H_
#define HOSTKV_BENCH_MODELS_MODEL_H_

// Model files: the KV cache geometry of a model as JSON, built in (presets) or a user's own.
//
// A file is one object: `schema_version` (1), `name`, `notes` (optional text), `default_dcp` (optional, 1),
// `hash_block_tokens` (optional: the engine's choice) and `groups`, a list of objects: `kind` ("full", "mla",
// "sliding_window", "chunked_local", "mamba", "ring"), `block_tokens`, and, where they differ from the default,
// `name`, `sharded` (false), `page_bytes` (0 = unknown; one block on one rank, all layers), `window_tokens`,
// `extra_retained_tokens`, `chunk_tokens`, `tokens_per_entry` (1), `eagle` (false), `cacheable` (true),
// `transferable` (true), `state_mode` ("align"; "all", "none"). A key that is not listed is an error.
//
// Thread-safety: values. Ownership: own their strings. Cost: parsing allocates. Failure: kInvalidArgument or kNotFound
// naming file, group, key, value and what is allowed; whether the numbers fit together is Geometry::resolve()'s answer.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hostkv/geometry.h"
#include "hostkv/options.h"
#include "hostkv/status.h"

namespace hostkv::bench {

struct Model {
  std::string name;
  std::string notes;
  std::int64_t default_dcp = 1;
  GeometrySpec geometry;  // parallel layout left at its defaults

  // The geometry under a DCP size and an interleave. kFine: hits end where the engine's do, inside a block where the
  // model has such hits; kCoarse: on the scheduler block.
  [[nodiscard]] GeometrySpec with_parallel(std::int64_t dcp, std::int64_t interleave_tokens,
                                           Boundaries boundaries = Boundaries::kFine) const;
  // The interleaves of a default run: 1, 8, 64 and the block, as far as they divide every sharded block; {1} without
  // DCP or without a sharded group.
  [[nodiscard]] std::vector<std::int64_t> default_interleaves(std::int64_t dcp) const;
  // Bytes of the biggest block of a group on one rank; 0 where a group's is unknown.
  [[nodiscard]] std::int64_t largest_page_bytes() const;
};

// `label` stands for the text in messages (a file name).
Result<Model> parse_model(std::string_view json, std::string_view label);
// A preset's name, or the path of a file (anything with a '/' or ending in ".json").
Result<Model> load_model(std::string_view name_or_path);

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_MODELS_MODEL_H_
