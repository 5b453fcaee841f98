// A small engine around the installed library: stores the KV of one prompt in host memory and loads it back into other
// blocks. Two ranks (TP 2, DCP 2) of a hybrid model: MLA, whose tokens the ranks share, beside recurrent states.
// docs/embedding.md explains it.

#include <hostkv/connector.h>
#include <hostkv/geometry.h>
#include <hostkv/host_backend.h>
#include <hostkv/recovery.h>
#include <hostkv/version.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace kv = hostkv;

namespace {

constexpr std::size_t kNumRanks = 2;  // TP x PP x PCP
constexpr std::uint32_t kNumBlocks = 16;
constexpr std::int64_t kBlockBytes = 2048;
constexpr kv::GroupIndex kMla{0};
constexpr kv::GroupIndex kState{1};
constexpr std::int64_t kPromptTokens = 33;  // one scheduler block, and the last token, which is always computed

void must(const kv::Status& status) {
  if (!status.ok()) {
    std::printf("%s\n", status.to_string().c_str());
    std::exit(1);
  }
}
template <class T>
T must(kv::Result<T> result) {
  must(result ? kv::Status() : result.error());
  return *std::move(result);
}

kv::Geometry model() {
  kv::GeometrySpec spec;
  spec.groups.resize(2);
  spec.groups[0].kind = kv::GroupKind::kMla;
  spec.groups[0].block_tokens = 16;  // on each rank; 32 over both
  spec.groups[0].sharded = true;
  spec.groups[0].page_bytes = 1024;
  spec.groups[1].kind = kv::GroupKind::kMamba;
  spec.groups[1].block_tokens = 32;
  spec.groups[1].page_bytes = kBlockBytes;
  spec.parallel.tp = 2;
  spec.parallel.dcp = 2;
  return must(kv::Geometry::resolve(spec));
}

// The engine's block pool. A real one hands a block out again only when it has no owner and no pin.
class Blocks final : public kv::EngineBlocks {
 public:
  void pin(std::span<const kv::BlockId> blocks) override { num_pins_ += std::ssize(blocks); }
  void unpin(std::span<const kv::BlockId> blocks) override { num_pins_ -= std::ssize(blocks); }
  [[nodiscard]] kv::GroupTable block_table(kv::RequestId request, kv::GroupIndex group,
                                           std::int64_t /*first_block*/) override {
    const auto found = tables_.find(request);
    return found == tables_.end() ? kv::GroupTable{} : kv::GroupTable{found->second[group.value()]};
  }

  // Two blocks a group, from block `first` on.
  std::array<kv::GroupTable, 2> allocate(kv::RequestId request, std::uint32_t first) {
    tables_[request] = {
        {{kv::BlockId{first}, kv::BlockId{first + 1}}, {kv::BlockId{first + 2}, kv::BlockId{first + 3}}}};
    return {block_table(request, kMla, 0), block_table(request, kState, 0)};
  }
  [[nodiscard]] std::ptrdiff_t num_pins() const { return num_pins_; }

 private:
  std::map<kv::RequestId, std::array<std::vector<kv::BlockId>, 2>> tables_;
  std::ptrdiff_t num_pins_ = 0;
};

struct Rank {
  std::vector<unsigned char> memory = std::vector<unsigned char>(kNumBlocks * kBlockBytes);
  kv::HostStream stream{"forward"};  // stands for the compute stream
  std::unique_ptr<kv::WorkerConnector> worker;

  [[nodiscard]] unsigned char* block(std::uint32_t id) { return memory.data() + id * kBlockBytes; }
  // Both groups lie in one region, as in engines with one block pool: a block belongs to one of them at a time.
  [[nodiscard]] kv::KvLayout layout() {
    kv::KvLayout layout;
    layout.num_blocks = kNumBlocks;
    layout.regions = {{memory.data(), std::ssize(memory)}};
    layout.groups = {{{0, 0, kBlockBytes, 1024}}, {{0, 0, kBlockBytes, kBlockBytes}}};
    return layout;
  }
};
using Ranks = std::array<Rank, kNumRanks>;

using Outcomes = std::vector<kv::LoadOutcome>;

// One step. `forward` is what the ranks compute in it. In a real engine each rank is a process of its own: the metadata
// goes down to it as bytes, its results come back.
template <class Forward>
Outcomes run_step(kv::SchedulerConnector& scheduler, Ranks& ranks, const kv::StepInput& step, Forward forward) {
  const std::vector<std::byte> metadata = must(scheduler.build_step_metadata(step));
  for (std::size_t r = 0; r < kNumRanks; ++r) {
    kv::WorkerConnector& worker = *ranks[r].worker;
    must(worker.bind_step(metadata, ranks[r].stream.handle()));
    must(worker.start_loads());
    ranks[r].stream.enqueue([&rank = ranks[r], r, forward] { forward(rank, r); });
    must(worker.start_stores());
    scheduler.on_worker_results(must(worker.poll()));
  }
  return scheduler.take_load_outcomes();
}

// Steps without requests, until every copy has ended and every outcome was taken.
Outcomes run_dry(kv::SchedulerConnector& scheduler, Ranks& ranks) {
  Outcomes all;
  while (scheduler.has_pending_work()) {
    const Outcomes some = run_step(scheduler, ranks, {}, [](Rank&, std::size_t) {});
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

void add(kv::SchedulerConnector& scheduler, kv::RequestId id) {
  std::array<std::byte, 32> hash{};  // the prefix hash of the engine over the first 32 tokens
  hash.fill(std::byte{0x5a});
  must(scheduler.add_request({.id = id, .num_prompt_tokens = kPromptTokens}));
  must(scheduler.append_block_hashes(id, hash, hash.size()));
}

void expect(bool truth, const char* what) {
  if (!truth) {
    std::printf("not so: %s\n", what);
    std::exit(1);
  }
}

// A request that waits for 96 tokens of which rank 1 has lost the last state: it goes on behind the state before.
void recover(const kv::Geometry& geometry) {
  const std::array mla{kv::BlockId{1}, kv::BlockId{2}, kv::BlockId{3}};
  const std::array states{kv::BlockId{4}, kv::BlockId{5}, kv::BlockId{6}};
  const std::array<std::int64_t, 3> state_tokens{32, 64, 96};
  const std::array held{kv::HeldBlocks{mla, {}}, kv::HeldBlocks{states, state_tokens}};
  const std::array requests{kv::HeldRequest{.id = kv::RequestId{3}, .settled_tokens = 96, .groups = held}};
  const std::array failed{kv::FailedLoad{kv::RequestId{3}, kState, kv::BlockId{6}, kv::RankIndex{1}}};

  kv::RecoveryPlanner planner(geometry);
  const kv::RecoveryPlan plan = must(planner.plan(requests, failed));
  expect(plan.requests.size() == 1 && plan.requests[0].action == kv::RecoveryAction::kRewind, "a rewind");
  expect(plan.requests[0].resume_tokens == 64, "64 tokens are good");
  expect(plan.requests[0].kept[0].end_block == 2 && plan.requests[0].kept[1].first_block == 1, "what it keeps");
  expect(plan.evicted.empty(), "nobody could have found them");
}

}  // namespace

int main() {
  const kv::Geometry geometry = model();
  kv::ConnectorOptions options;
  options.cpu_bytes_to_use = std::int64_t{1} << 20;
  Blocks blocks;
  const auto scheduler = must(kv::SchedulerConnector::create(geometry, options, kNumRanks, blocks));
  Ranks ranks;
  for (std::uint32_t r = 0; r < kNumRanks; ++r) {
    // A null backend: copies in host memory, on threads of the worker's own.
    ranks[r].worker = must(kv::WorkerConnector::create(geometry, options, {kv::RankIndex{r}, kNumRanks}, nullptr));
    must(scheduler->on_worker_capacity(must(ranks[r].worker->register_layout(ranks[r].layout()))));
  }

  // The first request finds nothing. Its prefill stops at the boundary, where the state is handed off.
  const kv::RequestId first{1};
  add(*scheduler, first);
  expect(must(scheduler->match_prefix(first, kPromptTokens, 0)).kind == kv::MatchResult::Kind::kMiss, "a miss");
  must(scheduler->on_blocks_allocated(first, blocks.allocate(first, 1), 0));  // MLA: 1, 2; states: 3, 4
  const std::array prefill{kv::ScheduledRequest{first, 0, 32}};
  const std::array hand_offs{kv::BoundaryHandOff{first, kState, kv::BlockId{3}, 32}};
  run_step(*scheduler, ranks, {.scheduled = prefill, .hand_offs = hand_offs}, [](Rank& rank, std::size_t r) {
    std::fill_n(rank.block(1), 1024, static_cast<unsigned char>(10 + r));
    std::fill_n(rank.block(3), kBlockBytes, static_cast<unsigned char>(20 + r));
  });
  run_dry(*scheduler, ranks);  // from here on the 32 tokens can be found
  must(scheduler->request_finished(first, 32));

  // The second one has the same prompt and other blocks. It waits for its load, then computes the last token.
  const kv::RequestId second{2};
  add(*scheduler, second);
  const kv::MatchResult match = must(scheduler->match_prefix(second, kPromptTokens, 0));
  expect(match.num_external_tokens == 32, "a hit of 32 tokens");
  must(scheduler->on_blocks_allocated(second, blocks.allocate(second, 5), match.num_external_tokens));
  const Outcomes loads = run_dry(*scheduler, ranks);
  expect(loads.size() == 1 && loads[0].request == second && loads[0].status == kv::StatusCode::kOk, "a good load");
  for (Rank& rank : ranks) {
    expect(rank.block(5)[0] != 0 && std::equal(rank.block(5), rank.block(5) + 1024, rank.block(1)), "equal MLA bytes");
    expect(rank.block(7)[0] != 0 && std::equal(rank.block(7), rank.block(8), rank.block(3)), "an equal state");
  }
  const std::array rest{kv::ScheduledRequest{second, 32, 1}};
  run_step(*scheduler, ranks, {.scheduled = rest}, [](Rank&, std::size_t) {});
  run_dry(*scheduler, ranks);
  must(scheduler->request_finished(second, kPromptTokens));
  expect(blocks.num_pins() == 0, "no pin is left");
  recover(geometry);

  for (Rank& rank : ranks) {
    must(rank.worker->shutdown(std::chrono::seconds(10)));
  }
  scheduler->shutdown();
  std::printf("hostkv %s: scheduler block %lld tokens, loaded %lld tokens, bytes equal on %zu ranks\n", kv::kVersion,
              static_cast<long long>(geometry.scheduler_block_tokens()),
              static_cast<long long>(match.num_external_tokens), kNumRanks);
  return 0;
}
