#include "bench/replay/workload.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "bench/models/name_hint.h"
#include "bench/replay/random.h"

namespace hostkv::bench {
namespace {

constexpr std::int64_t kBlockTokens = 512;
constexpr std::int64_t kMaxRequests = 10'000'000;
constexpr std::array<std::string_view, 3> kNames = {"chat", "prefix-tree", "one-shot"};

TraceRequest request_of(std::vector<std::int64_t> ids, std::int64_t index, Random& random) {
  TraceRequest request;
  request.timestamp_ms = index * 250;
  request.input_tokens = static_cast<std::int64_t>(ids.size()) * kBlockTokens;
  request.output_tokens = random.between(16, 800);
  request.block_ids = std::move(ids);
  return request;
}

class ChatWorkload {
 public:
  explicit ChatWorkload(Random& random) : random_(random), conversations_(kConversations) {
    for (std::vector<std::int64_t>& prompt : system_prompts_) append_new(prompt, random_.between(2, 9));
    for (Conversation& conversation : conversations_) restart(conversation);
  }
  std::vector<std::int64_t> next() {
    Conversation& conversation = conversations_[static_cast<std::size_t>(random_.between(0, kConversations - 1))];
    if (conversation.turns_left == 0) restart(conversation);
    --conversation.turns_left;
    append_new(conversation.ids, random_.between(1, 6));
    return conversation.ids;
  }

 private:
  static constexpr std::int64_t kConversations = 320;
  struct Conversation {
    std::vector<std::int64_t> ids;
    std::int64_t turns_left = 0;
  };
  void append_new(std::vector<std::int64_t>& ids, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) ids.push_back(next_id_++);
  }
  void restart(Conversation& conversation) {
    conversation.ids = system_prompts_[static_cast<std::size_t>(random_.between(0, 7))];
    conversation.turns_left = random_.between(1, 12);
  }

  Random& random_;
  std::int64_t next_id_ = 0;
  std::array<std::vector<std::int64_t>, 8> system_prompts_;
  std::vector<Conversation> conversations_;
};

class PrefixTreeWorkload {
 public:
  explicit PrefixTreeWorkload(Random& random) : random_(random), children_(1, kNoChildren) {}
  std::vector<std::int64_t> next() {
    std::vector<std::int64_t> ids = {0};
    const std::int64_t depth = random_.between(4, 40);
    while (static_cast<std::int64_t>(ids.size()) < depth) ids.push_back(child_of(ids.back(), skewed_choice()));
    return ids;
  }

 private:
  static constexpr std::array<std::int64_t, 6> kNoChildren = {-1, -1, -1, -1, -1, -1};

  // The first child in seven of eight walks, the others in the rest.
  std::size_t skewed_choice() {
    return random_.between(0, 7) > 0 ? 0 : static_cast<std::size_t>(random_.between(1, 5));
  }
  std::int64_t child_of(std::int64_t node, std::size_t choice) {
    const std::int64_t known = children_[static_cast<std::size_t>(node)][choice];
    if (known >= 0) return known;
    const auto fresh = static_cast<std::int64_t>(children_.size());
    children_[static_cast<std::size_t>(node)][choice] = fresh;
    children_.push_back(kNoChildren);
    return fresh;
  }

  Random& random_;
  std::vector<std::array<std::int64_t, 6>> children_;  // of a node, the place is its id; -1: not made yet
};

class OneShotWorkload {
 public:
  explicit OneShotWorkload(Random& random) : random_(random) {}
  std::vector<std::int64_t> next() {
    if (!recent_.empty() && random_.between(0, 7) == 0) {
      return recent_[static_cast<std::size_t>(random_.between(0, static_cast<std::int64_t>(recent_.size()) - 1))];
    }
    std::vector<std::int64_t> ids = {0};
    const std::int64_t length = random_.between(9, 40);
    while (static_cast<std::int64_t>(ids.size()) < length) ids.push_back(next_id_++);
    if (recent_.size() < kRecent) {
      recent_.push_back(ids);
    } else {
      recent_[oldest_] = ids;
      oldest_ = (oldest_ + 1) % kRecent;
    }
    return ids;
  }

 private:
  static constexpr std::size_t kRecent = 64;
  Random& random_;
  std::int64_t next_id_ = 1;
  std::vector<std::vector<std::int64_t>> recent_;
  std::size_t oldest_ = 0;
};

template <class Workload>
void fill(Trace& trace, std::uint64_t seed, std::int64_t num_requests) {
  Random random(seed);
  Workload workload(random);
  for (std::int64_t i = 0; i < num_requests; ++i) trace.requests.push_back(request_of(workload.next(), i, random));
}

Status unknown_workload(std::string_view name) {
  const std::string guess = did_you_mean(name, kNames);
  return Status(StatusCode::kInvalidArgument, "unknown workload \"" + std::string(name) + "\"; " +
                                                  (guess.empty() ? "" : guess + " ") + "allowed: " + joined(kNames));
}

}  // namespace

std::span<const std::string_view> workload_names() {
  return kNames;
}

Result<Trace> make_workload(std::string_view name, std::uint64_t seed, std::int64_t num_requests) {
  if (std::ranges::find(kNames, name) == kNames.end()) return error(unknown_workload(name));
  if (num_requests < 1 || num_requests > kMaxRequests) {
    return error(StatusCode::kInvalidArgument, "a workload of " + std::to_string(num_requests) +
                                                   " requests; allowed: 1 .. " + std::to_string(kMaxRequests));
  }
  Trace trace;
  trace.name = std::string(name);
  trace.block_tokens = kBlockTokens;
  if (name == "chat") {
    fill<ChatWorkload>(trace, seed, num_requests);
  } else if (name == "prefix-tree") {
    fill<PrefixTreeWorkload>(trace, seed, num_requests);
  } else {
    fill<OneShotWorkload>(trace, seed, num_requests);
  }
  return trace;
}

}  // namespace hostkv::bench
