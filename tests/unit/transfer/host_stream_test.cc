#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "hostkv/host_backend.h"
#include "tests/support/stream_gate.h"

namespace hostkv {
namespace {

using hostkv::testing::StreamGate;

TEST(HostStream, RunsWorkInTheOrderOfItsEnqueueing) {
  std::vector<int> seen;
  HostStream stream("order");
  for (int i = 0; i < 1000; ++i) {
    stream.enqueue([&seen, i] { seen.push_back(i); });
  }
  stream.synchronize();
  std::vector<int> expected(1000);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(seen, expected);
}

TEST(HostStream, RunsOnOneThreadOfItsOwnThatBearsTheName) {
  std::string name;
  std::thread::id id;
  HostStream stream("compute-name-that-is-long");
  stream.enqueue([&] {
    std::array<char, 16> text{};
    pthread_getname_np(pthread_self(), text.data(), text.size());
    name = text.data();
    id = std::this_thread::get_id();
  });
  stream.synchronize();
  EXPECT_EQ(name, "compute-name-th");
  EXPECT_NE(id, std::this_thread::get_id());
}

TEST(HostStream, RunsWhatIsQueuedBeforeItGoes) {
  std::atomic<int> count{0};
  {
    HostStream stream("going");
    StreamGate gate(stream);
    for (int i = 0; i < 100; ++i) {
      stream.enqueue([&count] { ++count; });
    }
    gate.open();
  }
  EXPECT_EQ(count, 100);
}

TEST(HostStream, RunsWorkThatWorkEnqueuesWhileItGoes) {
  std::atomic<int> count{0};
  {
    HostStream stream("nested");
    stream.enqueue([&] { stream.enqueue([&] { ++count; }); });
  }
  EXPECT_EQ(count, 1);
}

TEST(HostStream, LetsGoOfWorkThatHasRun) {
  const auto held = std::make_shared<int>(1);
  HostStream stream("release");
  stream.enqueue([held] {});
  stream.synchronize();
  StreamGate gate(stream);
  gate.wait_until_reached();
  EXPECT_EQ(held.use_count(), 1);
}

TEST(HostStream, EnqueueDoesNotWaitForTheStream) {
  HostStream stream("held");
  StreamGate gate(stream);
  std::atomic<bool> ran{false};
  for (int i = 0; i < 10'000; ++i) {
    stream.enqueue([&ran] { ran = true; });
  }
  EXPECT_FALSE(ran);
  gate.open();
  stream.synchronize();
  EXPECT_TRUE(ran);
}

TEST(HostEvent, IsReachedByDefault) {
  const HostEvent event;
  EXPECT_TRUE(event.reached());
  event.wait();
  EXPECT_TRUE(event.wait_for(std::chrono::nanoseconds{0}));
}

TEST(HostEvent, IsReachedOnceEverythingBeforeItHasRun) {
  HostStream stream("event");
  std::optional<StreamGate> gate(stream);
  const HostEvent event = stream.record_event();
  gate->wait_until_reached();
  EXPECT_FALSE(event.reached());
  EXPECT_FALSE(event.wait_for(std::chrono::nanoseconds{0}));
  EXPECT_FALSE(event.wait_for(std::chrono::microseconds{50}));
  gate->open();
  EXPECT_TRUE(event.wait_for(std::chrono::nanoseconds::max()));
  EXPECT_TRUE(event.reached());
}

TEST(HostEvent, DoesNotCoverWhatComesAfterIt) {
  HostStream stream("event");
  const HostEvent event = stream.record_event();
  StreamGate gate(stream);
  event.wait();
  EXPECT_TRUE(event.reached());
}

TEST(HostEvent, OutlivesItsStream) {
  HostEvent event;
  {
    HostStream stream("short");
    event = stream.record_event();
  }
  EXPECT_TRUE(event.reached());
}

TEST(HostEvent, WakesEveryWaiter) {
  HostStream stream("many");
  StreamGate gate(stream);
  const HostEvent event = stream.record_event();
  std::vector<std::thread> waiters;
  std::atomic<int> woken{0};
  for (int i = 0; i < 4; ++i) {
    waiters.emplace_back([event, &woken] {
      event.wait();
      ++woken;
    });
  }
  gate.open();
  for (std::thread& waiter : waiters) {
    waiter.join();
  }
  EXPECT_EQ(woken, 4);
}

TEST(HostEvent, HoldsLaterWorkOfAnotherStreamBack) {
  HostStream first("first");
  HostStream second("second");
  StreamGate gate(first);
  int value = 0;
  first.enqueue([&value] { value = 42; });
  std::atomic<bool> before{false};
  second.enqueue([&before] { before = true; });
  second.wait_event(first.record_event());
  int seen = 0;
  second.enqueue([&] { seen = value; });
  const HostEvent done = second.record_event();
  EXPECT_FALSE(done.wait_for(std::chrono::microseconds{50}));
  gate.open();
  second.synchronize();
  EXPECT_TRUE(before);
  EXPECT_EQ(seen, 42);
}

TEST(HostEvent, OfTheSameStreamDoesNotBlockIt) {
  HostStream stream("self");
  StreamGate gate(stream);
  const HostEvent event = stream.record_event();
  stream.wait_event(event);
  stream.wait_event(stream.record_event());
  gate.open();
  stream.synchronize();
  EXPECT_TRUE(event.reached());
}

}  // namespace
}  // namespace hostkv
