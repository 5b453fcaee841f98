// Lookups against an oracle that tries every boundary from the top and looks at every block of every group.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/property/connector/host_shelf.h"
#include "tests/support/random_geometry.h"

namespace hostkv::testing {
namespace {

struct Case {
  const Geometry& geometry;
  CachedKeys keys;  // [group]
  std::int64_t hashed_tokens = 0;
  std::int64_t num_tokens = 0;
  std::int64_t num_local_tokens = 0;
};

bool is_there(const Case& c, GroupIndex g, std::int64_t end_tokens) {
  return end_tokens <= c.num_local_tokens || c.keys[g.value()].contains(end_tokens);
}

// A single group never looks behind the last token but one, several look at every whole hash block.
std::int64_t reach_of(const Case& c) {
  return c.geometry.num_groups() == 1 ? std::min(c.num_tokens - 1, c.hashed_tokens) : c.hashed_tokens;
}

// Every block that a lookup must see and every one that a load copies.
bool group_answers(const Case& c, GroupIndex g, std::int64_t boundary) {
  const auto need = c.geometry.lookup_need(g, boundary);
  if (!need || need->tail_boundary_tokens > reach_of(c)) {
    return false;
  }
  const std::int64_t span = c.geometry.span_tokens(g);
  for (std::int64_t i = need->blocks.first_block; i < need->blocks.end_block; ++i) {
    if (!is_there(c, g, i + 1 == need->blocks.end_block ? need->tail_boundary_tokens : (i + 1) * span)) {
      return false;
    }
  }
  const BlockIndexRange load = c.geometry.needs(g, boundary);
  for (std::int64_t i = load.first_block; i < load.end_block; ++i) {
    if (!is_there(c, g, (i + 1) * span)) {
      return false;
    }
  }
  return true;
}

std::int64_t oracle_hit(const Case& c) {
  bool any = false;
  for (std::uint32_t g = 0; g < c.geometry.num_groups(); ++g) {
    any = any || c.geometry.offloadable(GroupIndex{g});
  }
  for (std::int64_t boundary = std::min(c.num_tokens - 1, c.hashed_tokens); any && boundary > c.num_local_tokens;
       --boundary) {
    bool everywhere = boundary % c.geometry.scheduler_block_tokens() == 0;
    for (std::uint32_t g = 0; everywhere && g < c.geometry.num_groups(); ++g) {
      everywhere = !c.geometry.offloadable(GroupIndex{g}) || group_answers(c, GroupIndex{g}, boundary);
    }
    if (everywhere) {
      return boundary;
    }
  }
  return c.num_local_tokens;
}

HostShelf::Load oracle_load(const Case& c, std::int64_t boundary) {
  HostShelf::Load load;
  for (std::uint32_t g = 0; g < c.geometry.num_groups(); ++g) {
    if (!c.geometry.offloadable(GroupIndex{g})) {
      continue;
    }
    const BlockIndexRange range = c.geometry.needs(GroupIndex{g}, boundary);
    for (std::int64_t i = range.first_block; i < range.end_block; ++i) {
      if ((i + 1) * c.geometry.span_tokens(GroupIndex{g}) > c.num_local_tokens) {
        load.emplace_back(g, i);
      }
    }
  }
  return load;
}

// Presence in runs: a hit needs many blocks at once.
std::set<std::int64_t> random_keys(Random& random, std::int64_t span, std::int64_t hashed_tokens) {
  std::set<std::int64_t> keys;
  constexpr double kShares[] = {0.0, 0.6, 0.9, 0.97, 1.0, 1.0};
  const double share = kShares[pick(random, 0, 5)];
  for (std::int64_t boundary = span; boundary <= hashed_tokens; boundary += span) {
    if (happens(random, share)) {
      keys.insert(boundary);
    }
  }
  return keys;
}

class SearchProperty {
 public:
  explicit SearchProperty(Random& random) : random_(random) {}

  void check(const Geometry& geometry) {
    const std::int64_t step = geometry.scheduler_block_tokens();
    const std::int64_t unit = geometry.hash_block_tokens();
    const std::int64_t hashed = pick(random_, 0, std::min<std::int64_t>(8 * step, 600)) / unit * unit;
    HostShelf host(geometry, hashed);
    Case c{.geometry = geometry, .keys = {}, .hashed_tokens = hashed};
    for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
      c.keys.push_back(random_keys(random_, std::max(unit, geometry.span_tokens(GroupIndex{g})), hashed));
      if (geometry.offloadable(GroupIndex{g})) {
        host.put(g, c.keys.back());
      }
    }
    for (int lookup = 0; lookup < 8; ++lookup) {
      c.num_tokens = pick(random_, 1, hashed + step);
      c.num_local_tokens = one_in(random_, 2) ? 0 : pick(random_, 0, (c.num_tokens - 1) / step) * step;
      check_lookup(c, host);
    }
  }

  int num_cases = 0;
  int num_hits = 0;
  int num_cut = 0;  // hits below what the length would allow

 private:
  void check_lookup(const Case& c, HostShelf& host) {
    SCOPED_TRACE(::testing::Message() << "tokens " << c.num_tokens << " local " << c.num_local_tokens);
    const std::int64_t hit = host.hit(c.num_tokens, c.num_local_tokens);
    ASSERT_EQ(hit, oracle_hit(c));
    ++num_cases;
    if (hit > c.num_local_tokens) {
      ++num_hits;
      num_cut += hit + c.geometry.scheduler_block_tokens() < c.num_tokens ? 1 : 0;
      ASSERT_EQ(host.load(c.num_local_tokens, hit), oracle_load(c, hit));
    }
  }

  Random& random_;
};

TEST(PrefixSearch, AgreesWithTryingEveryBoundaryOverRandomGeometriesAndCaches) {
  const std::uint64_t seed = test_seed();
  RecordProperty("seed", std::to_string(seed));
  Random random(seed);
  SearchProperty property(random);
  int resolved_specs = 0;
  int refused = 0;
  int dropping = 0;
  for (std::uint64_t round = 0; round < test_rounds(5'000); ++round) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " round " << round);
    const Result<Geometry> fine = Geometry::resolve(random_spec(random));
    if (!fine) {
      continue;
    }
    const Result<Geometry> geometry = working_geometry(*fine, Boundaries::kCoarse);
    if (!geometry) {
      ++refused;
      continue;
    }
    ++resolved_specs;
    for (std::uint32_t g = 0; g < geometry->num_groups(); ++g) {
      dropping += geometry->drops_unit(GroupIndex{g}) ? 1 : 0;
    }
    SCOPED_TRACE(described(*geometry));
    property.check(*geometry);
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
  RecordProperty("cases", property.num_cases);
  RecordProperty("hits", property.num_hits);
  EXPECT_GT(resolved_specs, refused) << "blocks that end at no hash are rare";
  EXPECT_GT(dropping, 0);
  EXPECT_GT(property.num_hits, property.num_cases / 10);
  EXPECT_GT(property.num_cut, 0);
}

}  // namespace
}  // namespace hostkv::testing
