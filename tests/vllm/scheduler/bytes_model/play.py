"""Random requests over an engine with bytes: preemption, aborts, resets, held and failed copies, drafts."""

from __future__ import annotations

import pickle
import random
from collections import Counter, deque
from typing import Any

from vllm.v1.outputs import DraftTokenIds
from vllm.v1.request import RequestStatus
from vllm_on_cpu.byte_worker_tokens import Truth

from bytes_model.shapes import Rig

NO_FORWARD_LIMIT = 3000


class Steps:
    """Schedules, executes and updates in the order of EngineCore, with as many batches in flight as the mode says."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.scheduler = rig, rig.engine.scheduler
        self._open: deque[tuple[Any, bytes, int]] = deque()
        self._processed = 0
        self.counts: Counter[str] = Counter()

    @property
    def in_flight(self) -> int:
        return len(self._open)

    def schedule(self) -> None:
        output = self.scheduler.schedule()
        self.rig.engine.note_hits(output)
        self.counts["steps"] += 1
        self.counts["preempted"] += len(output.preempted_req_ids or ())
        self.counts["resumed"] += len(output.scheduled_cached_reqs.resumed_req_ids)
        self.counts["block copies"] += len(output.kv_cache_block_copies or ())
        # A worker in another process sees what the output held when it was sent.
        self._open.append((output, pickle.dumps(output), self._processed))

    def execute(self) -> None:
        output, sent, processed = self._open.popleft()
        received = pickle.loads(sent)
        result = self.rig.worker.execute(received, processed)
        of_ranks = self.rig.ranks.take(received.kv_connector_metadata)
        done = self.rig.engine.merge(result.names, result.sampled, of_ranks)
        self.scheduler.update_from_output(output, done)
        self._processed += 1
        if not self.rig.mode.run_ahead and result.names and self.rig.worker.setup.num_drafts:
            self.scheduler.update_draft_token_ids(DraftTokenIds(result.names, result.drafts))
        guard = self.rig.engine.side._guard
        assert not guard.broken, guard.cause

    def step(self) -> None:
        self.schedule()
        while self.in_flight >= self.rig.mode.in_flight:
            self.execute()

    def drain(self) -> None:
        while self._open:
            self.execute()

    def settle(self) -> None:
        """Until nothing is left to do."""
        for _ in range(NO_FORWARD_LIMIT):
            self.drain()
            if not self.scheduler.has_requests():
                return
            self.schedule()
        raise AssertionError(f"never at rest: {list(self.scheduler.requests.values())}")


class Texts:
    """Which token follows each prefix of whole hash blocks, in the text that came first."""

    def __init__(self, unit: int) -> None:
        self._unit = unit
        self._next: dict[int, int] = {}

    def leaves(self, truth: Truth, end: int) -> int | None:
        """Where within `end` tokens this text leaves the first one right behind a hash block. None: nowhere."""
        numbers = truth.numbers(end + 1)
        for tokens in range(self._unit, end + 1, self._unit):
            token = truth.token(tokens)
            if self._next.setdefault(int(numbers[tokens]), token) != token:
                return tokens
        return None


class Play(Steps):
    """One engine, random requests. span: the longest block of the shape, in tokens; it sets the lengths of prompts."""

    def __init__(self, rig: Rig, numbers: random.Random, span: int) -> None:
        super().__init__(rig)
        self.numbers, self.span = numbers, span
        self._prompts = [[numbers.randrange(100, 500) for _ in range(6 * span)] for _ in range(4)]
        self._count = 0
        self._texts = Texts(rig.engine.hash_block) if rig.shape.draft_groups else None
        self._before = deque(self._prompts, 8)
        self._leaves: dict[str, int] = {}  # request -> the block's end where it leaves the text of others
        for prompt in self._prompts:
            if self._texts is not None:
                self._texts.leaves(Truth(prompt), len(prompt))

    def add(self) -> None:
        numbers, unit = self.numbers, self.rig.engine.hash_block
        prompt = list(numbers.choice(self._prompts)[: self._length()])
        if numbers.random() < 0.3:
            prompt += [numbers.randrange(100, 500) for _ in range(numbers.randrange(1, self.span))]
        if numbers.random() < 0.3:  # the next turn: an answer that the model gave is part of the prompt
            truth = self.rig.worker.requests.truth(f"turn of {len(prompt)} {self._count}", prompt)
            truth.until(len(prompt) + numbers.randrange(1, 2 * unit + 2))
            prompt = list(truth.tokens)
        if self._texts is not None and numbers.random() < 0.25:
            prompt = self._leaving()
        self._before.append(prompt)
        self._count += 1
        name, num_answers = f"r{self._count}", numbers.choice((1, 2, 20, 50))
        truth = self.rig.worker.requests.truth(name, prompt)
        limits = [numbers.choice((0, unit, 2 * unit + 1, 100_000))] if numbers.random() < 0.1 else []
        left = self._texts and self._texts.leaves(truth, len(prompt) + num_answers + self.rig.shape.num_drafts)
        if left:
            self._leaves[name] = left
            self.rig.most_hashed[name] = left - 1
            limits.append(left - 1)
        how = {"extra_args": {"kv_transfer_params": {"max_offload_tokens": min(limits)}}} if limits else {}
        self.rig.engine.add(name, prompt, num_answers, **how)

    def _leaving(self) -> list[int]:
        """An earlier prompt up to the end of its last whole hash block, and something else."""
        prompt, unit = self.numbers.choice(self._before), self.rig.engine.hash_block
        begin = prompt[: len(prompt) // unit * unit]
        return begin + [self.numbers.randrange(100, 500) for _ in range(self.numbers.randrange(1, self.span))]

    def _length(self) -> int:
        unit = self.rig.engine.hash_block
        edge = self.numbers.choice((1, self.numbers.randrange(1, 6 * self.span), unit * self.numbers.randrange(1, 9),
                                    self.span * self.numbers.randrange(1, 6)))  # fmt: skip
        return max(1, min(6 * self.span, edge + self.numbers.choice((-1, 0, 0, 1, 2))))

    def abort(self) -> None:
        names = list(self.scheduler.requests)
        if names:
            self.counts["aborts"] += 1
            self.scheduler.finish_requests(self.numbers.choice(names), RequestStatus.FINISHED_ABORTED)

    def reset(self) -> None:
        """Where requests hold blocks that cannot be taken from them, vLLM raises, and everything lives on."""
        self.counts["resets"] += 1
        running = self.numbers.random() < 0.3
        try:
            self.scheduler.reset_prefix_cache(
                reset_running_requests=running, reset_connector=self.numbers.random() < 0.7
            )
        except RuntimeError:
            assert running
            self.counts["refused resets"] += 1

    def play(self, num_steps: int) -> None:
        numbers, ranks = self.numbers, self.rig.ranks
        ranks.hold_chance = numbers.choice((0.0, 0.3, 0.9))
        ranks.fail_chance = numbers.choice((0.0, 0.0, 0.2)) / ranks.num_ranks
        for _ in range(num_steps):
            kind = numbers.random()
            if kind < 0.25 and len(self.scheduler.requests) < 12:
                self.add()
            elif kind < 0.28:
                self.abort()
            elif kind < 0.29:
                self.reset()
            self.step()
        self.rest()

    def rest(self) -> None:
        """Everything ends; then nothing may be left."""
        self.rig.ranks.hold_chance = self.rig.ranks.fail_chance = 0.0
        self.settle()
        unit = self.rig.worker.setup.alignment
        for name, (device, host) in self.rig.engine.hits.items():
            self.counts["device hits"] += device > 0
            self.counts["host hits"] += host > 0
            if name in self._leaves and 0 < device + host == self._leaves[name] - unit:
                self.counts["drops on the host" if host else "drops on the device"] += 1
        self.rig.engine.hits.clear()
        self.scheduler.reset_prefix_cache()
        self.rig.engine.check_rest()
        side = self.rig.engine.side
        left = [name for name in ("_requests", "_by_handle", "_loading", "_sent", "_ended") if getattr(side, name)]
        assert not left, left
