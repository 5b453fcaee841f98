#ifndef HOSTKV_KERNELS_CUDA_DRIVER_H_
#define HOSTKV_KERNELS_CUDA_DRIVER_H_

// The CUDA driver as a table of entry points, found at run time: no CUDA header, no CUDA library at build or link time.
// One binary runs with and without a GPU.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "hostkv/status.h"

namespace hostkv {

// The driver's own types, as its ABI has them.
using CuResult = int;  // 0: success
using CuStream = struct CuStreamOpaque*;
using CuEvent = struct CuEventOpaque*;
using CuDevicePointer = std::uintptr_t;

inline constexpr CuResult kCuSuccess = 0;
inline constexpr CuResult kCuNotReady = 600;  // cuEventQuery: still running

// Entry points that HostKV calls, under the names of the driver without the prefix "cu". All but the last two are
// present in every loaded CudaDriver.
struct CudaEntryPoints {
  CuResult (*init)(unsigned flags) = nullptr;
  CuResult (*driver_get_version)(int* version) = nullptr;
  CuResult (*get_error_string)(CuResult code, const char** text) = nullptr;
  CuResult (*device_get_count)(int* count) = nullptr;
  CuResult (*stream_create_with_priority)(CuStream* stream, unsigned flags, int priority) = nullptr;
  CuResult (*stream_destroy)(CuStream stream) = nullptr;
  CuResult (*stream_wait_event)(CuStream stream, CuEvent event, unsigned flags) = nullptr;
  CuResult (*event_create)(CuEvent* event, unsigned flags) = nullptr;
  CuResult (*event_record)(CuEvent event, CuStream stream) = nullptr;
  CuResult (*event_query)(CuEvent event) = nullptr;
  CuResult (*event_destroy)(CuEvent event) = nullptr;
  CuResult (*memcpy_async)(CuDevicePointer to, CuDevicePointer from, std::size_t size_bytes, CuStream stream) = nullptr;
  CuResult (*mem_host_register)(void* memory, std::size_t size_bytes, unsigned flags) = nullptr;
  CuResult (*mem_host_unregister)(void* memory) = nullptr;

  // Many copies in one call; `attributes` is the driver's CUmemcpyAttributes array. CUDA 13 dropped the failed index:
  // the newer one is preferred, at most one is set.
  CuResult (*memcpy_batch_async)(CuDevicePointer* to, CuDevicePointer* from, std::size_t* sizes_bytes,
                                 std::size_t num_copies, void* attributes, std::size_t* attribute_starts,
                                 std::size_t num_attributes, CuStream stream) = nullptr;
  CuResult (*memcpy_batch_async_12)(CuDevicePointer* to, CuDevicePointer* from, std::size_t* sizes_bytes,
                                    std::size_t num_copies, void* attributes, std::size_t* attribute_starts,
                                    std::size_t num_attributes, std::size_t* failed_index, CuStream stream) = nullptr;
};

// The address behind a name, or null.
using SymbolLookup = std::function<void*(const char* name)>;
// Opens a shared library by its file name. kNotSupported with the system's reason where that fails.
using LibraryOpener = std::function<Result<SymbolLookup>(const char* library)>;

// The system's loader. The library stays open until the process ends: its threads may outlive every object of ours.
Result<SymbolLookup> open_shared_library(const char* library);

// Purpose: a driver that is known to work: every entry point present, new enough, initialised.
// Thread-safety: immutable after load(); share it freely.
// Ownership: none; the entry points stay valid until the process ends. No destructor calls CUDA.
// Cost: load() opens the library and initialises the driver, which takes up to seconds on a machine with GPUs.
// Failure: kNotSupported with the reason: library not found, entry points missing (all named), driver too old,
// initialisation refused.
class CudaDriver {
 public:
  static constexpr int kMinVersion = 12000;  // as the driver counts: 1000 x major + 10 x minor

  static Result<CudaDriver> load(const LibraryOpener& open = open_shared_library);

  [[nodiscard]] const CudaEntryPoints& entry() const { return entry_; }
  [[nodiscard]] int version() const { return version_; }
  [[nodiscard]] bool has_batch_copy() const {
    return entry_.memcpy_batch_async != nullptr || entry_.memcpy_batch_async_12 != nullptr;
  }
  // The driver's words for a result, with its number: "CUDA error 2: out of memory".
  [[nodiscard]] std::string error_text(CuResult code) const;

 private:
  CudaDriver() = default;

  CudaEntryPoints entry_;
  int version_ = 0;
};

}  // namespace hostkv

#endif  // HOSTKV_KERNELS_CUDA_DRIVER_H_
