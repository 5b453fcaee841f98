"""Two ranks with too little device memory, or too little host memory, or none of their own time to keep to."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from conftest import Engines
from support import cases
from support.compare import BATCH_TOLERANCE, Answer, assert_same
from support.contexts import CELLS, GDN, GRANITE, NUM_RANKS, Cell, name_of, usually
from support.engine import Engine, sampling
from support.ranks import cold_answer, rpc
from support.rest import assert_at_rest
from support.theory import Geometry
from test_pressure import counted_preemptions, rounds_of

LONG_ANSWER = 60
NUM_TOGETHER = 4
# Room for one request of 512 tokens over all groups and a little more.
TIGHT_BLOCKS = {"llama1": 17, "granite1": 16, "qwen3next1": 20, "mla": 34}
SMALL_HOST_BYTES = {"llama1": 1 << 20, "granite1": 2 << 20, "qwen3next1": 6 << 20, "mla": 2 << 20}
USUAL = [GRANITE[-1]]


def tight_engine(cell: Cell, engines: Engines, checkpoints: Path) -> Engine:
    blocks = TIGHT_BLOCKS[cell.model.name]
    return engines.get(cell.config(checkpoints, num_gpu_blocks_override=blocks, max_model_len=512))


# A recurrence in bfloat16 resumes off its grid of 64 tokens when it was preempted: no oracle.
EXACT_IN_BATCHES = [cell for cell in CELLS if cell not in GDN]


@pytest.mark.parametrize("cell", usually(USUAL, EXACT_IN_BATCHES), ids=name_of)
def test_preempted_requests_resume_exactly(cell: Cell, engines: Engines, checkpoints: Path) -> None:
    engine = tight_engine(cell, engines, checkpoints)
    prompts = cases.OTHERS[:NUM_TOGETHER]
    params = sampling(LONG_ANSWER)
    expected = []
    for prompt in prompts:
        expected.append(cold_answer(engine, prompt, params=params))
        engine.forget_all()
    engine.loads.clear()
    with counted_preemptions(engine) as preempted:
        answers = engine.ask(*prompts, params=params)
    assert preempted, "the pool was not tight enough to test anything"
    for one, other in zip(expected, answers, strict=True):
        assert_same(one, other, BATCH_TOLERANCE)
    assert engine.loads, "what was preempted came back from the host"
    assert_at_rest(engine)


@pytest.mark.parametrize("cell", usually(USUAL, CELLS), ids=name_of)
def test_prompt_pushed_out_by_others_is_loaded(cell: Cell, engines: Engines, checkpoints: Path) -> None:
    engine = tight_engine(cell, engines, checkpoints)
    expected = cold_answer(engine, cases.PROMPT)
    engine.evict_by_use(cases.OTHERS)
    answer, loads = engine.ask_one(cases.PROMPT)
    # What is left on the device may be used, but no state or window of it.
    assert [device + host for device, host in loads] == [Geometry.of(engine).replay_boundary(len(cases.PROMPT))]
    assert_same(expected, answer)
    assert_at_rest(engine)


def run_random(engine: Engine, source: random.Random, prompts: list[list[int]], round_limit: int) -> list[Answer]:
    """In rounds; now and then the device forgets, a request is aborted, one rank's load fails or ends late."""
    answers: list[Answer] = []
    for number, batch in enumerate(rounds_of(source, prompts)):
        rpc(engine, "hostkv_hold_loads", source.randrange(NUM_RANKS), source.choice([0, 0, 0, 3]))
        rpc(engine, "hostkv_fail_loads", source.randrange(NUM_RANKS), int(source.random() < 0.15))
        if source.random() < 0.3:
            engine.evict_device()
        if source.random() < 0.2:
            engine.start(cases.random_tokens(f"aborted {number}", 200), "99999999")
            engine.step()
            engine.abort("99999999")
        for begin in range(0, len(batch), round_limit):
            answers += engine.ask(*batch[begin : begin + round_limit], params=sampling(4))
    rpc(engine, "hostkv_hold_loads", 0, 0)
    rpc(engine, "hostkv_fail_loads", 0, 0)
    return answers


@pytest.mark.parametrize(
    ("cell", "count"),
    [
        (GRANITE[-1], 40),
        *(pytest.param(cell, 400, marks=pytest.mark.long) for cell in CELLS),
    ],
    ids=name_of,
)  # fmt: skip
def test_random_requests_in_a_host_pool_far_too_small(
    cell: Cell, count: int, engines: Engines, checkpoints: Path
) -> None:
    print(f"HOSTKV_TEST_SEED={cases.seed()}")
    source = random.Random(f"{cases.seed()} {cell.name} {count}")
    prompts = cases.random_prompts(source, count)
    engine = engines.get(cell.config(checkpoints, {"cpu_bytes_to_use": SMALL_HOST_BYTES[cell.model.name]}))
    expected: dict[tuple[int, ...], Answer] = {}
    for prompt in prompts:
        if tuple(prompt) not in expected:
            expected[tuple(prompt)] = cold_answer(engine, prompt, params=sampling(4))
            engine.forget_all()
    failed_before = sum(rpc(engine, "hostkv_torn_loads"))
    evicted_before = engine.metrics()["evicted_blocks"]
    exact = cell in GDN  # where batches are no oracle, one by one
    answers = run_random(engine, source, prompts, round_limit=1 if exact else len(prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_same(expected[tuple(prompt)], answer, 0.0 if exact else BATCH_TOLERANCE)
    metrics = engine.metrics()
    assert metrics["hit_tokens"] > 0 and metrics["loaded_blocks"] > 0
    assert metrics["evicted_blocks"] > evicted_before, "the pool was not too small"
    assert sum(rpc(engine, "hostkv_torn_loads")) > failed_before, "no load has failed"
    assert_at_rest(engine)
