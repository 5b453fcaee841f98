#ifndef HOSTKV_TESTS_SUPPORT_LAYOUT_BUILDERS_H_
#define HOSTKV_TESTS_SUPPORT_LAYOUT_BUILDERS_H_

// Physical layouts of a cache for tests, over memory that they own.

#include <cstdint>
#include <memory>
#include <vector>

#include "hostkv/kv_layout.h"

namespace hostkv::testing {

struct OwnedLayout {
  KvLayout layout;
  std::vector<std::unique_ptr<unsigned char[]>> memory;

  void add_region(std::int64_t size_bytes) {
    memory.push_back(std::make_unique<unsigned char[]>(static_cast<std::size_t>(size_bytes)));
    layout.regions.push_back({memory.back().get(), size_bytes});
  }
};

// All layers of a block beside each other: one range a layer, adjacent.
inline OwnedLayout block_outermost(std::int64_t num_blocks, const std::vector<std::int64_t>& layer_bytes) {
  OwnedLayout out;
  out.layout.num_blocks = num_blocks;
  std::int64_t row = 0;
  for (const std::int64_t bytes : layer_bytes) {
    row += bytes;
  }
  out.add_region(row * num_blocks);
  out.layout.groups.emplace_back();
  std::int64_t offset = 0;
  for (const std::int64_t bytes : layer_bytes) {
    out.layout.groups[0].push_back({0, offset, row, bytes});
    offset += bytes;
  }
  return out;
}

// All blocks of a layer beside each other, the layers behind one another in one region.
inline OwnedLayout layer_outermost(std::int64_t num_blocks, const std::vector<std::int64_t>& layer_bytes) {
  OwnedLayout out;
  out.layout.num_blocks = num_blocks;
  out.layout.groups.emplace_back();
  std::int64_t offset = 0;
  for (const std::int64_t bytes : layer_bytes) {
    out.layout.groups[0].push_back({0, offset, bytes, bytes});
    offset += bytes * num_blocks;
  }
  out.add_region(offset);
  return out;
}

}  // namespace hostkv::testing

#endif  // HOSTKV_TESTS_SUPPORT_LAYOUT_BUILDERS_H_
