// hostkv._core.Scheduler: the scheduler side, over a block pool that is written in Python.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "connector/step_metadata.h"
#include "hostkv/connector.h"
#include "python/bindings/bindings.h"
#include "python/bindings/engine_pool.h"
#include "python/bindings/errors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hostkv::python {
namespace {

using HandOffTuple = std::tuple<std::uint64_t, std::uint32_t, std::uint32_t, std::int64_t>;
using FailedTuple = std::pair<std::uint32_t, std::uint32_t>;
using ResultTuple = std::tuple<std::uint64_t, std::uint64_t, std::uint32_t, int, std::vector<FailedTuple>>;

nb::bytes as_bytes(std::span<const std::byte> bytes) {
  return nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::vector<std::int64_t> spans_of_states(const Geometry& geometry) {
  std::vector<std::int64_t> spans;
  for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
    const KvCacheGroup& group = geometry.group(GroupIndex{g});
    const bool is_state = group.kind == GroupKind::kMamba && group.mamba_mode == MambaMode::kAlign;
    spans.push_back(is_state ? geometry.span_tokens(GroupIndex{g}) : 0);
  }
  return spans;
}

std::vector<BoundaryHandOff> hand_offs_from(const std::vector<HandOffTuple>& from) {
  std::vector<BoundaryHandOff> hand_offs;
  hand_offs.reserve(from.size());
  for (const auto& [request, group, block, boundary] : from) {
    hand_offs.push_back(BoundaryHandOff{RequestId{request}, GroupIndex{group}, BlockId{block}, boundary});
  }
  return hand_offs;
}

JobResult result_from(const ResultTuple& from) {
  const auto& [epoch, job, rank, status, failed] = from;
  JobResult result{.epoch = epoch,
                   .job = JobId{job},
                   .rank = RankIndex{rank},
                   .status = static_cast<StatusCode>(status),
                   .failed = {}};
  for (const auto& [group, block] : failed) {
    result.failed.push_back(FailedBlock{GroupIndex{group}, BlockId{block}});
  }
  return result;
}

// The scheduler side and what it asks of the engine, which must outlive it.
class Scheduler {
 public:
  Scheduler(const Geometry& geometry, const std::string& options, std::int64_t num_ranks, nb::object pool,
            bool damages_fine_hits, bool record_events)
      : pool_(std::move(pool), spans_of_states(geometry)),
        core_(must(SchedulerConnector::create(
            geometry, must(ConnectorOptions::from_json(options)), num_ranks, pool_,
            EngineTraits{.damages_fine_hits = damages_fine_hits, .record_events = record_events}))) {}

  // Also in the middle of an exception of Python's, whose traceback held the last reference.
  ~Scheduler() {
    const nb::error_scope raised;
    try {
      shutdown();
    } catch (...) {  // NOLINT(bugprone-empty-catch): nobody is left to hear of it
    }
  }
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  void on_worker_capacity(std::uint32_t rank, std::uint64_t num_slabs, std::int64_t slab_bytes,
                          std::vector<std::uint32_t> slots_per_slab, std::uint64_t fingerprint) {
    must(core_->on_worker_capacity(WorkerCapacity{.rank = RankIndex{rank},
                                                  .num_slabs = num_slabs,
                                                  .slab_bytes = slab_bytes,
                                                  .slots_per_slab = std::move(slots_per_slab),
                                                  .fingerprint = fingerprint}));
  }

  void add_request(std::uint64_t id, nb::object engine_id, std::int64_t num_prompt_tokens, bool skip_reading_cache,
                   std::optional<std::int64_t> max_offload_tokens) {
    of_engine(core_->add_request(RequestInfo{.id = RequestId{id},
                                             .num_prompt_tokens = num_prompt_tokens,
                                             .skip_reading_cache = skip_reading_cache,
                                             .max_offload_tokens = max_offload_tokens}));
    pool_.know_request(RequestId{id}, std::move(engine_id));
  }

  // Hashes first .. end of the engine's list; `end` may lie behind it.
  void append_block_hashes(std::uint64_t id, const nb::list& hashes, std::size_t first, std::size_t end) {
    end = std::min<std::size_t>(end, nb::len(hashes));
    std::size_t size = 0;
    for (std::size_t i = first; i < end; ++i) {
      char* data = nullptr;
      Py_ssize_t length = 0;
      if (PyBytes_AsStringAndSize(PyList_GetItem(hashes.ptr(), static_cast<Py_ssize_t>(i)), &data, &length) != 0) {
        throw nb::python_error();
      }
      if (i == first) {
        size = static_cast<std::size_t>(length);
        hash_bytes_.resize((end - first) * size);
      }
      if (size != static_cast<std::size_t>(length)) {
        throw nb::value_error("prefix hashes of one request must have one size");
      }
      std::memcpy(hash_bytes_.data() + (i - first) * size, data, size);
    }
    if (size > 0) {
      must(core_->append_block_hashes(RequestId{id}, hash_bytes_, size));
    }
  }

  void truncate_block_hashes(std::uint64_t id, std::int64_t num_hashes) {
    of_engine(core_->truncate_block_hashes(RequestId{id}, num_hashes));
  }

  std::tuple<int, std::int64_t, std::int64_t> match_prefix(std::uint64_t id, std::int64_t num_tokens,
                                                           std::int64_t num_local_tokens, bool has_more_hashes) {
    pool_.begin_call();
    const MatchResult match =
        of_engine(core_->match_prefix(RequestId{id}, num_tokens, num_local_tokens, has_more_hashes));
    return {static_cast<int>(match.kind), match.num_external_tokens, match.shared_prefix_tokens};
  }

  // `tables`: one list of block objects a group. `num_local_tokens`: of the lookup that the load follows.
  void on_blocks_allocated(std::uint64_t id, const nb::sequence& tables, std::int64_t num_local_tokens,
                           std::int64_t num_external_tokens) {
    pool_.begin_call();
    if (num_local_tokens < 0) {
      throw nb::value_error(
          ("num_local_tokens is " + std::to_string(num_local_tokens) + "; allowed: 0 or more").c_str());
    }
    const Geometry& geometry = core_->geometry();
    std::vector<GroupTable> converted(nb::len(tables));
    for (std::uint32_t g = 0; num_external_tokens != 0 && g < converted.size() && g < geometry.num_groups(); ++g) {
      converted[g] = pool_.convert(tables[g], num_local_tokens / geometry.span_tokens(GroupIndex{g}));
    }
    of_engine(core_->on_blocks_allocated(RequestId{id}, converted, num_external_tokens));
  }

  void cancel_match(std::uint64_t id) { of_engine(core_->cancel_match(RequestId{id})); }

  // `scheduled`: request, computed, scheduled, three numbers each. Answers the message, nothing where it holds no job.
  nb::bytes build_step(const std::vector<std::int64_t>& scheduled, const std::vector<HandOffTuple>& hand_offs,
                       const std::vector<std::uint64_t>& preempted) {
    pool_.begin_call();
    scheduled_.clear();
    if (scheduled.size() % 3 != 0) {
      throw nb::value_error("scheduled must have three numbers a request");
    }
    for (std::size_t i = 0; i + 2 < scheduled.size(); i += 3) {
      scheduled_.push_back(
          ScheduledRequest{RequestId{static_cast<std::uint64_t>(scheduled[i])}, scheduled[i + 1], scheduled[i + 2]});
    }
    std::vector<RequestId> void_tables;
    for (const std::uint64_t id : preempted) {
      void_tables.emplace_back(id);
    }
    const std::vector<BoundaryHandOff> offered = hand_offs_from(hand_offs);
    const std::vector<std::byte> message = of_engine(
        core_->build_step_metadata(StepInput{.scheduled = scheduled_, .hand_offs = offered, .preempted = void_tables}));
    return as_bytes(message.size() == kEmptyStepMetadataBytes ? std::span<const std::byte>() : message);
  }

  std::vector<std::pair<std::uint64_t, std::uint64_t>> take_started_loads() {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> loads;
    for (const StartedLoad& load : core_->take_started_loads()) {
      loads.emplace_back(load.request.value(), load.job.value());
    }
    return loads;
  }

  void on_worker_results(const std::vector<ResultTuple>& results) {
    pool_.begin_call();
    std::vector<JobResult> converted;
    converted.reserve(results.size());
    for (const ResultTuple& result : results) {
      converted.push_back(result_from(result));
    }
    core_->on_worker_results(converted);
    pool_.end_call();
  }

  std::vector<std::pair<std::uint64_t, int>> take_load_outcomes() {
    std::vector<std::pair<std::uint64_t, int>> outcomes;
    for (const LoadOutcome& outcome : core_->take_load_outcomes()) {
      outcomes.emplace_back(outcome.request.value(), static_cast<int>(outcome.status));
    }
    return outcomes;
  }

  // False: there is no failed load that it could go on behind; it looks up again.
  bool resume_after_failed_load(std::uint64_t id, std::int64_t num_tokens) {
    const Status status = core_->resume_after_failed_load(RequestId{id}, num_tokens);
    if (status.code() == StatusCode::kFailedPrecondition || status.code() == StatusCode::kNotFound) {
      return false;
    }
    of_engine(status);
    return true;
  }

  void request_finished(std::uint64_t id, std::int64_t num_computed_tokens,
                        const std::vector<HandOffTuple>& hand_offs) {
    pool_.begin_call();
    const std::vector<BoundaryHandOff> offered = hand_offs_from(hand_offs);
    const Status status = core_->request_finished(RequestId{id}, num_computed_tokens, offered);
    pool_.forget_request(RequestId{id});
    of_engine(status);
  }

  // [(kind, group, hash, boundary, request or None), ...]
  nb::list take_cache_events() {
    nb::list events;
    for (const CacheEvent& event : core_->take_cache_events()) {
      events.append(nb::make_tuple(event_name(event.kind), event.group.value(), as_bytes(event.hash),
                                   event.boundary_tokens,
                                   event.has_request ? nb::cast(event.request.value()) : nb::none()));
    }
    return events;
  }

  bool reset() {
    pool_.begin_call();
    const bool at_rest = core_->reset();
    pool_.end_call();
    return at_rest;
  }
  [[nodiscard]] bool has_pending_work() const { return core_->has_pending_work(); }
  [[nodiscard]] bool holds_alone() const { return pool_.holds_alone(); }
  [[nodiscard]] std::int64_t num_pins() const { return pool_.num_pins(); }
  void shutdown() {
    pool_.begin_call();
    core_->shutdown();
    pool_.end_call();
  }
  [[nodiscard]] std::vector<std::int64_t> lost_tokens_by_group() const { return core_->lost_tokens_by_group(); }
  [[nodiscard]] std::uint64_t epoch() const { return core_->epoch(); }
  [[nodiscard]] const Geometry& geometry() const { return core_->geometry(); }
  void check_conservation() const { must(core_->check_conservation()); }
  [[nodiscard]] nb::dict metrics() const;

 private:
  // What the engine's code raised in the call goes before what the core says of it.
  void of_engine(const Status& status) {
    pool_.end_call();
    must(status);
  }
  template <class T>
  T of_engine(Result<T> result) {
    pool_.end_call();
    return must(std::move(result));
  }

  static const char* event_name(CacheEventKind kind) {
    switch (kind) {
      case CacheEventKind::kPlanned:
        return "planned";
      case CacheEventKind::kDropped:
        return "dropped";
      case CacheEventKind::kStored:
        return "stored";
      case CacheEventKind::kRemoved:
        return "removed";
      case CacheEventKind::kCleared:
        break;
    }
    return "cleared";
  }

  EnginePool pool_;
  std::unique_ptr<SchedulerConnector> core_;
  std::vector<std::byte> hash_bytes_;
  std::vector<ScheduledRequest> scheduled_;
};

nb::dict Scheduler::metrics() const {
  const SchedulerMetrics m = core_->metrics();
  nb::dict out;
  const auto put = [&](const char* name, std::int64_t value) { out[name] = value; };
  put("lookups", m.lookups);
  put("delayed_lookups", m.delayed_lookups);
  put("queried_tokens", m.queried_tokens);
  put("hit_tokens", m.hit_tokens);
  put("planned_store_blocks", m.planned_store_blocks);
  put("stored_blocks", m.stored_blocks);
  put("present_blocks", m.present_blocks);
  put("dropped_full_blocks", m.dropped_full_blocks);
  put("dropped_failed_blocks", m.dropped_failed_blocks);
  put("dropped_reset_blocks", m.dropped_reset_blocks);
  put("evicted_blocks", m.evicted_blocks);
  put("unstorable_boundaries", m.unstorable_boundaries);
  put("dropped_hand_offs", m.dropped_hand_offs);
  put("ignored_hand_offs", m.ignored_hand_offs);
  put("planned_load_blocks", m.planned_load_blocks);
  put("planned_device_copies", m.planned_device_copies);
  put("loaded_blocks", m.loaded_blocks);
  put("failed_load_blocks", m.failed_load_blocks);
  put("ignored_results", m.ignored_results);
  put("capacity_bytes", m.capacity_bytes);
  put("used_bytes", m.used_bytes);
  put("stored_keys", m.stored_keys);
  put("pinned_slots", m.pinned_slots);
  put("jobs_in_flight", m.jobs_in_flight);
  put("pinned_device_blocks", m.pinned_device_blocks);
  return out;
}

}  // namespace

void bind_scheduler(nb::module_& module) {
  nb::class_<Scheduler>(module, "Scheduler")
      .def(nb::init<const Geometry&, const std::string&, std::int64_t, nb::object, bool, bool>(), "geometry"_a,
           "options"_a, "num_ranks"_a, "pool"_a, "damages_fine_hits"_a = false, "record_events"_a = false)
      .def("on_worker_capacity", &Scheduler::on_worker_capacity, "rank"_a, "num_slabs"_a, "slab_bytes"_a,
           "slots_per_slab"_a, "fingerprint"_a)
      .def("add_request", &Scheduler::add_request, "request"_a, "engine_id"_a, "num_prompt_tokens"_a,
           "skip_reading_cache"_a = false, "max_offload_tokens"_a = nb::none())
      .def("append_block_hashes", &Scheduler::append_block_hashes, "request"_a, "hashes"_a, "first"_a,
           "end"_a = std::numeric_limits<std::size_t>::max())
      .def("truncate_block_hashes", &Scheduler::truncate_block_hashes, "request"_a, "num_hashes"_a)
      .def("match_prefix", &Scheduler::match_prefix, "request"_a, "num_tokens"_a, "num_local_tokens"_a,
           "has_more_hashes"_a = false)
      .def("on_blocks_allocated", &Scheduler::on_blocks_allocated, "request"_a, "tables"_a, "num_local_tokens"_a,
           "num_external_tokens"_a)
      .def("cancel_match", &Scheduler::cancel_match, "request"_a)
      .def("build_step", &Scheduler::build_step, "scheduled"_a, "hand_offs"_a, "preempted"_a)
      .def("take_started_loads", &Scheduler::take_started_loads)
      .def("on_worker_results", &Scheduler::on_worker_results, "results"_a)
      .def("take_load_outcomes", &Scheduler::take_load_outcomes)
      .def("resume_after_failed_load", &Scheduler::resume_after_failed_load, "request"_a, "num_tokens"_a)
      .def("request_finished", &Scheduler::request_finished, "request"_a, "num_computed_tokens"_a,
           "hand_offs"_a = std::vector<HandOffTuple>())
      .def("take_cache_events", &Scheduler::take_cache_events)
      .def("reset", &Scheduler::reset)
      .def("has_pending_work", &Scheduler::has_pending_work)
      .def("holds_alone", &Scheduler::holds_alone)
      .def("num_pins", &Scheduler::num_pins)
      .def("shutdown", &Scheduler::shutdown)
      .def("metrics", &Scheduler::metrics)
      .def("lost_tokens_by_group", &Scheduler::lost_tokens_by_group)
      .def("epoch", &Scheduler::epoch)
      .def("geometry", &Scheduler::geometry, nb::rv_policy::reference_internal)
      .def("check_conservation", &Scheduler::check_conservation);
}

}  // namespace hostkv::python
