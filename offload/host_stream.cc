#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/thread_name.h"
#include "hostkv/host_backend.h"
#include "offload/deadline.h"

namespace hostkv {

struct HostEvent::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<bool> reached{false};  // written under the mutex, so that no waiter misses the notification

  void reach() {
    {
      const std::lock_guard lock(mutex);
      reached.store(true, std::memory_order_release);
    }
    changed.notify_all();
  }
};

bool HostEvent::reached() const {
  return state_ == nullptr || state_->reached.load(std::memory_order_acquire);
}

void HostEvent::wait() const {
  if (reached()) {
    return;
  }
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return reached(); });
}

bool HostEvent::wait_for(std::chrono::nanoseconds timeout) const {
  if (reached()) {
    return true;
  }
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_until(lock, deadline_after(timeout), [this] { return reached(); });
}

struct HostStream::Impl {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  bool stopping = false;
  std::thread thread;

  void push(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex);
      queue.push_back(std::move(work));
    }
    changed.notify_one();
  }

  // False: stopping, and nothing is left.
  bool pop(std::function<void()>& work) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return stopping || !queue.empty(); });
    if (queue.empty()) {
      return false;
    }
    work = std::move(queue.front());
    queue.pop_front();
    return true;
  }

  void run() {
    std::function<void()> work;
    while (pop(work)) {
      work();
      work = nullptr;  // what the work holds goes before the next work starts, not after
    }
  }
};

HostStream::HostStream(std::string thread_name) : impl_(std::make_unique<Impl>()) {
  impl_->thread = std::thread([impl = impl_.get(), name = std::move(thread_name)] {
    name_current_thread(name);
    impl->run();
  });
}

HostStream::~HostStream() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->changed.notify_one();
  impl_->thread.join();
}

void HostStream::enqueue(std::function<void()> work) {
  impl_->push(std::move(work));
}

HostEvent HostStream::record_event() {
  HostEvent event;
  event.state_ = std::make_shared<HostEvent::State>();
  impl_->push([state = event.state_] { state->reach(); });
  return event;
}

void HostStream::wait_event(HostEvent event) {
  if (event.reached()) {
    return;
  }
  impl_->push([event = std::move(event)] { event.wait(); });
}

void HostStream::synchronize() {
  HOSTKV_CHECK(std::this_thread::get_id() != impl_->thread.get_id(), "a stream cannot wait for itself to run dry");
  record_event().wait();
}

}  // namespace hostkv
