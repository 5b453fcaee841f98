"""Random requests that come and go while steps are in flight, with shared prefixes and too little memory everywhere."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import Engines
from support import cases
from support.compare import BATCH_TOLERANCE, Answer, assert_same
from support.engine import Engine, EngineConfig, sampling
from support.hooks import faults
from support.in_flight import decoding_in_flight, watched
from support.oracle import Oracle
from support.rest import assert_at_rest
from vllm_on_cpu import models

pytestmark = pytest.mark.run_ahead

MAX_LIVE = 6
OUTPUT_TOKENS = 6
EVERY, ABORTED, RESET = 12, 5, 11  # of so many requests, which is aborted and during which there is a reset
# Room for one request of 512 tokens over all groups and a little more.
TIGHT_BLOCKS = {"llama": 24, "gemma3": 76, "granite": 24}


class Traffic:
    """Starts, aborts and resets at random between steps. Names are numbers: the position of the prompt."""

    def __init__(self, engine: Engine, source: random.Random, prompts: list[list[int]]) -> None:
        self.engine, self.source, self.prompts = engine, source, prompts
        self.queue = list(range(len(prompts)))
        self.live: set[int] = set()
        self.disturbed: set[int] = set()
        self.answers: dict[int, Answer] = {}
        self.counts: Counter[str] = Counter()

    def run(self, proxy: Any) -> None:
        proxy.fail_loads = 1
        while self.queue or self.live:
            while self.queue and len(self.live) < MAX_LIVE and self.source.random() < 0.5:
                number = self.queue.pop(0)
                self.engine.start(self.prompts[number], str(number), sampling(OUTPUT_TOKENS))
                self.live.add(number)
            self._disturb()
            if self.source.random() < 0.1:
                proxy.hold_loads = self.source.choice([0, 0, 2, 5])
                proxy.fail_loads = max(proxy.fail_loads, int(self.source.random() < 0.2))
            for output in self.engine.step():
                if output.finished:
                    number = int(output.request_id.split("-")[0])
                    self.live.discard(number)
                    self.answers[number] = Answer.of(output)
        proxy.fail_loads = 0

    def _disturb(self) -> None:
        """At any time at random; some requests surely while a later step of theirs is in flight."""
        for number in sorted(self.live):
            if number % EVERY in (ABORTED, RESET) and number not in self.disturbed:
                if not decoding_in_flight(self.engine, str(number), outputs=2):
                    continue
                self.disturbed.add(number)
                if number % EVERY == ABORTED:
                    self._abort(number)
                else:
                    self._reset()
        if self.live and self.source.random() < 0.01:
            self._abort(self.source.choice(sorted(self.live)))
        if self.source.random() < 0.01:
            self._reset()

    def _abort(self, number: int) -> None:
        self.engine.abort(str(number))
        self.live.discard(number)
        self.counts["aborted"] += 1

    def _reset(self) -> None:
        """Raises while the engine must put off a free; the requests are preempted then all the same."""
        try:
            self.engine.llm.reset_prefix_cache(reset_running_requests=True)
            self.counts["reset"] += 1
        except RuntimeError:
            self.counts["reset refused"] += 1


@pytest.mark.parametrize(
    ("model", "count", "lazy"),
    [
        (models.LLAMA, 60, True), (models.GRANITE, 100, False), (models.GEMMA, 60, False),
        *(pytest.param(model, 1500, lazy, marks=pytest.mark.long)
          for model in (models.LLAMA, models.GRANITE, models.GEMMA) for lazy in (False, True)),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)  # fmt: skip
def test_random_requests_that_come_and_go(
    model: models.Model, count: int, lazy: bool, engines: Engines, oracle: Oracle, checkpoints: Path, version: str
) -> None:
    print(f"HOSTKV_TEST_SEED={cases.seed()}")
    source = random.Random(f"{cases.seed()} {model.name} {count} {lazy} run ahead")
    folder = cases.checkpoint(model, checkpoints, version)
    prompts = cases.random_prompts(source, count)
    engine = engines.get(EngineConfig.of(
        folder, {"cpu_bytes_to_use": (1 if lazy else 4) << 20, "lazy_offload": lazy},
        num_gpu_blocks_override=TIGHT_BLOCKS[model.name], max_model_len=512,
        async_scheduling=True,
    ))  # fmt: skip
    with faults(engine) as proxy, watched(engine) as counts:
        traffic = Traffic(engine, source, prompts)
        traffic.run(proxy)
        torn = len(proxy.torn)
    seen = {**counts, **traffic.counts, "torn": torn, "loads": len(engine.loads)}
    assert len(traffic.answers) == count - traffic.counts["aborted"]
    numbers = sorted(traffic.answers)
    expected = oracle.answers(folder, [prompts[number] for number in numbers], tokens=OUTPUT_TOKENS)
    for number, one in zip(numbers, expected, strict=True):
        assert_same(one, traffic.answers[number], BATCH_TOLERANCE)
    missing = [what for what in ("in flight", "late", "preempted", "aborted", "reset refused", "torn", "loads")
               if not seen.get(what)]  # fmt: skip
    assert not missing, f"nothing tested of {missing}: {seen}"
    assert engine.metrics()["evicted_blocks"] > 0, "the host pool was not too small"
    assert_at_rest(engine)
