#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "hostkv/options.h"
#include "python/bindings/bindings.h"

namespace hostkv::python {
namespace {

namespace nb = nanobind;

nb::dict option_row(const OptionInfo& info) {
  nb::dict row;
  row["name"] = info.name;
  row["type"] = info.type;
  row["unit"] = info.unit;
  row["default"] = info.default_value;
  row["range"] = info.range;
  row["help"] = info.help;
  return row;
}

nb::list option_table() {
  nb::list rows;
  for (const OptionInfo& info : connector_option_table()) rows.append(option_row(info));
  return rows;
}

nb::object parse_options(std::string_view json_text) {
  const Result<ConnectorOptions> options = ConnectorOptions::from_json(json_text);
  if (!options) throw nb::value_error(options.error().message().c_str());
  return nb::module_::import_("json").attr("loads")(options->to_json());
}

std::int64_t parse_size(std::string_view text) {
  const Result<std::int64_t> size_bytes = parse_size_bytes(text);
  if (!size_bytes) throw nb::value_error(size_bytes.error().message().c_str());
  return *size_bytes;
}

}  // namespace

void bind_options(nb::module_& module) {
  module.def("parse_options", &parse_options, nb::arg("json_text"),
             "All options as resolved from a JSON object of option names, defaults included. ValueError names the "
             "option, the value, what is allowed and the nearest known name.");
  module.def("option_table", &option_table, "One dict for each option: name, type, unit, default, range, help.");
  module.def("parse_size_bytes", &parse_size, nb::arg("text"),
             "Bytes of \"64GiB\", \"500MB\", \"1.5TiB\" or \"4096\". ValueError says what is allowed.");
}

}  // namespace hostkv::python
