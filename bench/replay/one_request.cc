#include "bench/replay/one_request.h"

#include <string>
#include <utility>

namespace hostkv::bench {

Result<RequestReport> run_one(Engine& engine, std::vector<std::int32_t> prompt_tokens) {
  RequestSpec spec;
  spec.prompt_tokens = std::move(prompt_tokens);
  if (Result<RequestId> id = engine.add_request(std::move(spec)); !id) return error(id.error());
  if (Status status = engine.run_until_idle(); !status.ok()) return error(std::move(status));
  std::vector<RequestReport> reports = engine.take_reports();
  if (reports.size() != 1) {
    return error(StatusCode::kInternal, std::to_string(reports.size()) + " reports for one request");
  }
  return std::move(reports.front());
}

}  // namespace hostkv::bench
