"""Host hits as they must be, from the engine's published geometry and what was computed: written without HostKV.

Every model here resolves to scheduler block S = hash block h without hits inside blocks unless a test turns them on,
so a boundary is a multiple of `unit` (S, or h with fine hits). A prompt of N tokens can hit at most N - 1: one token
must be computed for the first output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Geometry:
    unit: int
    has_state: bool  # a recurrent group: resumes at stored states only
    window: int | None  # the widest sliding window

    @staticmethod
    def of(engine: Any) -> Geometry:
        from vllm.v1.kv_cache_interface import MambaSpec, SlidingWindowSpec

        config = engine.scheduler.kv_cache_config
        specs = [group.kv_cache_spec for group in config.kv_cache_groups]
        windows = [spec.sliding_window for spec in specs if isinstance(spec, SlidingWindowSpec)]
        return Geometry(
            engine.scheduler.block_size, any(isinstance(s, MambaSpec) for s in specs), max(windows, default=None)
        )

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
