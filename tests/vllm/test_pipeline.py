"""Pipeline parallel 2: each stage keeps its own layers' bytes, and two batches may be in flight."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import Engines
from support import cases, worker_extension
from support.compare import BATCH_TOLERANCE, assert_same, difference
from support.engine import Engine, EngineConfig
from support.oracle import Oracle
from support.ranks import assert_failure_is_computed_again, cold_answer, rpc, slot_of_last_load
from support.records import ReplayRun, Report
from support.rest import assert_at_rest, leaked_pins
from support.theory import Geometry
from vllm_on_cpu import models

STAGES = range(2)


@pytest.fixture
def engine(engines: Engines, checkpoints: Path) -> Engine:
    os.environ[worker_extension.PATCH_VARIABLE] = "no_export"
    config = EngineConfig.of(
        models.checkpoint(models.LLAMA, checkpoints), {}, patches=("pipeline", "fork"), pipeline_parallel_size=2,
        worker_extension_cls=worker_extension.NAME,
    )  # fmt: skip
    return engines.get(config)


def test_replay_is_exact_and_hits_what_theory_says(
    engine: Engine, oracle: Oracle, checkpoints: Path, report: Report, version: str
) -> None:
    (expected,) = oracle.answers(models.checkpoint(models.LLAMA, checkpoints), [cases.PROMPT])
    boundary = Geometry.of(engine).replay_boundary(len(cases.PROMPT))
    assert_same(expected, cold_answer(engine, cases.PROMPT))
    hot, loads = engine.ask_one(cases.PROMPT)
    assert_same(expected, hot)
    assert (hot.cached_tokens, loads) == (boundary, [])
    engine.evict_device()
    replay, loads = engine.ask_one(cases.PROMPT)
    found = difference(expected, replay)
    run = ReplayRun(
        models.LLAMA.label, version, found.tokens_equal, found.logprob == 0.0, sum(host for _, host in loads),
        boundary, leaked_pins(engine), variant="pp2",
    )  # fmt: skip
    report.results.append(run)
    assert found.exact, "replay"
    assert loads == [(0, boundary)]
    assert_at_rest(engine)
    rpc(engine, "hostkv_fail_loads", 0, 0)  # puts the proxies in
    engine.evict_device()
    engine.ask(cases.PROMPT)
    slot = slot_of_last_load(engine, 0, engine.loads[-1].tables[0][0])
    changes = []
    for stage in STAGES:
        rpc(engine, "hostkv_flip", stage, 0, slot, 3)
        engine.evict_device()
        changes.append(not difference(expected, engine.ask(cases.PROMPT)[0]).exact)
        rpc(engine, "hostkv_flip", stage, 0, slot, 3)
    engine.evict_device()
    assert_same(expected, engine.ask(cases.PROMPT)[0])
    run.flipped_byte_changes_output = all(changes)
    assert run.flipped_byte_changes_output


@pytest.mark.parametrize("stage", STAGES)
def test_load_that_fails_on_one_stage_is_computed_again(engine: Engine, stage: int) -> None:
    assert_failure_is_computed_again(engine, stage)


def test_batches_in_flight_are_stored_and_replayed(engine: Engine, oracle: Oracle, checkpoints: Path) -> None:
    expected = oracle.answers(models.checkpoint(models.LLAMA, checkpoints), cases.OTHERS)
    assert engine.core.batch_queue is not None, "one batch at a time"
    for one, other in zip(expected, engine.ask(*cases.OTHERS), strict=True):
        assert_same(one, other, BATCH_TOLERANCE)
    engine.evict_device()
    engine.loads.clear()
    for one, other in zip(expected, engine.ask(*cases.OTHERS), strict=True):
        assert_same(one, other, BATCH_TOLERANCE)
    boundaries = sorted(Geometry.of(engine).replay_boundary(len(prompt)) for prompt in cases.OTHERS)
    assert sorted(load.device_tokens + load.host_tokens for load in engine.loads) == boundaries
    assert_at_rest(engine)
