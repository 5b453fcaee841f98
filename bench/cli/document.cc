#include "bench/cli/document.h"

#include <nlohmann/json.hpp>
#include <ostream>

#include "hostkv/version.h"

namespace hostkv::bench {

void write_document(std::ostream& out, std::string_view command, std::string_view config, std::string_view results) {
  using nlohmann::ordered_json;
  ordered_json document;
  document["schema_version"] = 1;
  document["hostkv_version"] = kVersion;
  document["command"] = command;
  document["config"] = ordered_json::parse(config);
  document["results"] = ordered_json::parse(results);
  out << document.dump(2) << '\n';
}

}  // namespace hostkv::bench
