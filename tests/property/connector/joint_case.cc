#include "tests/property/connector/joint_case.h"

#include <algorithm>
#include <map>
#include <utility>

#include "connector/prefix_search.h"
#include "tests/support/cache_helpers.h"

namespace hostkv::testing {

std::uint64_t num_known_early = 0;

namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

bool reads_all(const KvCacheGroup& group) {
  return group.kind == GroupKind::kFullAttention || group.kind == GroupKind::kMla;
}

// A device cache that is a map.
class MapDevice final : public EngineBlocks {
 public:
  void pin(std::span<const BlockId>) override {}
  void unpin(std::span<const BlockId>) override {}
  [[nodiscard]] GroupTable block_table(RequestId, GroupIndex, std::int64_t) override { return {}; }
  [[nodiscard]] bool shows_cache() const override { return true; }
  void find_cached(GroupIndex group, std::span<const std::byte> hashes, std::size_t size,
                   std::span<BlockId> blocks) override {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const auto at = cached_.find({group, key_of(hashes.subspan(i * size, size))});
      blocks[i] = at == cached_.end() ? kNullBlock : at->second;
    }
  }
  void put(const HashChain& hashes, GroupIndex group, std::int64_t boundary) {
    cached_[{group, key_of(hashes.at_boundary(boundary))}] = BlockId{++last_block_};
    boundary_of_[BlockId{last_block_}] = {group, boundary};
  }
  // Group and boundary of a block; {group 999, 0}: no such block.
  [[nodiscard]] std::pair<GroupIndex, std::int64_t> key_of_block(BlockId block) const {
    const auto at = boundary_of_.find(block);
    return at == boundary_of_.end() ? std::pair{GroupIndex{999}, std::int64_t{0}} : at->second;
  }

 private:
  static std::string key_of(std::span<const std::byte> hash) {
    return {reinterpret_cast<const char*>(hash.data()), hash.size()};
  }
  std::map<std::pair<GroupIndex, std::string>, BlockId> cached_;
  std::map<BlockId, std::pair<GroupIndex, std::int64_t>> boundary_of_;
  std::uint32_t last_block_ = 0;
};

// Is there a key that covers tokens up to `until` of the block that ends at `block_end`?
bool block_is_there(const JointCase& c, std::uint32_t g, std::int64_t until, std::int64_t block_end,
                    std::int64_t reach) {
  if (until <= c.num_local_tokens) {
    return true;
  }
  for (std::int64_t key = until; key <= std::min(block_end, reach); ++key) {
    if (c.host[g].contains(key) || c.device[g].contains(key)) {
      return true;
    }
  }
  return false;
}

bool group_serves(const JointCase& c, std::uint32_t g, std::int64_t boundary) {
  const KvCacheGroup& group = c.geometry.group(GroupIndex{g});
  const std::int64_t span = group.block_tokens * (group.sharded ? c.geometry.spec().parallel.dcp : 1);
  const bool drops = c.geometry.drops_unit(GroupIndex{g});
  const std::int64_t draft_reach =
      c.geometry.num_groups() == 1 ? std::min(c.num_tokens - 1, c.hashed_tokens) : c.hashed_tokens;
  if (reads_all(group)) {
    const std::int64_t tail = boundary + (drops ? std::min(c.geometry.hit_alignment_tokens(), span) : 0);
    const std::int64_t reach = drops ? draft_reach : c.hashed_tokens;
    for (std::int64_t begin = 0; begin < tail; begin += span) {
      if (!block_is_there(c, g, std::min(begin + span, tail), begin + span, reach)) {
        return false;
      }
    }
    return tail <= reach;
  }
  if (group.kind == GroupKind::kMamba) {
    return c.host[g].contains(boundary) || c.device[g].contains(boundary);
  }
  // Windows and chunks: whole blocks that end at or before the boundary, and the unit behind it.
  std::int64_t first_token = boundary / std::max<std::int64_t>(1, group.chunk_tokens) * group.chunk_tokens;
  std::int64_t end_token = boundary;
  if (group.kind == GroupKind::kSlidingWindow) {
    const std::int64_t read_from = boundary - ceil_div(group.window_tokens - 1, span) * span;
    const std::int64_t kept_from = boundary - (group.window_tokens - 1) - group.extra_retained_tokens;
    // A block under construction of which nothing is read is not kept.
    first_token = std::max<std::int64_t>(0, kept_from >= boundary ? read_from : std::min(read_from, kept_from));
    end_token = boundary + (drops ? span : 0);
  }
  if (end_token > (drops ? draft_reach : c.hashed_tokens)) {
    return false;
  }
  for (std::int64_t begin = first_token / span * span; begin < end_token; begin += span) {
    if (!block_is_there(c, g, begin + span, begin + span, c.hashed_tokens)) {
      return false;
    }
  }
  return true;
}

// The library's answer, with what is behind it.
class Asked {
 public:
  explicit Asked(const JointCase& c)
      : c_(c),
        hashes_(hashes_of(c.geometry, 1, c.hashed_tokens)),
        cache_(lru_cache({64}, 256)),
        search_(c.geometry, cache_, &device_, kTestNamespace) {
    for (std::uint32_t g = 0; g < c.geometry.num_groups(); ++g) {
      for (const std::int64_t key : c.host[g]) {
        store_all(cache_, {StoreWant{.key = key_at(hashes_, GroupIndex{g}, key)}});
      }
      for (const std::int64_t key : c.device[g]) {
        device_.put(hashes_, GroupIndex{g}, key);
      }
    }
  }

  // With the first hashes alone the answer is that of all of them, or it is said that it hangs on more.
  std::string problem_with_some_hashes() {
    const PrefixSearch::Answer all = search_.longest_boundary(hashes_, c_.num_tokens, c_.num_local_tokens);
    const std::vector<std::int64_t> lost = search_.lost_tokens();
    const std::int64_t step = std::max<std::int64_t>(1, hashes_.size() / 4);  // five of them, others in another case
    for (std::int64_t num_hashes = c_.num_tokens % step; num_hashes < hashes_.size(); num_hashes += step) {
      HashChain some = hashes_;
      some.truncate(num_hashes);
      const PrefixSearch::Answer answer = search_.longest_boundary(some, c_.num_tokens, c_.num_local_tokens);
      const bool same = answer.boundary_tokens == all.boundary_tokens &&
                        answer.shared_prefix_tokens == all.shared_prefix_tokens && search_.lost_tokens() == lost;
      if (!answer.hangs_on_hashes && !same) {
        return "with " + std::to_string(num_hashes) + " hashes the boundary is " +
               std::to_string(answer.boundary_tokens) + ", with all " + std::to_string(all.boundary_tokens);
      }
      num_known_early += answer.hangs_on_hashes ? 0 : 1;
    }
    search_.longest_boundary(hashes_, c_.num_tokens, c_.num_local_tokens);
    return "";
  }

  std::string problem() {
    const std::int64_t expected = longest_by_trying_all(c_);
    const std::int64_t got = search_.longest_boundary(hashes_, c_.num_tokens, c_.num_local_tokens).boundary_tokens;
    if (got != expected) {
      return "boundary " + std::to_string(got) + ", expected " + std::to_string(expected);
    }
    if (std::string found = problem_with_some_hashes(); !found.empty()) {
      return found;
    }
    if (got == c_.num_local_tokens) {
      return "";
    }
    std::vector<PromisedBlock> blocks;
    if (!search_.append_needed(hashes_, c_.num_local_tokens, got, blocks)) {
      return "the blocks of the answer cannot be found";
    }
    std::vector<PromisedBlock> again;
    if (!search_.assemble(hashes_, c_.num_local_tokens, got, again) || again.size() != blocks.size()) {
      return "the boundary cannot be assembled again";
    }
    return load_problem(got, blocks);
  }

 private:
  std::string load_problem(std::int64_t boundary, const std::vector<PromisedBlock>& blocks) const {
    std::set<std::pair<std::uint32_t, std::int64_t>> named;
    for (const PromisedBlock& block : blocks) {
      named.emplace(block.group.value(), block.block_index);
      if (const std::string problem = block_problem(boundary, block); !problem.empty()) {
        return "block " + std::to_string(block.block_index) + " of group " + std::to_string(block.group.value()) +
               ": " + problem;
      }
    }
    for (std::uint32_t g = 0; g < c_.geometry.num_groups(); ++g) {
      if (!c_.geometry.offloadable(GroupIndex{g})) {
        continue;
      }
      const BlockIndexRange needed = c_.geometry.needs(GroupIndex{g}, boundary);
      const std::int64_t first =
          std::max(needed.first_block, c_.num_local_tokens / c_.geometry.span_tokens(GroupIndex{g}));
      for (std::int64_t i = first; i < needed.end_block; ++i) {
        if (named.erase({g, i}) == 0) {
          return "the load lacks block " + std::to_string(i) + " of group " + std::to_string(g);
        }
      }
    }
    return named.empty() ? "" : "the load names blocks that nobody needs, or one twice";
  }

  [[nodiscard]] std::string block_problem(std::int64_t boundary, const PromisedBlock& block) const {
    const std::uint32_t g = block.group.value();
    const std::int64_t span = c_.geometry.span_tokens(block.group);
    const std::int64_t block_end = (std::int64_t{block.block_index} + 1) * span;
    const bool is_state = c_.geometry.group(block.group).kind == GroupKind::kMamba;
    const std::int64_t lowest = is_state ? boundary : std::min(boundary, block_end);
    const std::int64_t highest = is_state ? boundary : block_end;
    const bool device_has_it =
        std::ranges::any_of(c_.device[g], [&](std::int64_t key) { return key >= lowest && key <= highest; });
    if (block.entry == kNoEntry) {
      const auto [group, key] = device_.key_of_block(block.device_block);
      return group == block.group && key >= lowest && key <= highest ? "" : "a foreign device block";
    }
    if (device_has_it) {
      return "loaded although the device has it";
    }
    for (std::int64_t key = lowest; key <= highest; ++key) {
      if (c_.host[g].contains(key) && find_in(cache_, key_at(hashes_, block.group, key)) == block.entry) {
        return "";
      }
    }
    return "a foreign host entry";
  }

  const JointCase& c_;
  HashChain hashes_;
  OffloadCache cache_;
  MapDevice device_;
  PrefixSearch search_;
};

template <class Try>
bool drop_keys(JointCase& c, CachedKeys JointCase::*keys, const Try& still_wrong) {
  bool any = false;
  for (std::uint32_t g = 0; g < (c.*keys).size(); ++g) {
    const std::vector<std::int64_t> all((c.*keys)[g].begin(), (c.*keys)[g].end());
    for (const std::int64_t key : all) {
      (c.*keys)[g].erase(key);
      if (still_wrong(c)) {
        any = true;
      } else {
        (c.*keys)[g].insert(key);
      }
    }
  }
  return any;
}

}  // namespace

std::int64_t longest_by_trying_all(const JointCase& c) {
  const std::int64_t step =
      c.geometry.fine_hits() ? c.geometry.hash_block_tokens() : c.geometry.scheduler_block_tokens();
  bool any = false;
  for (std::uint32_t g = 0; g < c.geometry.num_groups(); ++g) {
    any = any || c.geometry.offloadable(GroupIndex{g});
  }
  for (std::int64_t b = std::min(c.num_tokens - 1, c.hashed_tokens); any && b > c.num_local_tokens; --b) {
    bool everywhere = b % step == 0;
    for (std::uint32_t g = 0; everywhere && g < c.geometry.num_groups(); ++g) {
      everywhere = !c.geometry.offloadable(GroupIndex{g}) || group_serves(c, g, b);
    }
    if (everywhere) {
      return b;
    }
  }
  return c.num_local_tokens;
}

std::string problem_of(const JointCase& c) {
  return Asked(c).problem();
}

JointCase shrunk(JointCase c) {
  const auto still_wrong = [](const JointCase& tried) { return !problem_of(tried).empty(); };
  bool smaller = true;
  while (smaller) {
    smaller = drop_keys(c, &JointCase::host, still_wrong) || drop_keys(c, &JointCase::device, still_wrong);
    while (c.num_tokens > c.num_local_tokens + 1) {
      JointCase shorter = c;
      --shorter.num_tokens;
      if (!still_wrong(shorter)) {
        break;
      }
      c = shorter;
    }
  }
  return c;
}

std::string described(const JointCase& c) {
  std::string text = described(c.geometry) + "; fine " + std::to_string(c.geometry.fine_hits()) + "; tokens " +
                     std::to_string(c.num_tokens) + ", hashed " + std::to_string(c.hashed_tokens) + ", local " +
                     std::to_string(c.num_local_tokens);
  for (std::uint32_t g = 0; g < c.geometry.num_groups(); ++g) {
    text += "\n  group " + std::to_string(g) + " host";
    for (const std::int64_t key : c.host[g]) {
      text += " " + std::to_string(key);
    }
    text += ", device";
    for (const std::int64_t key : c.device[g]) {
      text += " " + std::to_string(key);
    }
  }
  return text;
}

std::optional<Geometry> random_joint_geometry(Random& random) {
  GeometrySpec spec = random_spec(random);
  if (one_in(random, 2)) {  // a state larger than the hash block makes boundaries fine
    spec.groups.push_back(mamba(spec.groups.front().block_tokens * pick(random, 1, 3)));
    spec.hash_block_tokens = 1;
    for (const std::int64_t hash : {5, 4, 3, 2}) {
      const bool fits =
          std::ranges::all_of(spec.groups, [&](const KvCacheGroup& group) { return group.block_tokens % hash == 0; });
      if (fits && one_in(random, 2)) {
        spec.hash_block_tokens = hash;
        break;
      }
    }
  }
  const Result<Geometry> engine = Geometry::resolve(spec);
  if (!engine) {
    return std::nullopt;
  }
  const Result<Geometry> working =
      working_geometry(*engine, one_in(random, 8) ? Boundaries::kCoarse : Boundaries::kFine);
  return working ? std::optional(*working) : std::nullopt;
}

}  // namespace hostkv::testing
