#include "hostkv/status.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>

namespace hostkv {
namespace {

// The numbers travel between processes: this table may grow, but no line of it may change.
constexpr std::array<std::pair<int, std::string_view>, 12> kCodes = {{{0, "kOk"},
                                                                      {1, "kInvalidArgument"},
                                                                      {2, "kFailedPrecondition"},
                                                                      {3, "kNotSupported"},
                                                                      {4, "kNotFound"},
                                                                      {5, "kResourceExhausted"},
                                                                      {6, "kUnavailable"},
                                                                      {7, "kDeadlineExceeded"},
                                                                      {8, "kCanceled"},
                                                                      {9, "kDataCorruption"},
                                                                      {10, "kDeviceError"},
                                                                      {11, "kInternal"}}};

TEST(StatusCode, HasStableNumbersAndNames) {
  for (const auto& [number, name] : kCodes) {
    EXPECT_EQ(status_code_name(static_cast<StatusCode>(number)), name) << number;
  }
  EXPECT_EQ(static_cast<int>(StatusCode::kInvalidArgument), 1);
  EXPECT_EQ(static_cast<int>(StatusCode::kDeviceError), 10);
  EXPECT_EQ(static_cast<int>(StatusCode::kInternal), 11);
}

TEST(StatusCode, IsUnknownOutsideTheList) {
  EXPECT_EQ(status_code_name(static_cast<StatusCode>(12)), "kUnknown");
  EXPECT_EQ(status_code_name(static_cast<StatusCode>(255)), "kUnknown");
}

TEST(Status, IsOkWithoutMessageByDefault) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kOk);
  EXPECT_EQ(status.message(), "");
  EXPECT_EQ(status.to_string(), "kOk");
}

TEST(Status, TellsCodeAndMessageOfAFailure) {
  const Status status(StatusCode::kNotFound, "request 7 is unknown");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.to_string(), "kNotFound: request 7 is unknown");
  EXPECT_EQ(status, Status(StatusCode::kNotFound, "request 7 is unknown"));
  EXPECT_NE(status, Status(StatusCode::kNotFound, "request 8 is unknown"));
  EXPECT_NE(status, Status(StatusCode::kInternal, "request 7 is unknown"));
}

Result<int> half(int value) {
  if (value % 2 != 0) {
    return error(StatusCode::kInvalidArgument, std::to_string(value) + " is odd");
  }
  return value / 2;
}

Result<std::string> half_as_text(int value) {
  Result<int> answer = half(value);
  if (!answer) {
    return error(std::move(answer.error()));
  }
  return std::to_string(*answer);
}

TEST(Result, HoldsAValueOrTheReason) {
  EXPECT_EQ(half(8).value(), 4);
  EXPECT_EQ(half(7).error(), Status(StatusCode::kInvalidArgument, "7 is odd"));
}

TEST(Result, PassesAFailureOnUnchanged) {
  EXPECT_EQ(half_as_text(8).value(), "4");
  EXPECT_EQ(half_as_text(7).error(), Status(StatusCode::kInvalidArgument, "7 is odd"));
}

}  // namespace
}  // namespace hostkv
