#ifndef HOSTKV_BENCH_CLI_DOCUMENT_H_
#define HOSTKV_BENCH_CLI_DOCUMENT_H_

#include <iosfwd>
#include <string>
#include <string_view>

namespace hostkv::bench {

// The one JSON document of a command: schema_version, hostkv_version, command, config, results. `config` is the text of
// an object, `results` of a list.
void write_document(std::ostream& out, std::string_view command, std::string_view config, std::string_view results);

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_CLI_DOCUMENT_H_
