"""Requests whose load failed and that wait to be admitted again: what keeps vLLM's scheduler from standing still.

vLLM (0.31 to 0.33) leaves such a request at the head of the queue of those that hold blocks, although it holds none any
more, and goes on counting its whole length among the blocks that loads must leave free. Where its next load does not
fit, nobody behind it is looked at, and those may be the ones that hold the blocks. So the first lookup is answered with
"ask again", which takes the request out of that queue, and a load is promised only where it will fit in the end: to
others as well, since one that is preempted is put in front of those whose load failed and would wait for them.
"""

from __future__ import annotations

from typing import Any

from hostkv import _core
from hostkv.vllm.geometry import can_be_cut_in_place

_STATE_BLOCKS = 4  # running, previous, exported, and one copied on write


class FailedLoads:
    """One thread, the scheduler's. Ids that are unknown are no failed loads."""

    def __init__(self, kv_cache_config: Any, geometry: _core.Geometry) -> None:
        self._num_blocks = int(kv_cache_config.num_blocks) - 1
        self._groups = [
            (getattr(group.kv_cache_spec, "num_speculative_blocks", None), geometry.span_tokens(index))
            for index, group in enumerate(kv_cache_config.kv_cache_groups)
        ]
        self._can_be_cut = can_be_cut_in_place(kv_cache_config)
        self._blocks: dict[str, int] = {}  # request -> most blocks that it may hold at once
        self._asked: set[str] = set()

    def add(self, request: Any) -> None:
        """Its load failed; every block of it is given back."""
        self._blocks[request.request_id] = self._most_blocks(request)

    def was_cut(self, request: Any, output: Any) -> bool:
        """Was the end of its load told together with the blocks that failed, and nothing else of it?

        The engine has then set the request back to the first of them.
        """
        ended = request.request_id in (output.finished_recving or ())
        return self._can_be_cut and ended and request.request_id not in (getattr(output, "failed_recving", None) or ())

    def _most_blocks(self, request: Any) -> int:
        num_tokens = request.num_tokens + 64  # drafts and what is sampled before the next lookup
        return sum(
            -(-num_tokens // span) + 1 if num_drafts is None else _STATE_BLOCKS + num_drafts
            for num_drafts, span in self._groups
        )

    def asks_first(self, request_id: str) -> bool:
        """Is this the first lookup since?"""
        if request_id not in self._blocks or request_id in self._asked:
            return False
        self._asked.add(request_id)
        return True

    def may_load(self, request: Any) -> bool:
        """Will there be room beside all that vLLM keeps free for failed loads, once the others are through?"""
        if not self._blocks:
            return True
        return self._most_blocks(request) + sum(self._blocks.values()) <= self._num_blocks

    def forget(self, request_id: str) -> None:
        """Admitted again, or gone."""
        self._blocks.pop(request_id, None)
        self._asked.discard(request_id)
