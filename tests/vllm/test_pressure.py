"""Too little device memory, too little host memory, many random requests."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import Engines
from support import cases
from support.compare import BATCH_TOLERANCE, Answer, assert_same
from support.engine import Engine, EngineConfig, sampling
from support.hooks import UNTIL_RELEASED, faults
from support.oracle import Oracle
from support.rest import assert_at_rest
from vllm_on_cpu import models

LONG_ANSWER = 150
# Room for one request of 512 tokens over all groups and a little more: six of them push each other out.
TIGHT_BLOCKS = {"llama": 28, "gemma3": 76, "granite": 28, "qwen3next": 28}


@contextmanager
def counted_preemptions(engine: Engine) -> Iterator[list[str]]:
    """The ids of the requests that the scheduler pushed out meanwhile."""
    scheduler, preempted = engine.scheduler, []
    plain = scheduler._preempt_request

    def preempt(request, *rest, **more):  # type: ignore[no-untyped-def]
        preempted.append(request.request_id)
        return plain(request, *rest, **more)

    scheduler._preempt_request = preempt
    try:
        yield preempted
    finally:
        del scheduler._preempt_request


def tight_engine(model: models.Model, engines: Engines, folder: Path) -> Engine:
    arguments = {"num_gpu_blocks_override": TIGHT_BLOCKS[model.name], "max_model_len": 512}
    return engines.get(EngineConfig.of(folder, {}, **arguments))


@pytest.mark.run_ahead("llama", "granite")
@pytest.mark.run_ahead_long
@pytest.mark.v2_long
@pytest.mark.parametrize("model", [models.LLAMA, models.GEMMA, models.GRANITE, models.GDN], ids=lambda m: m.name)
def test_preempted_requests_resume_exactly(
    model: models.Model, engines: Engines, oracle: Oracle, checkpoints: Path, version: str
) -> None:
    folder = cases.checkpoint(model, checkpoints, version)
    engine = tight_engine(model, engines, folder)
    with counted_preemptions(engine) as preempted:
        answers = engine.ask(*cases.OTHERS, params=sampling(LONG_ANSWER))
    assert preempted, "the pool was not tight enough to test anything"
    assert all(len(answer.tokens) == LONG_ANSWER for answer in answers)
    if model is not models.GDN:  # resumes off its grid of 64 tokens: no oracle, with or without a connector
        expected = oracle.answers(folder, cases.OTHERS, tokens=LONG_ANSWER)
        for one, other in zip(expected, answers, strict=True):
            assert_same(one, other, BATCH_TOLERANCE)
    assert engine.loads, "what was preempted came back from the host"
    assert_at_rest(engine)


@pytest.mark.run_ahead
def test_request_preempted_while_its_stores_run_leaks_nothing(
    engines: Engines, oracle: Oracle, checkpoints: Path, version: str
) -> None:
    folder = cases.checkpoint(models.LLAMA, checkpoints, version)
    engine = tight_engine(models.LLAMA, engines, folder)
    with faults(engine) as proxy, counted_preemptions(engine) as preempted:
        proxy.hold_stores = 3
        answers = engine.ask(*cases.OTHERS, params=sampling(LONG_ANSWER))
        assert proxy.stores
    assert preempted
    for one, other in zip(oracle.answers(folder, cases.OTHERS, tokens=LONG_ANSWER), answers, strict=True):
        assert_same(one, other, BATCH_TOLERANCE)
    assert_at_rest(engine)


# -------------------------------------------------------------------------------------------------- random requests

ROUND_LIMIT = 6


def rounds_of(source: random.Random, prompts: list[list[int]]) -> Iterator[list[list[int]]]:
    at = 0
    while at < len(prompts):
        size = source.randrange(1, ROUND_LIMIT + 1)
        yield prompts[at : at + size]
        at += size


def run_random(engine: Engine, source: random.Random, prompts: list[list[int]]) -> list[Answer]:
    """In rounds of one to six; now and then the device forgets, a request is aborted, loads fail or take long."""
    answers: list[Answer] = []
    with faults(engine) as proxy:
        for number, batch in enumerate(rounds_of(source, prompts)):
            proxy.release()
            proxy.hold_loads = source.choice([0, 0, 0, 3])
            proxy.fail_loads = int(source.random() < 0.1)
            if source.random() < 0.3:
                engine.evict_device()
            if source.random() < 0.2:
                engine.start(cases.random_tokens(f"aborted {number}", 200), "99999999")
                engine.step()
                engine.abort("99999999")
            answers += engine.ask(*batch, params=sampling(4))
            proxy.fail_loads = 0
        proxy.hold_loads = UNTIL_RELEASED
    return answers


@pytest.mark.parametrize(
    ("model", "count", "lazy"),
    [
        (models.LLAMA, 160, False), (models.LLAMA, 60, True), (models.GEMMA, 80, False), (models.GRANITE, 120, False),
        (models.GRANITE, 60, True),
        *(pytest.param(m, 1500, lazy, marks=pytest.mark.long)
          for m in (models.LLAMA, models.GEMMA, models.GRANITE) for lazy in (False, True)),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)  # fmt: skip
def test_random_requests_in_a_host_pool_far_too_small(
    model: models.Model, count: int, lazy: bool, engines: Engines, oracle: Oracle, checkpoints: Path, version: str
) -> None:
    print(f"HOSTKV_TEST_SEED={cases.seed()}")
    source = random.Random(f"{cases.seed()} {model.name} {count} {lazy}")
    folder = cases.checkpoint(model, checkpoints, version)
    prompts = cases.random_prompts(source, count)
    engine = engines.get(EngineConfig.of(folder, {"cpu_bytes_to_use": 4 << 20, "lazy_offload": lazy}))
    answers = run_random(engine, source, prompts)
    for one, other in zip(oracle.answers(folder, prompts, tokens=4), answers, strict=True):
        assert_same(one, other, BATCH_TOLERANCE)
    metrics = engine.metrics()
    assert metrics["hit_tokens"] > 0 and metrics["loaded_blocks"] > 0
    assert metrics["evicted_blocks"] > 0, "the pool was not too small"
    assert_at_rest(engine)
