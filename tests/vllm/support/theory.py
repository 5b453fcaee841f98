"""Host hits as they must be, from the engine's published geometry and what was computed: written without HostKV.

A boundary is a multiple of `unit`. One rank, or several that hold the same tokens: every model here resolves to
scheduler block S = hash block h without hits inside blocks unless a test turns them on, and `unit` is S. Ranks that
share a sequence (decode context parallelism) stretch a block of full attention over the tokens of all of them, and not
that of a state: hybrids then hit on the greatest common divisor of the spans. A prompt of N tokens can hit at most
N - 1: one token must be computed for the first output.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Geometry:
    unit: int
    has_state: bool  # a recurrent group: resumes at stored states only
    window: int | None  # the widest sliding window
    spans: tuple[int, ...] = ()  # tokens of one block of each group, over all ranks

    @staticmethod
    def of(engine: Any) -> Geometry:
        from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec

        config = engine.scheduler.kv_cache_config
        num_sharing = engine.core.vllm_config.parallel_config.decode_context_parallel_size
        specs = [group.kv_cache_spec for group in config.kv_cache_groups]
        windows = [spec.sliding_window for spec in specs if isinstance(spec, SlidingWindowSpec)]
        spans = tuple(s.block_size * (num_sharing if isinstance(s, FullAttentionSpec) else 1) for s in specs)
        has_state = any(isinstance(s, MambaSpec) for s in specs)
        fine = has_state and num_sharing > 1
        unit = math.gcd(*spans) if fine else engine.scheduler.block_size
        return Geometry(unit, has_state, max(windows, default=None), spans)

    @property
    def scheduler_block(self) -> int:
        return math.lcm(*self.spans)

    def down(self, tokens: int) -> int:
        return tokens // self.unit * self.unit

    def replay_boundary(self, prompt_tokens: int) -> int:
        """Where a prompt seen before resumes: the last boundary in front of its last token. Its state was handed off
        there; attention has every block below it."""
        return self.down(prompt_tokens - 1)

    def shared_boundary(self, shared_tokens: int, prompt_tokens: int, states: tuple[int, ...]) -> int:
        """Where a prompt resumes that shares its first tokens with one stored before. `states`: boundaries whose state
        was handed off within the shared tokens."""
        limit = min(self.down(shared_tokens), self.down(prompt_tokens - 1))
        if not self.has_state:
            return limit
        return max((state for state in states if state <= limit), default=0)


@dataclass(frozen=True)
class Group:
    """`reach`: tokens before the next one that it reads; None: all. `is_state`: one state of all tokens so far."""

    span: int
    reach: int | None = None
    is_state: bool = False

    def needs(self, boundary: int) -> range:
        """Blocks that must be whole to go on behind `boundary` tokens; of a state the one that ends there."""
        if self.is_state:
            return range((boundary - 1) // self.span, -(-boundary // self.span))
        first = 0 if self.reach is None else max(0, boundary - self.reach)
        return range(first // self.span, -(-boundary // self.span))

    @staticmethod
    def all_of(engine: Any) -> list[Group]:
        from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec

        num_sharing = engine.core.vllm_config.parallel_config.decode_context_parallel_size
        groups = []
        for group in engine.scheduler.kv_cache_config.kv_cache_groups:
            spec = group.kv_cache_spec
            sharing = num_sharing if isinstance(spec, FullAttentionSpec) else 1
            reach = spec.sliding_window - 1 if isinstance(spec, SlidingWindowSpec) else None
            groups.append(Group(spec.block_size * sharing, reach, isinstance(spec, MambaSpec)))
        return groups


def resume_boundary(groups: list[Group], boundaries: Iterable[int], failed: tuple[int, int]) -> int:
    """The longest of `boundaries` at which no group needs the failed (group, block index); else 0."""
    number, block = failed
    return max((b for b in boundaries if block not in groups[number].needs(b)), default=0)


def rows_held(rank: int, tokens: int, num_ranks: int, interleave: int) -> int:
    """How many of a sequence's (or one block's) first tokens a rank holds, dealt out `interleave` at a time."""
    turn = num_ranks * interleave
    return tokens // turn * interleave + max(0, min(interleave, tokens % turn - rank * interleave))
