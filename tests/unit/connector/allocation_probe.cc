#include "tests/unit/connector/allocation_probe.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace hostkv::testing {
namespace {

thread_local std::size_t largest = 0;

}  // namespace

AllocationProbe::AllocationProbe() {
  largest = 0;
}

std::size_t AllocationProbe::largest_bytes() const {
  return largest;
}

}  // namespace hostkv::testing

// Of the whole test executable.
void* operator new(std::size_t size_bytes) {
  hostkv::testing::largest = std::max(hostkv::testing::largest, size_bytes);
  if (void* memory = std::malloc(size_bytes == 0 ? 1 : size_bytes)) {
    return memory;
  }
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
