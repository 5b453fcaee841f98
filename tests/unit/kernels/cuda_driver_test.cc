#include "kernels/cuda_driver.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace hostkv {
namespace {

// A driver made of functions of ours. Its behaviour is set by the statics, which each test resets.
struct FakeDriver {
  static inline int version = 13000;
  static inline CuResult init_result = kCuSuccess;
  static inline int num_init_calls = 0;

  static CuResult init(unsigned) {
    ++num_init_calls;
    return init_result;
  }
  static CuResult get_version(int* out) {
    *out = version;
    return kCuSuccess;
  }
  static CuResult get_error_string(CuResult code, const char** text) {
    *text = code == 100 ? "no CUDA-capable device is detected" : nullptr;
    return code == 100 ? kCuSuccess : 1;
  }
  static CuResult anything() { return kCuSuccess; }
  static CuResult batch_13() { return kCuSuccess; }
  static CuResult batch_12() { return kCuSuccess; }
};

template <class Function>
void* address(Function* function) {
  return reinterpret_cast<void*>(function);
}

class CudaDriverTest : public ::testing::Test {
 protected:
  CudaDriverTest() {
    FakeDriver::version = 13000;
    FakeDriver::init_result = kCuSuccess;
    FakeDriver::num_init_calls = 0;
    symbols_["cuInit"] = address(FakeDriver::init);
    symbols_["cuDriverGetVersion"] = address(FakeDriver::get_version);
    symbols_["cuGetErrorString"] = address(FakeDriver::get_error_string);
    for (const char* name : {"cuDeviceGetCount", "cuStreamCreateWithPriority", "cuStreamDestroy_v2",
                             "cuStreamWaitEvent", "cuEventCreate", "cuEventRecord", "cuEventQuery", "cuEventDestroy_v2",
                             "cuMemcpyAsync", "cuMemHostRegister_v2", "cuMemHostUnregister"}) {
      symbols_[name] = address(FakeDriver::anything);
    }
  }

  Result<CudaDriver> load() {
    return CudaDriver::load([this](const char* library) -> Result<SymbolLookup> {
      opened_ = library;
      return SymbolLookup([this](const char* name) -> void* {
        const auto found = symbols_.find(name);
        return found == symbols_.end() ? nullptr : found->second;
      });
    });
  }

  void expect_refused(const Result<CudaDriver>& driver, const std::string& reason) {
    ASSERT_FALSE(driver.has_value());
    EXPECT_EQ(driver.error().code(), StatusCode::kNotSupported);
    EXPECT_NE(driver.error().message().find(reason), std::string::npos) << driver.error().message();
  }

  std::map<std::string, void*> symbols_;
  std::string opened_;
};

TEST_F(CudaDriverTest, LoadsAndInitialisesWhenEveryEntryPointIsThere) {
  const Result<CudaDriver> driver = load();
  ASSERT_TRUE(driver.has_value()) << driver.error().to_string();
  EXPECT_EQ(opened_, "libcuda.so.1");
  EXPECT_EQ(driver->version(), 13000);
  EXPECT_EQ(FakeDriver::num_init_calls, 1);
  EXPECT_EQ(address(driver->entry().event_query), symbols_["cuEventQuery"]);
  EXPECT_FALSE(driver->has_batch_copy());
}

TEST_F(CudaDriverTest, RefusesByNameWhenAnyOneEntryPointIsMissing) {
  const std::map<std::string, void*> all = symbols_;
  ASSERT_EQ(all.size(), 14U);
  for (const auto& [name, unused] : all) {
    symbols_ = all;
    symbols_.erase(name);
    expect_refused(load(), "lacks " + name);
  }
  EXPECT_EQ(FakeDriver::num_init_calls, 0);
}

TEST_F(CudaDriverTest, NamesAllMissingEntryPointsTogether) {
  symbols_.erase("cuEventQuery");
  symbols_.erase("cuMemcpyAsync");
  expect_refused(load(), "lacks cuEventQuery, cuMemcpyAsync");
}

TEST_F(CudaDriverTest, RefusesWithTheDriversWordsWhenInitialisationFails) {
  FakeDriver::init_result = 100;
  expect_refused(load(), "cuInit: CUDA error 100: no CUDA-capable device is detected");
}

TEST_F(CudaDriverTest, RefusesBeforeInitialisingWhenTheDriverIsTooOld) {
  FakeDriver::version = 11080;
  expect_refused(load(), "CUDA 11.8; at least 12.0 is needed");
  EXPECT_EQ(FakeDriver::num_init_calls, 0);
}

TEST_F(CudaDriverTest, RefusesWithTheLoadersReasonWhenThereIsNoLibrary) {
  const Result<CudaDriver> driver = CudaDriver::load([](const char* library) -> Result<SymbolLookup> {
    return error(StatusCode::kUnavailable, std::string(library) + " is not here");
  });
  expect_refused(driver, "no CUDA driver: libcuda.so.1 is not here");
}

TEST_F(CudaDriverTest, PrefersTheNewerBatchCopyWhenBothAreThere) {
  symbols_["cuMemcpyBatchAsync"] = address(FakeDriver::batch_12);
  Result<CudaDriver> driver = load();
  ASSERT_TRUE(driver.has_value());
  EXPECT_TRUE(driver->has_batch_copy());
  EXPECT_EQ(driver->entry().memcpy_batch_async, nullptr);
  EXPECT_EQ(address(driver->entry().memcpy_batch_async_12), address(FakeDriver::batch_12));

  symbols_["cuMemcpyBatchAsync_v2"] = address(FakeDriver::batch_13);
  driver = load();
  ASSERT_TRUE(driver.has_value());
  EXPECT_TRUE(driver->has_batch_copy());
  EXPECT_EQ(address(driver->entry().memcpy_batch_async), address(FakeDriver::batch_13));
  EXPECT_EQ(driver->entry().memcpy_batch_async_12, nullptr);
}

TEST_F(CudaDriverTest, GivesTheNumberOfAnErrorThatTheDriverDoesNotKnow) {
  const Result<CudaDriver> driver = load();
  ASSERT_TRUE(driver.has_value());
  EXPECT_EQ(driver->error_text(7777), "CUDA error 7777: unknown to the driver");
}

TEST(OpenSharedLibrary, AnswersNotSupportedWithTheNameWhenThereIsNone) {
  const Result<SymbolLookup> library = open_shared_library("libhostkv_not_there.so.1");
  ASSERT_FALSE(library.has_value());
  EXPECT_EQ(library.error().code(), StatusCode::kNotSupported);
  EXPECT_NE(library.error().message().find("libhostkv_not_there.so.1"), std::string::npos);
}

TEST(OpenSharedLibrary, FindsSymbolsAndAnswersNullForOthers) {
  const Result<SymbolLookup> library = open_shared_library("libm.so.6");
  ASSERT_TRUE(library.has_value()) << library.error().to_string();
  EXPECT_NE((*library)("cos"), nullptr);
  EXPECT_EQ((*library)("cuInit"), nullptr);
}

// On every machine, with a GPU or without: a working driver or a reason, never a crash.
TEST(CudaDriverOnThisMachine, LoadsOrSaysWhyNot) {
  const Result<CudaDriver> driver = CudaDriver::load();
  if (driver.has_value()) {
    EXPECT_GE(driver->version(), CudaDriver::kMinVersion);
    return;
  }
  EXPECT_EQ(driver.error().code(), StatusCode::kNotSupported);
  EXPECT_FALSE(driver.error().message().empty());
}

}  // namespace
}  // namespace hostkv
