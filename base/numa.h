#ifndef HOSTKV_BASE_NUMA_H_
#define HOSTKV_BASE_NUMA_H_

#include <cstdint>
#include <optional>

#include "hostkv/status.h"

namespace hostkv {

// NUMA nodes of the machine, by number 0 .. num_numa_nodes() - 1. Where the system has no NUMA support there is one
// node, 0, and binding to it does nothing. All thread-safe; none changes a thread's own memory policy.

int num_numa_nodes();
int numa_node_of_current_thread();

// 10 within a node, larger farther away; 0: unknown, or no such node.
int numa_distance_between(int from_node, int to_node);

// Asks that the pages of [memory, memory + size_bytes) lie on `node`, while it has room, when they are touched first.
// `memory` begins at a page. kNotFound: no such node. kNotSupported: the system refuses (common in containers); the
// memory is usable as before.
Status bind_memory_to_numa_node(void* memory, std::int64_t size_bytes, int node);

// The node of the page at `address`; nullopt if the page was not touched yet or the system does not tell.
std::optional<int> numa_node_of_memory(const void* address);

}  // namespace hostkv

#endif  // HOSTKV_BASE_NUMA_H_
