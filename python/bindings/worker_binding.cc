// hostkv._core.Worker: the worker side of one rank, and what a step's message says.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "connector/step_metadata.h"
#include "hostkv/connector.h"
#include "python/bindings/bindings.h"
#include "python/bindings/errors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hostkv::python {
namespace {

using RegionTuple = std::pair<std::uintptr_t, std::int64_t>;                             // address, bytes
using RangeTuple = std::tuple<std::uint32_t, std::int64_t, std::int64_t, std::int64_t>;  // region, offset, stride, size

std::span<const std::byte> view_of(const nb::bytes& bytes) {
  return {reinterpret_cast<const std::byte*>(bytes.c_str()), bytes.size()};
}

std::chrono::nanoseconds seconds(double value) {
  constexpr double kLongest = 1e9;  // what a clock of nanoseconds can add to now
  if (!(value >= 0)) {
    throw nb::value_error(("a timeout is " + std::to_string(value) + " seconds; allowed: 0 or more").c_str());
  }
  value = std::min(value, kLongest);
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(value));
}

nb::tuple as_tuple(const JobResult& result) {
  nb::list failed;
  for (const FailedBlock& block : result.failed) {
    failed.append(nb::make_tuple(block.group.value(), block.block.value()));
  }
  return nb::make_tuple(result.epoch, result.job.value(), result.rank.value(), static_cast<int>(result.status), failed);
}

const char* direction_name(Direction direction) {
  switch (direction) {
    case Direction::kStore:
      return "store";
    case Direction::kLoad:
      return "load";
    case Direction::kDeviceCopy:
      break;
  }
  return "device_copy";
}

nb::dict describe_step(const nb::bytes& message) {
  const StepMetadata step = must(decode_step_metadata(view_of(message)));
  nb::list jobs;
  for (const StepJob& job : step.jobs) {
    nb::list blocks;
    for (const StepBlock& block : job.blocks) {
      blocks.append(nb::make_tuple(block.group.value(), block.block.value(), block.slot.value()));
    }
    nb::dict described;
    described["id"] = job.id.value();
    described["direction"] = direction_name(job.direction);
    described["blocks"] = blocks;
    jobs.append(described);
  }
  nb::dict out;
  out["epoch"] = step.epoch;
  out["sequence"] = step.sequence;
  out["jobs"] = jobs;
  return out;
}

KvLayout layout_from(std::int64_t num_blocks, const std::vector<RegionTuple>& regions,
                     const std::vector<std::vector<RangeTuple>>& groups) {
  KvLayout layout{.num_blocks = num_blocks};
  for (const auto& [address, size_bytes] : regions) {
    layout.regions.push_back(KvRegion{reinterpret_cast<void*>(address), size_bytes});
  }
  for (const std::vector<RangeTuple>& ranges : groups) {
    std::vector<KvBlockRange>& group = layout.groups.emplace_back();
    for (const auto& [region, offset, stride, size] : ranges) {
      group.push_back(KvBlockRange{region, offset, stride, size});
    }
  }
  return layout;
}

// The exporter of one place of the pool: while a memoryview of it lives, the worker and its pool do.
class HostBytes {
 public:
  HostBytes(std::span<std::byte> bytes, nb::object owner, std::int64_t& num_views)
      : bytes_(bytes), owner_(std::move(owner)), num_views_(num_views) {
    ++num_views_;
  }
  HostBytes(const HostBytes&) = delete;
  HostBytes& operator=(const HostBytes&) = delete;
  ~HostBytes() { --num_views_; }

  static int fill(PyObject* self, Py_buffer* view, int flags) {
    const std::span<std::byte> bytes = nb::inst_ptr<HostBytes>(self)->bytes_;
    return PyBuffer_FillInfo(view, self, bytes.data(), std::ssize(bytes), 0, flags);
  }

 private:
  std::span<std::byte> bytes_;
  nb::object owner_;
  std::int64_t& num_views_;  // of the owner
};

class Worker {
 public:
  Worker(const Geometry& geometry, const std::string& options, std::uint32_t rank, std::int64_t num_ranks,
         const std::string& device) {
    if (device != "cpu") {
      raise(Status(StatusCode::kNotSupported,
                   "KV cache in memory of device type \"" + device + "\"; this build copies to and from \"cpu\" only"));
    }
    core_ = must(WorkerConnector::create(geometry, must(ConnectorOptions::from_json(options)),
                                         WorkerSpec{.rank = RankIndex{rank}, .num_ranks = num_ranks}, nullptr));
  }

  nb::dict register_layout(std::int64_t num_blocks, const std::vector<RegionTuple>& regions,
                           const std::vector<std::vector<RangeTuple>>& groups) {
    const KvLayout layout = layout_from(num_blocks, regions, groups);
    const WorkerCapacity capacity = must([&] {
      const nb::gil_scoped_release released;
      return core_->register_layout(layout);
    }());
    nb::dict out;
    out["rank"] = capacity.rank.value();
    out["num_slabs"] = capacity.num_slabs;
    out["slab_bytes"] = capacity.slab_bytes;
    out["slots_per_slab"] = capacity.slots_per_slab;
    out["fingerprint"] = capacity.fingerprint;
    return out;
  }

  void unregister_layout(double timeout_seconds) {
    const Status status = [&] {
      const nb::gil_scoped_release released;
      return core_->unregister_layout(seconds(timeout_seconds));
    }();
    must(status);
  }

  void bind_step(const nb::bytes& message) { must(core_->bind_step(view_of(message), StreamHandle{})); }
  void start_loads() { must(core_->start_loads()); }
  void start_stores() { must(core_->start_stores()); }

  nb::list poll() {
    nb::list results;
    for (const JobResult& result : must(core_->poll())) {
      results.append(as_tuple(result));
    }
    return results;
  }

  void wait_idle(double timeout_seconds) {
    const Status status = [&] {
      const nb::gil_scoped_release released;
      return core_->wait_idle(seconds(timeout_seconds));
    }();
    must(status);
  }

  // Memory that Python still looks at is not given back: the device is let go, and BufferError says so.
  void shutdown(double timeout_seconds) {
    if (num_views_ > 0) {
      const Status status = [&] {
        const nb::gil_scoped_release released;
        return core_->unregister_layout(seconds(timeout_seconds));
      }();
      must(status.code() == StatusCode::kFailedPrecondition ? Status() : status);
      throw nb::buffer_error(
          ("views of host blocks are alive: " + std::to_string(num_views_) + "; let them go before shutdown").c_str());
    }
    const Status status = [&] {
      const nb::gil_scoped_release released;
      return core_->shutdown(seconds(timeout_seconds));
    }();
    must(status);
  }

  nb::object host_block(std::uint32_t group, std::uint64_t slot) {
    const std::span<std::byte> bytes = must(core_->host_block(GroupIndex{group}, SlotId{slot}));
    const nb::object exporter =
        nb::cast(new HostBytes(bytes, nb::find(*this), num_views_), nb::rv_policy::take_ownership);
    nb::object view = nb::steal(PyMemoryView_FromObject(exporter.ptr()));
    if (!view.is_valid()) {
      throw nb::python_error();
    }
    return view;
  }

  [[nodiscard]] nb::dict metrics() const {
    const WorkerMetrics m = core_->metrics();
    nb::dict out;
    out["stored_bytes"] = m.stored_bytes;
    out["loaded_bytes"] = m.loaded_bytes;
    out["device_copied_bytes"] = m.device_copied_bytes;
    out["failed_jobs"] = m.failed_jobs;
    out["checked_blocks"] = m.checked_blocks;
    out["changed_blocks"] = m.changed_blocks;
    out["jobs_in_flight"] = m.jobs_in_flight;
    out["pool_bytes"] = m.pool_bytes;
    return out;
  }

 private:
  std::unique_ptr<WorkerConnector> core_;
  std::int64_t num_views_ = 0;
};

// NOLINTNEXTLINE(modernize-avoid-c-arrays): the interpreter's own form
PyType_Slot host_bytes_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&HostBytes::fill)}, {0, nullptr}};

}  // namespace

void bind_worker(nb::module_& module) {
  module.def("describe_step", &describe_step, "message"_a);
  nb::class_<HostBytes>(module, "HostBytes", nb::type_slots(host_bytes_slots));
  nb::class_<Worker>(module, "Worker")
      .def(nb::init<const Geometry&, const std::string&, std::uint32_t, std::int64_t, const std::string&>(),
           "geometry"_a, "options"_a, "rank"_a, "num_ranks"_a, "device"_a = "cpu")
      .def("register_layout", &Worker::register_layout, "num_blocks"_a, "regions"_a, "groups"_a)
      .def("unregister_layout", &Worker::unregister_layout, "timeout_seconds"_a)
      .def("bind_step", &Worker::bind_step, "message"_a)
      .def("start_loads", &Worker::start_loads)
      .def("start_stores", &Worker::start_stores)
      .def("poll", &Worker::poll)
      .def("wait_idle", &Worker::wait_idle, "timeout_seconds"_a)
      .def("shutdown", &Worker::shutdown, "timeout_seconds"_a)
      .def("host_block", &Worker::host_block, "group"_a, "slot"_a)
      .def("metrics", &Worker::metrics);
}

}  // namespace hostkv::python
