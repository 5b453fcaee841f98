// hostkv._core.Geometry: from plain values to the resolved table.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hostkv/geometry.h"
#include "python/bindings/bindings.h"
#include "python/bindings/errors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hostkv::python {
namespace {

template <class T>
T value_or(const nb::dict& from, const char* name, T otherwise) {
  if (!from.contains(name)) {
    return otherwise;
  }
  T value{};
  if (!nb::try_cast<T>(from[name], value)) {
    const nb::str shown = nb::repr(nb::handle(from[name]));
    throw nb::type_error((std::string(name) + " is " + shown.c_str() + ", which is of the wrong type").c_str());
  }
  return value;
}

MambaMode mamba_mode_from(const std::string& name) {
  if (name == "align") {
    return MambaMode::kAlign;
  }
  if (name == "all") {
    return MambaMode::kAll;
  }
  if (name == "none") {
    return MambaMode::kNone;
  }
  throw nb::value_error(("mamba_mode is \"" + name + "\"; allowed: align, all, none").c_str());
}

KvCacheGroup group_from(const nb::dict& from) {
  KvCacheGroup group;
  const auto kind_name = value_or<std::string>(from, "kind", "");
  const std::optional<GroupKind> kind = group_kind_from_name(kind_name);
  if (!kind) {
    throw nb::value_error(
        ("kind is \"" + kind_name + "\"; allowed: full, mla, sliding_window, chunked_local, mamba, ring").c_str());
  }
  group.kind = *kind;
  group.name = value_or<std::string>(from, "name", "");
  group.block_tokens = value_or<std::int64_t>(from, "block_tokens", 0);
  group.sharded = value_or<bool>(from, "sharded", false);
  group.page_bytes = value_or<std::int64_t>(from, "page_bytes", 0);
  group.window_tokens = value_or<std::int64_t>(from, "window_tokens", 0);
  group.extra_retained_tokens = value_or<std::int64_t>(from, "extra_retained_tokens", 0);
  group.chunk_tokens = value_or<std::int64_t>(from, "chunk_tokens", 0);
  group.tokens_per_entry = value_or<std::int64_t>(from, "tokens_per_entry", 1);
  group.eagle = value_or<bool>(from, "eagle", false);
  group.cacheable = value_or<bool>(from, "cacheable", true);
  group.transferable = value_or<bool>(from, "transferable", true);
  group.mamba_mode = mamba_mode_from(value_or<std::string>(from, "mamba_mode", "align"));
  return group;
}

ParallelLayout parallel_from(const nb::dict& from) {
  return ParallelLayout{.tp = value_or<std::int64_t>(from, "tp", 1),
                        .pp = value_or<std::int64_t>(from, "pp", 1),
                        .dcp = value_or<std::int64_t>(from, "dcp", 1),
                        .pcp = value_or<std::int64_t>(from, "pcp", 1),
                        .interleave_tokens = value_or<std::int64_t>(from, "interleave_tokens", 1)};
}

Geometry resolve(const std::vector<nb::dict>& groups, const nb::dict& parallel,
                 std::optional<std::int64_t> hash_block_tokens, bool prefix_caching, std::optional<bool> fine_hits) {
  GeometrySpec spec;
  for (const nb::dict& group : groups) {
    spec.groups.push_back(group_from(group));
  }
  spec.parallel = parallel_from(parallel);
  spec.hash_block_tokens = hash_block_tokens;
  spec.prefix_caching = prefix_caching;
  spec.connector = true;
  spec.fine_hits = fine_hits;
  return must(Geometry::resolve(std::move(spec)));
}

GroupIndex checked(const Geometry& geometry, std::uint32_t group) {
  if (group >= geometry.num_groups()) {
    throw nb::value_error(
        ("group is " + std::to_string(group) + "; allowed: 0 .. " + std::to_string(geometry.num_groups() - 1)).c_str());
  }
  return GroupIndex{group};
}

}  // namespace

void bind_geometry(nb::module_& module) {
  nb::class_<Geometry>(module, "Geometry")
      .def(
          "__init__",
          [](Geometry* self, const std::vector<nb::dict>& groups, const nb::dict& parallel,
             std::optional<std::int64_t> hash_block_tokens, bool prefix_caching, std::optional<bool> fine_hits) {
            new (self) Geometry(resolve(groups, parallel, hash_block_tokens, prefix_caching, fine_hits));
          },
          "groups"_a, "parallel"_a, "hash_block_tokens"_a = nb::none(), "prefix_caching"_a = true,
          "fine_hits"_a = nb::none())
      .def_prop_ro("num_groups", &Geometry::num_groups)
      .def_prop_ro("scheduler_block_tokens", &Geometry::scheduler_block_tokens)
      .def_prop_ro("hash_block_tokens", &Geometry::hash_block_tokens)
      .def_prop_ro("hit_alignment_tokens", &Geometry::hit_alignment_tokens)
      .def_prop_ro("min_reusable_tokens", &Geometry::min_reusable_tokens)
      .def_prop_ro("fine_hits", &Geometry::fine_hits)
      .def_prop_ro("fingerprint", &Geometry::fingerprint)
      .def(
          "span_tokens", [](const Geometry& self, std::uint32_t g) { return self.span_tokens(checked(self, g)); },
          "group"_a)
      .def(
          "offloadable", [](const Geometry& self, std::uint32_t g) { return self.offloadable(checked(self, g)); },
          "group"_a)
      .def(
          "label", [](const Geometry& self, std::uint32_t g) { return self.group_label(checked(self, g)); }, "group"_a);
}

}  // namespace hostkv::python
