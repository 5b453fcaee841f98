"""A worker without a model: executes vLLM's SchedulerOutput by writing and checking position-dependent bytes.

Only what an output says is used: block ids of new, running and resumed requests, zeroing, block copies, drafts. The
states of align mode move as in vLLM's worker (vllm/v1/worker/mamba_utils.py): before the forward pass from the column
of the last step, behind it to the column of a boundary that accepted drafts passed; a prefill may export one state
inside its chunk. All ranks at once. A wrong byte raises WrongByte with request, group, rank and token.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from vllm.v1.kv_cache_interface import get_mamba_prefill_checkpoint_position, is_mamba_prefill_checkpoint_valid

from vllm_on_cpu.byte_worker_drafts import DraftLayers
from vllm_on_cpu.byte_worker_groups import Group, Layout, groups_of, places
from vllm_on_cpu.byte_worker_memory import Memory, WrongByte
from vllm_on_cpu.byte_worker_requests import Chunk, Requests
from vllm_on_cpu.byte_worker_tokens import FIRST_OUTPUT, NUM_OUTPUTS


@dataclass(frozen=True)
class Setup:
    """hash_block, alignment: as the engine resolved them. drops_unit: its lookups drop what they found last, and states
    are exported one unit further in front. draft_hits: how likely a draft is right."""

    layout: Layout
    hash_block: int
    alignment: int
    v2: bool = False
    num_drafts: int = 0
    drops_unit: bool = False
    draft_hits: float = 0.6


@dataclass
class Result:
    """Of one step, in the order of the scheduled requests. sampled: no token for a prompt that is not through."""

    names: list[str] = field(default_factory=list)
    sampled: list[list[int]] = field(default_factory=list)
    drafts: list[list[int]] = field(default_factory=list)


class ByteWorker:
    """execute() is one step of every rank; the connector's copies are somebody else's, through `memory`."""

    def __init__(self, kv_cache_config: Any, setup: Setup, numbers: random.Random) -> None:
        self.setup = setup
        self.groups = groups_of(kv_cache_config, setup.layout.dcp)
        self.memory = Memory(self.groups, setup.layout, kv_cache_config.num_blocks)
        self.draft_layers = DraftLayers(self.groups, setup.layout, self.memory, setup.num_drafts)
        self.requests = Requests(setup.v2)
        self._numbers = numbers
        self._step = 0
        self.rows_checked = self.states_checked = self.exports = self.drafts_accepted = self.drafts_rejected = 0

    def execute(self, output: Any, processed: int) -> Result:
        """processed: see Requests.take."""
        if output.new_block_ids_to_zero:
            self.memory.zero(output.new_block_ids_to_zero)
        if output.kv_cache_block_copies:
            self.memory.copy(output.kv_cache_block_copies)
        chunks = self.requests.take(output, self._step, processed)
        self._forward(chunks)
        skip_drafts = bool(getattr(output, "skip_drafts", False))
        result = self._sample(chunks, skip_drafts)
        self.draft_layers.run(chunks, skip_drafts)
        self._step += 1
        return result

    def _forward(self, chunks: Sequence[Chunk]) -> None:
        """Keys and values of all requests are written before any of them is read, layer by layer."""
        for chunk, group in self._each(chunks, states=True):
            self._move_state(chunk, group)
        for chunk, group in self._each(chunks, states=True):
            self._check_state(chunk, group)
        for chunk, group in self._each(chunks, states=False):
            self._write_rows(chunk, group)
        for chunk, group in self._each(chunks, states=False):
            self._check_rows(chunk, group)
        for chunk, group in self._each(chunks, states=True):
            self._write_states(chunk, group)

    def _each(self, chunks: Sequence[Chunk], states: bool) -> Iterator[tuple[Chunk, Group]]:
        for chunk in chunks:
            for group in self.groups:
                if (group.kind == "state") == states and group.target_rows:
                    yield chunk, group

    # ------------------------------------------------------------------------------------------------ rows

    def _write_rows(self, chunk: Chunk, group: Group) -> None:
        begin = chunk.begin
        if group.kind == "ring":
            begin = max(begin, chunk.end - group.block_tokens)
        at = places(group, self.setup.layout, begin, chunk.end)
        table = chunk.request.tables[group.index]
        blocks = [table[column] if column < len(table) else 0 for column in np.unique(at.columns)]
        chunk.request.check(0 not in blocks, f"group {group.index} has no block for {begin} to {chunk.end}")
        numbers = chunk.request.truth.numbers_with(chunk.end_known, chunk.drafts)
        self.memory.write_rows(group, table, at, numbers)

    def _check_rows(self, chunk: Chunk, group: Group) -> None:
        """What the first token of the chunk sees. In a ring drafts have taken the place of the oldest tokens."""
        first = group.first_read(chunk.begin, chunk.request.own_start)
        if group.kind == "ring":
            first = max(first, chunk.end - group.block_tokens)
        at = places(group, self.setup.layout, min(first, chunk.begin), chunk.begin)
        table = chunk.request.tables[group.index]
        has_blocks = not len(at.columns) or len(table) > at.columns[-1]
        chunk.request.check(has_blocks, f"group {group.index} has too few blocks")
        wrong = self.memory.wrong_row(group, table, at, chunk.request.truth.numbers(chunk.begin))
        self.rows_checked += len(at.tokens)
        if wrong is not None:
            rank, token = wrong
            block = table[token // group.span(self.setup.layout)] if group.kind != "ring" else table[0]
            raise WrongByte(
                f"{chunk.request.name} at {chunk.begin}: group {group.index} ({group.kind}), rank {rank}, "
                f"token {token} in block {block}"
            )

    # ------------------------------------------------------------------------------------------------ states

    def _running_column(self, chunk: Chunk, group: Group) -> int:
        return -(-chunk.end // group.block_tokens) - 1

    def _move_state(self, chunk: Chunk, group: Group) -> None:
        request = chunk.request
        before = request.state_column
        if before is None:
            before = (chunk.begin - 1) // group.block_tokens
        column = self._running_column(chunk, group)
        if before not in (-1, column):
            table = request.tables[group.index]
            bias = request.accepted - 1
            request.check(len(table) > column and table[column] != 0, f"group {group.index} has no running block")
            self.memory.copy_state(group, table, before, column, bias)

    def _place(self, chunk: Chunk, group: Group) -> int:
        """Behind the running column: where the state is that the chunk goes on from."""
        before = chunk.request.state_column
        return chunk.request.accepted - 1 if before == self._running_column(chunk, group) else 0

    def _check_state(self, chunk: Chunk, group: Group) -> None:
        if chunk.begin == 0:
            return
        request, column = chunk.request, self._running_column(chunk, group)
        table = request.tables[group.index]
        number = int(request.truth.numbers(chunk.begin)[chunk.begin])
        rank = self.memory.wrong_state(group, table, column, self._place(chunk, group), number)
        self.states_checked += 1
        if rank is not None:
            raise WrongByte(
                f"{request.name}: group {group.index} (state), rank {rank}, state of token {chunk.begin} in column "
                f"{column} of {table}"
            )

    def _write_states(self, chunk: Chunk, group: Group) -> None:
        request, column = chunk.request, self._running_column(chunk, group)
        table = request.tables[group.index]
        if group.exports:
            self._export(chunk, group)
        numbers = request.truth.numbers_with(chunk.end_known, chunk.drafts)[chunk.end_known :]
        for place, number in enumerate(numbers):
            request.check(
                column + place < len(table) and table[column + place] != 0,
                f"group {group.index} has no block for draft {place}",
            )
            self.memory.write_state(group, table[column + place], int(number))
        self.memory.write_window(group, table[column], [int(number) for number in numbers])

    def _export(self, chunk: Chunk, group: Group) -> None:
        """compute_mamba_prefill_checkpoints of one row, before the state of its end: where the scheduler reserved no
        block, the column may still show a block for drafts that has become the running one."""
        position = get_mamba_prefill_checkpoint_position(chunk.end, self.setup.alignment, self.setup.drops_unit)
        if not is_mamba_prefill_checkpoint_valid(
            query_start=chunk.begin,
            query_end=chunk.end,
            checkpoint_position=position,
            hash_block_size=self.setup.hash_block,
            mamba_block_size=group.block_tokens,
            checkpoint_alignment=group.checkpoint_alignment,
        ):
            return
        block = chunk.request.tables[group.index][self._running_column(chunk, group) - 1]
        if block != 0:
            number = int(chunk.request.truth.numbers(position)[position])
            self.exports += 1
            self.memory.write_state(group, block, number)
            self.memory.write_window(group, block, [number])

    def _keep_boundary(self, chunk: Chunk, group: Group, accepted: int) -> bool:
        """Copies the state of a block's end that accepted drafts reached or passed. Is it in the running column?"""
        computed = chunk.end_known + accepted - 1
        boundary = computed // group.block_tokens * group.block_tokens
        if boundary < chunk.end_known:
            return False
        column, target = self._running_column(chunk, group), boundary // group.block_tokens - 1
        bias = boundary - chunk.end_known
        if target != column or bias:
            self.memory.copy_state(group, chunk.request.tables[group.index], column, target, bias)
        return target == column

    # ------------------------------------------------------------------------------------------------ results

    def _sample(self, chunks: Sequence[Chunk], skip_drafts: bool) -> Result:
        result = Result()
        for chunk in chunks:
            result.names.append(chunk.request.name)
            result.sampled.append(self._advance(chunk))
            chunk.request.drafts = self._propose(chunk) if result.sampled[-1] and not skip_drafts else []
            result.drafts.append(list(chunk.request.drafts))
        return result

    def _advance(self, chunk: Chunk) -> list[int]:
        request, right = chunk.request, chunk.num_right()
        accepted = right + 1
        request.accepted = accepted
        for group in self.groups:
            if group.kind == "state":
                request.state_column = self._running_column(chunk, group)
                if self.setup.num_drafts and self._keep_boundary(chunk, group, accepted):
                    request.accepted = 1
        rejected = len(chunk.drafts) - right
        self.drafts_accepted += right
        self.drafts_rejected += rejected
        if rejected:
            request.rejected.append((self._step, rejected))
        request.computed = chunk.end_known + right
        if not chunk.samples:
            return []
        request.truth.until(request.computed + 1)
        request.known = request.computed + 1
        return request.truth.tokens[chunk.end_known : request.known]

    def _propose(self, chunk: Chunk) -> list[int]:
        drafts = []
        for index in range(self.setup.num_drafts):
            token = chunk.request.truth.token(chunk.request.known + index)
            if self._numbers.random() >= self.setup.draft_hits:
                token = FIRST_OUTPUT + (token + 1) % NUM_OUTPUTS
            drafts.append(token)
        return drafts
