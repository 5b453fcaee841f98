// From groups and parallel sizes to spans, scheduler block, hash block and alignment, or the reason why not.

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "geometry/fingerprint.h"
#include "geometry/group_rules.h"
#include "geometry/lookup_rules.h"
#include "hostkv/geometry.h"

namespace hostkv {
namespace {

using detail::kMaxQuantity;

Status refuse(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}

std::int64_t dcp_share(const KvCacheGroup& group, const ParallelLayout& parallel) {
  return group.sharded ? parallel.dcp : 1;
}

std::string span_text(const KvCacheGroup& group, const ParallelLayout& parallel) {
  const std::int64_t share = dcp_share(group, parallel);
  return share == 1
             ? fmt::format("block_tokens {}", group.block_tokens)
             : fmt::format("span {} (block_tokens {} x dcp {})", group.block_tokens * share, group.block_tokens, share);
}

Status check_parts(const GeometrySpec& spec, const std::vector<std::string>& labels) {
  if (spec.groups.empty()) {
    return refuse("geometry: groups is empty; at least one group is needed");
  }
  if (Status status = detail::check_parallel(spec.parallel); !status.ok()) {
    return status;
  }
  for (std::size_t i = 0; i < spec.groups.size(); ++i) {
    if (Status status = detail::check_group(labels[i], spec.groups[i]); !status.ok()) {
      return status;
    }
    if (Status status = detail::check_interleave(labels[i], spec.groups[i], spec.parallel); !status.ok()) {
      return status;
    }
  }
  return detail::check_drafts(spec.groups, labels);
}

Result<std::vector<std::int64_t>> resolve_spans(const GeometrySpec& spec, const std::vector<std::string>& labels) {
  std::vector<std::int64_t> spans;
  for (std::size_t i = 0; i < spec.groups.size(); ++i) {
    const KvCacheGroup& group = spec.groups[i];
    const std::int64_t share = dcp_share(group, spec.parallel);
    if (group.block_tokens > kMaxQuantity / share) {
      return error(refuse(fmt::format("{}: block_tokens {} x dcp {} is over the largest span {}", labels[i],
                                      group.block_tokens, share, kMaxQuantity)));
    }
    spans.push_back(group.block_tokens * share);
  }
  return spans;
}

// The multiple over all groups, scratch included: so does the engine.
Result<std::int64_t> resolve_scheduler_block(const std::vector<std::int64_t>& spans,
                                             const std::vector<std::string>& labels) {
  std::int64_t block = 1;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const std::int64_t factor = spans[i] / std::gcd(block, spans[i]);
    if (block > kMaxQuantity / factor) {
      return error(
          refuse(fmt::format("{}: span {} makes the common multiple of all spans larger than {}; choose sizes that "
                             "have more divisors in common (so far {})",
                             labels[i], spans[i], kMaxQuantity, block)));
    }
    block *= factor;
  }
  return block;
}

// Hashes are per scheduler block where nothing looks them up, and where a state is not kept at hand-off boundaries.
bool hashes_are_coarse(const GeometrySpec& spec) {
  const bool states_elsewhere = std::any_of(spec.groups.begin(), spec.groups.end(), [](const KvCacheGroup& group) {
    return group.kind == GroupKind::kMamba && group.cacheable && group.mamba_mode != MambaMode::kAlign;
  });
  return (!spec.prefix_caching && !spec.connector) || states_elsewhere;
}

Status check_hash_block(const GeometrySpec& spec, const std::vector<std::string>& labels,
                        const std::vector<std::int64_t>& spans, std::int64_t hash) {
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const KvCacheGroup& group = spec.groups[i];
    if (!detail::takes_part(group)) {
      continue;
    }
    if (spans[i] % hash != 0) {
      return refuse(fmt::format("{}: {} is not a multiple of the hash block {}; make it a multiple of {}", labels[i],
                                span_text(group, spec.parallel), hash, hash));
    }
    if (hash % group.tokens_per_entry != 0) {
      return refuse(
          fmt::format("{}: tokens_per_entry {} does not divide the hash block {}: a hit could end inside an "
                      "entry; make the hash block a multiple of {}",
                      labels[i], group.tokens_per_entry, hash, group.tokens_per_entry));
    }
  }
  if (spans.size() == 1 && hash != spans[0]) {
    return refuse(
        fmt::format("{}: hash block {} is not the {}: hits of a single group end at its blocks; leave the "
                    "hash block out or set it to {}",
                    labels[0], hash, span_text(spec.groups[0], spec.parallel), spans[0]));
  }
  return {};
}

Result<std::int64_t> resolve_hash_block(const GeometrySpec& spec, const std::vector<std::string>& labels,
                                        const std::vector<std::int64_t>& spans, std::int64_t scheduler_block) {
  if (spec.hash_block_tokens && (*spec.hash_block_tokens < 1 || *spec.hash_block_tokens > kMaxQuantity)) {
    return error(refuse(fmt::format("geometry: hash_block_tokens {} is out of range; allowed: 1 to {}",
                                    *spec.hash_block_tokens, kMaxQuantity)));
  }
  if (hashes_are_coarse(spec)) {
    return scheduler_block;
  }
  std::int64_t common = 0;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    common = detail::takes_part(spec.groups[i]) ? std::gcd(common, spans[i]) : common;
  }
  if (common == 0) {
    return scheduler_block;
  }
  const std::int64_t hash = spec.hash_block_tokens.value_or(common);
  if (Status status = check_hash_block(spec, labels, spans, hash); !status.ok()) {
    return error(std::move(status));
  }
  return hash;
}

bool is_offloadable(const KvCacheGroup& group) {
  const bool keeps_one_state = group.kind == GroupKind::kMamba && group.mamba_mode == MambaMode::kNone;
  return detail::takes_part(group) && group.transferable && !keeps_one_state;
}

}  // namespace

Result<Geometry> Geometry::resolve(GeometrySpec spec) {
  Geometry made;
  for (std::size_t i = 0; i < spec.groups.size(); ++i) {
    made.labels_.push_back(detail::make_group_label(i, spec.groups[i]));
    made.offloadable_.push_back(is_offloadable(spec.groups[i]));
  }
  if (Status status = check_parts(spec, made.labels_); !status.ok()) {
    return error(std::move(status));
  }
  Result<std::vector<std::int64_t>> spans = resolve_spans(spec, made.labels_);
  if (!spans) {
    return error(std::move(spans.error()));
  }
  const Result<std::int64_t> scheduler_block = resolve_scheduler_block(*spans, made.labels_);
  if (!scheduler_block) {
    return error(scheduler_block.error());
  }
  const Result<std::int64_t> hash_block = resolve_hash_block(spec, made.labels_, *spans, *scheduler_block);
  if (!hash_block) {
    return error(hash_block.error());
  }
  const detail::HitRules rules{spec, made.labels_, *spans, *scheduler_block, *hash_block};
  const Result<bool> fine = detail::resolve_fine_hits(rules);
  if (!fine) {
    return error(fine.error());
  }
  const std::int64_t alignment = *fine ? *hash_block : *scheduler_block;
  if (Status status = detail::check_chunked_alignment(rules, alignment); !status.ok()) {
    return error(std::move(status));
  }
  made.drops_unit_ = detail::groups_that_drop(spec.groups);
  made.scheduler_block_tokens_ = *scheduler_block;
  made.hash_block_tokens_ = *hash_block;
  made.hit_alignment_tokens_ = alignment;
  made.fine_hits_ = *fine;
  made.fingerprint_ = detail::fingerprint_of(spec, *hash_block);
  made.spans_ = *std::move(spans);
  made.spec_ = std::move(spec);
  return made;
}

}  // namespace hostkv
