"""What the byte worker keeps of requests, as told by scheduler outputs: tokens, block tables, and how far they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_on_cpu.byte_worker_tokens import NO_TOKEN, Truth


class WrongOrder(AssertionError):
    """The scheduler's output does not fit to what the worker has been told and has computed."""


@dataclass
class Running:
    """A request as a model runner knows it. known: tokens that were sent or sampled; computed: those with KV."""

    name: str
    truth: Truth
    num_prompt: int
    known: int
    computed: int
    tables: list[list[int]]
    own_start: int = 0
    state_column: int | None = None
    accepted: int = 1  # tokens of the last step that count, the sampled one among them
    drafts: list[int] = field(default_factory=list)
    rejected: list[tuple[int, int]] = field(default_factory=list)  # (step, drafts that came to nothing)

    def check(self, condition: bool, what: str) -> None:
        if not condition:
            raise WrongOrder(f"{self.name}: {what}")


@dataclass
class Chunk:
    """One request's share of a step: `drafts` are the last tokens of [begin, end)."""

    request: Running
    begin: int
    end: int
    drafts: list[int]

    @property
    def end_known(self) -> int:
        return self.end - len(self.drafts)

    @property
    def samples(self) -> bool:
        return self.end_known >= self.request.known

    def num_right(self) -> int:
        """Leading drafts that are what the model says itself."""
        count = 0
        while count < len(self.drafts) and self.drafts[count] == self.request.truth.token(self.end_known + count):
            count += 1
        return count


class Requests:
    """Takes over each output. `v2`: a resumed request comes as a new one, and computed tokens are counted here."""

    def __init__(self, v2: bool) -> None:
        self._v2 = v2
        self._by_name: dict[str, Running] = {}
        self._truths: dict[str, Truth] = {}

    def truth(self, name: str, prompt: Sequence[int]) -> Truth:
        """Of the request; made before it is sent, so that the caller can tell its answer."""
        return self._truths.setdefault(name, Truth(prompt))

    def take(self, output: Any, step: int, processed: int) -> list[Chunk]:
        """processed: the number of steps whose results the scheduler had when it made this output."""
        for name in output.finished_req_ids:
            self._by_name.pop(name, None)
        self._preempted(output.preempted_req_ids or ())
        for data in output.scheduled_new_reqs:
            self._new(data)
        self._cached(output.scheduled_cached_reqs, processed)
        return [self._chunk(output, name, count) for name, count in output.num_scheduled_tokens.items()]

    def _preempted(self, names: Iterable[str]) -> None:
        for name in names:
            if self._v2:
                self._by_name.pop(name, None)
            elif name in self._by_name:
                self._by_name[name].state_column = None

    def _new(self, data: Any) -> None:
        tokens = data.prefill_token_ids if self._v2 else data.prompt_token_ids
        truth = self.truth(data.req_id, data.prompt_token_ids)
        request = Running(
            data.req_id, truth, len(data.prompt_token_ids), len(tokens), data.num_computed_tokens,
            [list(table) for table in data.block_ids], data.num_computed_tokens,
        )  # fmt: skip
        request.check(self._v2 or data.req_id not in self._by_name, "sent as new while it is known")
        request.check(truth.tokens[: len(tokens)] == list(tokens), "other tokens than the model sampled")
        self._by_name[data.req_id] = request

    def _cached(self, data: Any, processed: int) -> None:
        for index, name in enumerate(data.req_ids):
            if name not in self._by_name:
                raise WrongOrder(f"{name} is scheduled, but was never sent")
            request = self._by_name[name]
            blocks, computed = data.new_block_ids[index], data.num_computed_tokens[index]
            if name in data.resumed_req_ids:
                self._resumed(request, blocks, computed, data.all_token_ids[name])
                continue
            for table, new in zip(request.tables, blocks or (), strict=bool(blocks)):
                table.extend(new)
            # Where results are not known yet, the scheduler counts all drafts in flight as right ones.
            in_flight = sum(count for step, count in request.rejected if step >= processed)
            request.check(computed - in_flight == request.computed, f"at {request.computed}, said to be at {computed}")
            request.rejected = [entry for entry in request.rejected if entry[0] >= processed]

    def _resumed(self, request: Running, blocks: Any, computed: int, tokens: list[int]) -> None:
        request.check(blocks is not None, "resumed without blocks")
        request.check(request.truth.tokens[: len(tokens)] == tokens, "resumed with other tokens")
        request.tables = [list(table) for table in blocks]
        request.known, request.computed, request.own_start = len(tokens), computed, computed
        request.state_column, request.accepted = None, 1
        request.drafts, request.rejected = [], []

    def _chunk(self, output: Any, name: str, count: int) -> Chunk:
        if name not in self._by_name:
            raise WrongOrder(f"{name} is scheduled, but was never sent")
        request = self._by_name[name]
        asked = output.scheduled_spec_decode_tokens.get(name, ())
        drafts = [self._draft(request, index, token) for index, token in enumerate(asked)]
        chunk = Chunk(request, request.computed, request.computed + count, drafts)
        request.check(chunk.end_known <= request.known, f"tokens up to {chunk.end_known} of {request.known}")
        request.check(not drafts or chunk.samples, "drafts behind tokens that are not the last")
        return chunk

    @staticmethod
    def _draft(request: Running, index: int, token: int) -> int:
        """A placeholder stands for what was proposed here."""
        if token != -1:
            return token
        return request.drafts[index] if index < len(request.drafts) else NO_TOKEN
