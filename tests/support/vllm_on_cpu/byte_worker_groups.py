"""How the groups of a KV cache configuration read and write: kinds, spans, reach, and the place of each token."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from vllm.v1 import kv_cache_interface as specs

STATE_WORDS = 2
DRAFT_LAYER = "draft"  # names of layers of a draft model begin so


@dataclass(frozen=True)
class Layout:
    """Of the ranks: rank % dcp owns a share of each sharded block, `interleave` tokens at a time."""

    num_ranks: int = 1
    dcp: int = 1
    interleave: int = 1


@dataclass(frozen=True)
class Group:
    """kind: "full", "window", "chunked", "ring" or "state". reach: tokens that a query sees, its own among them.

    target_rows, draft_rows: has layers of the model itself, of a draft model. Where it has both, a token has a row of
    each.
    """

    index: int
    kind: str
    block_tokens: int
    sharded: bool
    reach: int = 0
    entry_tokens: int = 1
    num_speculative: int = 0
    checkpoint_alignment: int | None = None
    exports: bool = False
    target_rows: bool = True
    draft_rows: bool = False

    def span(self, layout: Layout) -> int:
        return self.block_tokens * (layout.dcp if self.sharded else 1)

    @property
    def num_words(self) -> int:
        """Of a block on one rank."""
        if self.kind == "state":
            return STATE_WORDS + 1 + self.num_speculative
        return self.block_tokens // self.entry_tokens * (self.target_rows + self.draft_rows)

    @property
    def first_draft_word(self) -> int:
        """Of a block, behind the rows of the model itself."""
        return self.block_tokens // self.entry_tokens * self.target_rows

    def first_read(self, begin: int, own_start: int) -> int:
        """The first token that a query at `begin` sees; own_start: where this admission began to compute."""
        if self.kind == "window":
            return max(0, begin - self.reach + 1)
        if self.kind == "chunked":
            return begin // self.reach * self.reach
        if self.kind == "ring":
            return max(own_start, begin - self.reach)
        return 0


@dataclass(frozen=True)
class Places:
    """Of tokens of one group, element by element: column of the table, word in the block, owner among the DCP ranks."""

    tokens: np.ndarray
    columns: np.ndarray
    words: np.ndarray
    owners: np.ndarray | None


def places(group: Group, layout: Layout, begin: int, end: int) -> Places:
    """Of the tokens [begin, end). With several tokens an entry: of the last token of each entry that ends there."""
    tokens = np.arange(begin, end)
    if group.entry_tokens > 1:
        tokens = tokens[(tokens + 1) % group.entry_tokens == 0]
    if group.kind == "ring":
        return Places(tokens, np.zeros_like(tokens), tokens % group.block_tokens, None)
    span = group.span(layout)
    offsets = tokens % span
    if not group.sharded or layout.dcp == 1:
        return Places(tokens, tokens // span, offsets // group.entry_tokens, None)
    turn = layout.interleave * layout.dcp
    owners = offsets // layout.interleave % layout.dcp
    words = offsets // turn * layout.interleave + offsets % layout.interleave
    return Places(tokens, tokens // span, words, owners)


def group_of(index: int, spec: Any, dcp: int) -> Group:
    """ValueError for a spec that the byte worker does not know."""
    if isinstance(spec, specs.UniformTypeKVCacheSpecs):
        spec = next(iter(spec.kv_cache_specs.values()))
    if isinstance(spec, specs.MambaSpec):
        return Group(
            index, "state", spec.block_size, False,
            num_speculative=spec.num_speculative_blocks,
            checkpoint_alignment=getattr(spec, "prefill_checkpoint_alignment", None),
            exports=spec.num_prefill_checkpoint_blocks > 0,
        )  # fmt: skip
    sharded = bool(getattr(spec, "dcp_sharded", isinstance(spec, specs.FullAttentionSpec))) and dcp > 1
    entry = spec.tokens_per_state if isinstance(spec.tokens_per_state, int) else 1
    if sharded and entry > 1:
        raise ValueError("several tokens an entry under decode context parallelism are not modelled")
    if not spec.prefix_cacheable:
        return Group(index, "ring", spec.block_size, False, reach=spec.block_size)
    if isinstance(spec, specs.SlidingWindowSpec):
        return Group(index, "window", spec.block_size, sharded, spec.sliding_window, entry)
    if isinstance(spec, specs.ChunkedLocalAttentionSpec):
        return Group(index, "chunked", spec.block_size, sharded, spec.attention_chunk_size, entry)
    if isinstance(spec, specs.FullAttentionSpec):
        return Group(index, "full", spec.block_size, sharded, entry_tokens=entry)
    raise ValueError(f"group {index}: {type(spec).__name__} is not modelled")


def groups_of(kv_cache_config: Any, dcp: int) -> list[Group]:
    return [_with_layers(index, group, dcp) for index, group in enumerate(kv_cache_config.kv_cache_groups)]


def _with_layers(index: int, of: Any, dcp: int) -> Group:
    group = group_of(index, of.kv_cache_spec, dcp)
    drafts = [name.startswith(DRAFT_LAYER) for name in of.layer_names]
    if not any(drafts):
        return group
    if group.kind not in ("full", "window") or group.entry_tokens > 1:
        raise ValueError(f"group {index}: layers of a draft model are modelled in full attention and windows only")
    return replace(group, target_rows=not all(drafts), draft_rows=True)
