#include "base/numa.h"

#include <numa.h>
#include <numaif.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <string>

namespace hostkv {
namespace {

constexpr int kLocalDistance = 10;
constexpr int kMaxNodes = 1024;  // the kernel's own bound
constexpr int kBitsPerWord = static_cast<int>(sizeof(unsigned long) * CHAR_BIT);

bool available() {
  static const bool answer = numa_available() >= 0;
  return answer;
}

}  // namespace

int num_numa_nodes() {
  return available() ? std::max(1, numa_max_node() + 1) : 1;
}

int numa_node_of_current_thread() {
  return available() ? std::max(0, numa_node_of_cpu(sched_getcpu())) : 0;
}

int numa_distance_between(int from_node, int to_node) {
  const int num_nodes = num_numa_nodes();
  if (from_node < 0 || to_node < 0 || from_node >= num_nodes || to_node >= num_nodes) {
    return 0;
  }
  if (from_node == to_node) {
    return kLocalDistance;
  }
  return numa_distance(from_node, to_node);
}

Status bind_memory_to_numa_node(void* memory, std::int64_t size_bytes, int node) {
  const int num_nodes = num_numa_nodes();
  if (node < 0 || node >= std::min(num_nodes, kMaxNodes)) {
    return {StatusCode::kNotFound, "NUMA node " + std::to_string(node) + " does not exist; this machine has 0 to " +
                                       std::to_string(num_nodes - 1)};
  }
  if (!available()) {
    return {};
  }
  std::array<unsigned long, kMaxNodes / kBitsPerWord> mask{};
  mask[static_cast<std::size_t>(node / kBitsPerWord)] = 1UL << static_cast<unsigned>(node % kBitsPerWord);
  // Preferred, not strict: a node that is full must not wake the out-of-memory killer.
  if (mbind(memory, static_cast<unsigned long>(size_bytes), MPOL_PREFERRED, mask.data(), kMaxNodes, 0) != 0) {
    const int code = errno;
    return {StatusCode::kNotSupported, "binding " + std::to_string(size_bytes) + " bytes to NUMA node " +
                                           std::to_string(node) + ": " + std::strerror(code) + " (errno " +
                                           std::to_string(code) + ")"};
  }
  return {};
}

std::optional<int> numa_node_of_memory(const void* address) {
  if (!available()) {
    return 0;
  }
  // The call takes a non-const address but only looks.
  std::array<void*, 1> pages = {const_cast<void*>(address)};
  std::array<int, 1> nodes = {-1};
  if (move_pages(0, pages.size(), pages.data(), nullptr, nodes.data(), 0) != 0 || nodes[0] < 0) {
    return std::nullopt;
  }
  return nodes[0];
}

}  // namespace hostkv
