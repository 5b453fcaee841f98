#include "kernels/cuda_driver.h"

#include <dlfcn.h>

#include <utility>

namespace hostkv {
namespace {

constexpr char kLibrary[] = "libcuda.so.1";

// Fills a table and remembers the names that were not there.
class TableFiller {
 public:
  explicit TableFiller(const SymbolLookup& lookup) : lookup_(lookup) {}

  template <class Function>
  void required(Function*& slot, const char* name) {
    optional(slot, name);
    if (slot == nullptr) {
      missing_ += missing_.empty() ? name : std::string(", ") + name;
    }
  }

  template <class Function>
  void optional(Function*& slot, const char* name) {
    slot = reinterpret_cast<Function*>(lookup_(name));
  }

  [[nodiscard]] const std::string& missing() const { return missing_; }

 private:
  const SymbolLookup& lookup_;
  std::string missing_;
};

// The suffixes are the driver's: what its header calls cuStreamDestroy is exported as cuStreamDestroy_v2.
std::string fill(CudaEntryPoints& entry, const SymbolLookup& lookup) {
  TableFiller table(lookup);
  table.required(entry.init, "cuInit");
  table.required(entry.driver_get_version, "cuDriverGetVersion");
  table.required(entry.get_error_string, "cuGetErrorString");
  table.required(entry.device_get_count, "cuDeviceGetCount");
  table.required(entry.stream_create_with_priority, "cuStreamCreateWithPriority");
  table.required(entry.stream_destroy, "cuStreamDestroy_v2");
  table.required(entry.stream_wait_event, "cuStreamWaitEvent");
  table.required(entry.event_create, "cuEventCreate");
  table.required(entry.event_record, "cuEventRecord");
  table.required(entry.event_query, "cuEventQuery");
  table.required(entry.event_destroy, "cuEventDestroy_v2");
  table.required(entry.memcpy_async, "cuMemcpyAsync");
  table.required(entry.mem_host_register, "cuMemHostRegister_v2");
  table.required(entry.mem_host_unregister, "cuMemHostUnregister");
  table.optional(entry.memcpy_batch_async, "cuMemcpyBatchAsync_v2");
  if (entry.memcpy_batch_async == nullptr) {
    table.optional(entry.memcpy_batch_async_12, "cuMemcpyBatchAsync");
  }
  return table.missing();
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

Result<SymbolLookup> open_shared_library(const char* library) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    return error(StatusCode::kNotSupported,
                 std::string("cannot open ") + library + ": " + (reason == nullptr ? "no reason given" : reason));
  }
  return SymbolLookup([handle](const char* name) { return dlsym(handle, name); });
}

Result<CudaDriver> CudaDriver::load(const LibraryOpener& open) {
  Result<SymbolLookup> lookup = open(kLibrary);
  if (!lookup) {
    return error(StatusCode::kNotSupported, "no CUDA driver: " + lookup.error().message());
  }
  CudaDriver driver;
  if (const std::string missing = fill(driver.entry_, *lookup); !missing.empty()) {
    return error(StatusCode::kNotSupported, std::string("the CUDA driver (") + kLibrary + ") lacks " + missing);
  }
  if (const CuResult code = driver.entry_.driver_get_version(&driver.version_); code != kCuSuccess) {
    return error(StatusCode::kNotSupported, "cuDriverGetVersion: " + driver.error_text(code));
  }
  if (driver.version_ < kMinVersion) {
    return error(StatusCode::kNotSupported, "the CUDA driver is for CUDA " + version_text(driver.version_) +
                                                "; at least " + version_text(kMinVersion) + " is needed");
  }
  if (const CuResult code = driver.entry_.init(0); code != kCuSuccess) {
    return error(StatusCode::kNotSupported, "cuInit: " + driver.error_text(code));
  }
  return driver;
}

std::string CudaDriver::error_text(CuResult code) const {
  const char* text = nullptr;
  if (entry_.get_error_string(code, &text) != kCuSuccess || text == nullptr) {
    text = "unknown to the driver";
  }
  return "CUDA error " + std::to_string(code) + ": " + text;
}

}  // namespace hostkv
