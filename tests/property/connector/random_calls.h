#ifndef HOSTKV_TESTS_PROPERTY_CONNECTOR_RANDOM_CALLS_H_
#define HOSTKV_TESTS_PROPERTY_CONNECTOR_RANDOM_CALLS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/cache_ledger.h"
#include "tests/support/connector_harness.h"

namespace hostkv::testing {

// Any call of the scheduler side in any order, for living, finished and unknown requests. Beside the connector runs a
// model of what each call answers, which loads end how, and which blocks are pinned, and a ledger of its events.
class RandomCalls {
 public:
  RandomCalls(const Geometry& geometry, std::uint64_t seed);

  void run(std::uint64_t num_calls);

  [[nodiscard]] std::int64_t hits() const { return hits_; }
  [[nodiscard]] std::int64_t refusals() const { return refusals_; }
  [[nodiscard]] std::int64_t failed_loads() const { return failed_loads_; }
  [[nodiscard]] std::int64_t retries() const { return retries_; }
  [[nodiscard]] const CacheLedger& ledger() const { return ledger_; }

 private:
  using Pins = std::map<BlockId, std::int64_t>;
  struct Request {
    bool admitted = false;
    std::uint64_t admitted_step = 0;
    bool loading = false;
    std::int64_t local = 0;
    std::int64_t promised = 0;
    std::int64_t computed = 0;
  };
  struct Load {
    RequestId request;
    std::vector<BlockId> targets;
  };
  struct Sent {
    StepMetadata step;  // of this one job
    std::optional<RequestId> load_of;
    std::vector<bool> answered;
    StatusCode status = StatusCode::kOk;
  };

  std::uint64_t draw(std::uint64_t below) { return random_() % below; }
  RequestId any_id() { return RequestId{1 + draw(5)}; }
  Request* find(RequestId id);

  Status one_call();
  Status add();
  Status match();
  Status allocate();
  Status cancel();
  Status step();
  Status results();
  Status outcomes();
  Status finish();
  Status reset();

  void plan_load(RequestId id, std::int64_t num_external_tokens);
  void take_step(const std::vector<std::byte>& bytes);
  bool one_result();
  void end_load(RequestId id, StatusCode status);
  void end_sent();
  [[nodiscard]] std::int64_t loading_blocks() const;
  void check_pins();
  void check_events();
  void wind_up();

  SchedulerRig rig_;
  std::mt19937_64 random_;
  std::map<RequestId, Request> requests_;
  std::vector<Load> unsent_loads_;
  std::vector<Sent> sent_;
  std::vector<std::pair<std::uint64_t, StatusCode>> outcomes_;  // not taken yet
  std::uint64_t steps_ = 0;
  bool stores_queued_ = false;  // by a finished request: known with the next step
  CacheLedger ledger_;
  std::int64_t hits_ = 0;
  std::int64_t refusals_ = 0;
  std::int64_t failed_loads_ = 0;
  std::int64_t retries_ = 0;
};

}  // namespace hostkv::testing

#endif  // HOSTKV_TESTS_PROPERTY_CONNECTOR_RANDOM_CALLS_H_
