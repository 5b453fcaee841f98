#include "geometry/range_overlap.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace hostkv::detail {
namespace {

OverlappingRanges in_order(std::size_t a, std::size_t b, bool different_strides) {
  return {std::min(a, b), std::max(a, b), different_strides};
}

// Memory as a grid whose rows are `stride` bytes long: block b of a range fills the same columns of row (first_row +
// b). A range that wraps over the end of a row makes two pieces.
struct Piece {
  std::int64_t begin_column = 0;
  std::int64_t end_column = 0;
  std::int64_t first_row = 0;
  std::size_t range = 0;
};

void add_pieces(const KvBlockRange& range, std::size_t index, std::vector<Piece>& pieces) {
  const std::int64_t stride = range.block_stride_bytes;
  const std::int64_t column = range.offset_bytes % stride;
  const std::int64_t row = range.offset_bytes / stride;
  const std::int64_t in_row = std::min(range.size_bytes, stride - column);
  pieces.push_back({column, column + in_row, row, index});
  if (in_row < range.size_bytes) {
    pieces.push_back({0, range.size_bytes - in_row, row + 1, index});
  }
}

// Rectangles of equal height `num_blocks`: a sweep over the columns with the active first rows in order.
std::optional<OverlappingRanges> sweep(std::vector<Piece> pieces, std::int64_t num_blocks) {
  std::sort(pieces.begin(), pieces.end(),
            [](const Piece& a, const Piece& b) { return a.begin_column < b.begin_column; });
  std::multimap<std::int64_t, const Piece*> by_end;
  std::map<std::int64_t, const Piece*> active;
  for (const Piece& piece : pieces) {
    while (!by_end.empty() && by_end.begin()->first <= piece.begin_column) {
      active.erase(by_end.begin()->second->first_row);
      by_end.erase(by_end.begin());
    }
    const auto above = active.lower_bound(piece.first_row);
    if (above != active.end() && above->first - piece.first_row < num_blocks) {
      return in_order(above->second->range, piece.range, false);
    }
    if (above != active.begin() && piece.first_row - std::prev(above)->first < num_blocks) {
      return in_order(std::prev(above)->second->range, piece.range, false);
    }
    active.emplace(piece.first_row, &piece);
    by_end.emplace(piece.end_column, &piece);
  }
  return std::nullopt;
}

struct Hull {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t stride = 0;
  std::size_t range = 0;
};

// Hulls of one region in order of their begin: does one begin inside an earlier one of another stride?
std::optional<OverlappingRanges> find_mixed_strides(std::vector<Hull> hulls) {
  std::sort(hulls.begin(), hulls.end(), [](const Hull& a, const Hull& b) { return a.begin < b.begin; });
  const Hull* farthest = nullptr;
  const Hull* farthest_of_other_stride = nullptr;
  for (const Hull& hull : hulls) {
    for (const Hull* earlier : {farthest, farthest_of_other_stride}) {
      if (earlier != nullptr && earlier->stride != hull.stride && hull.begin < earlier->end) {
        return in_order(earlier->range, hull.range, true);
      }
    }
    if (farthest == nullptr || hull.end > farthest->end) {
      if (farthest != nullptr && farthest->stride != hull.stride) {
        farthest_of_other_stride = farthest;
      }
      farthest = &hull;
    } else if (hull.stride != farthest->stride &&
               (farthest_of_other_stride == nullptr || hull.end > farthest_of_other_stride->end)) {
      farthest_of_other_stride = &hull;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<OverlappingRanges> find_overlap(const std::vector<KvBlockRange>& ranges, std::int64_t num_blocks) {
  std::map<std::uint32_t, std::vector<Hull>> hulls;
  std::map<std::pair<std::uint32_t, std::int64_t>, std::vector<Piece>> grids;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const KvBlockRange& range = ranges[i];
    const std::int64_t last = range.offset_bytes + (num_blocks - 1) * range.block_stride_bytes;
    hulls[range.region].push_back({range.offset_bytes, last + range.size_bytes, range.block_stride_bytes, i});
    add_pieces(range, i, grids[{range.region, range.block_stride_bytes}]);
  }
  for (auto& [key, pieces] : grids) {
    if (auto found = sweep(std::move(pieces), num_blocks)) {
      return found;
    }
  }
  for (auto& [region, of_region] : hulls) {
    if (auto found = find_mixed_strides(std::move(of_region))) {
      return found;
    }
  }
  return std::nullopt;
}

}  // namespace hostkv::detail
