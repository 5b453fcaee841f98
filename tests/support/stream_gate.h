#ifndef HOSTKV_TESTS_SUPPORT_STREAM_GATE_H_
#define HOSTKV_TESTS_SUPPORT_STREAM_GATE_H_

#include <latch>
#include <memory>

#include "hostkv/host_backend.h"

namespace hostkv::testing {

// Holds a HostStream at a chosen point until open(): the test decides when the compute stream goes on.
// Thread-safety: one thread. Ownership: shares its latches with the stream; the stream may outlive the gate or go
// first. Cost: none. Failure: none; the destructor opens the gate, so that a failed test ends.
class StreamGate {
 public:
  explicit StreamGate(HostStream& stream) {
    stream.enqueue([latches = latches_] {
      latches->reached.count_down();
      latches->opened.wait();
    });
  }
  ~StreamGate() { open(); }
  StreamGate(const StreamGate&) = delete;
  StreamGate& operator=(const StreamGate&) = delete;

  // Until the stream stands at the gate: everything before it has run.
  void wait_until_reached() { latches_->reached.wait(); }

  void open() {
    if (!open_) {
      open_ = true;
      latches_->opened.count_down();
    }
  }

 private:
  struct Latches {
    std::latch reached{1};
    std::latch opened{1};
  };
  std::shared_ptr<Latches> latches_ = std::make_shared<Latches>();
  bool open_ = false;
};

}  // namespace hostkv::testing

#endif  // HOSTKV_TESTS_SUPPORT_STREAM_GATE_H_
