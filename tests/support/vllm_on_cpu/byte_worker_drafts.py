"""The layers of a draft model (EAGLE, MTP) in the byte worker.

Their input is shifted: the row of a token is made of the token behind it too, the sampled one at the end of a step,
the prompt's next one inside a prefill. So the last row of a hit is right only where the token behind the hit is the one
that was there when the row was made; for that vLLM's lookups drop what they found last. Rows of rejected tokens, and
those of the tokens that are being proposed, are written and count for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vllm_on_cpu.byte_worker_groups import Group, Layout, Places, places
from vllm_on_cpu.byte_worker_memory import Memory, WrongByte
from vllm_on_cpu.byte_worker_requests import Chunk


class DraftLayers:
    """Of the groups that have some."""

    def __init__(self, groups: Sequence[Group], layout: Layout, memory: Memory, num_drafts: int) -> None:
        self._groups = [group for group in groups if group.draft_rows]
        self._layout, self._memory, self._num_drafts = layout, memory, num_drafts
        self.rows_checked = 0

    def run(self, chunks: Sequence[Chunk], skip_drafts: bool) -> None:
        """Behind the sampling of a step: one pass over its tokens, then one for each further draft. All write before
        any reads."""
        for group in self._groups:
            for chunk in chunks:
                self._write(chunk, group)
            for chunk in chunks:
                self._check(chunk, group)
            for chunk in chunks:
                if not skip_drafts:
                    self._spoil(chunk, group, chunk.request.computed, chunk.request.computed + self._num_drafts - 1)

    def _places(self, group: Group, begin: int, end: int) -> Places:
        at = places(group, self._layout, begin, max(begin, end))
        return replace(at, words=at.words + group.first_draft_word)

    def _write(self, chunk: Chunk, group: Group) -> None:
        request = chunk.request
        at, table = self._there(chunk, group, chunk.begin, request.computed)
        numbers = request.truth.numbers(request.computed + 1)
        self._memory.write_rows(group, table, at, numbers, draft=True)
        self._spoil(chunk, group, request.computed, chunk.end)

    def _spoil(self, chunk: Chunk, group: Group, begin: int, end: int) -> None:
        at, table = self._there(chunk, group, begin, end)
        self._memory.spoil_rows(table, at)

    def _there(self, chunk: Chunk, group: Group, begin: int, end: int) -> tuple[Places, list[int]]:
        """Places that are to be written, and the table with a block for each."""
        at, table = self._places(group, begin, end), chunk.request.tables[group.index]
        there = all(column < len(table) and table[column] != 0 for column in np.unique(at.columns))
        chunk.request.check(there, f"group {group.index} has no block for drafts {begin} to {end}")
        return at, table

    def _check(self, chunk: Chunk, group: Group) -> None:
        request = chunk.request
        first = group.first_read(chunk.begin, request.own_start)
        at = self._places(group, min(first, chunk.begin), chunk.begin)
        table = request.tables[group.index]
        wrong = self._memory.wrong_row(group, table, at, request.truth.numbers(chunk.begin + 1), draft=True)
        self.rows_checked += len(at.tokens)
        if wrong is not None:
            rank, token = wrong
            raise WrongByte(
                f"{request.name} at {chunk.begin}: group {group.index} ({group.kind}, draft), rank {rank}, token "
                f"{token} in block {table[token // group.span(self._layout)]}"
            )
