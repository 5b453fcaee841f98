"""Tensor parallel 2: two worker processes, one host pool each, one answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Engines
from support import cases, worker_extension
from support.compare import BATCH_TOLERANCE, Answer, assert_same, difference
from support.engine import Engine, EngineConfig
from support.ranks import assert_failure_ends_the_request_alone, assert_failure_is_computed_again, cold_answer, rpc
from support.records import ReplayRun, Report
from support.rest import assert_at_rest, leaked_pins
from support.theory import Geometry
from vllm_on_cpu import models


@pytest.fixture(scope="module", params=[models.LLAMA, models.GRANITE], ids=lambda model: model.name)
def model(request: pytest.FixtureRequest) -> models.Model:
    return request.param


@pytest.fixture
def engine(model: models.Model, engines: Engines, checkpoints: Path, version: str) -> Iterator[Engine]:
    os.environ[worker_extension.PATCH_VARIABLE] = "no_export"
    folder = cases.checkpoint(model, checkpoints, version)
    yield engines.get(EngineConfig.of(folder, {}, tensor_parallel_size=2, worker_extension_cls=worker_extension.NAME))


def test_two_ranks_replay_exactly(engine: Engine, model: models.Model, report: Report, version: str) -> None:
    boundary = Geometry.of(engine).replay_boundary(len(cases.PROMPT))
    expected = cold_answer(engine, cases.PROMPT)
    engine.evict_device()
    answer, loads = engine.ask_one(cases.PROMPT)
    found = difference(expected, answer)
    run = ReplayRun(
        model.label, version, found.tokens_equal, found.within(BATCH_TOLERANCE), sum(host for _, host in loads),
        boundary, leaked_pins(engine), tp=2,
    )  # fmt: skip
    report.results.append(run)
    assert_same(expected, answer, BATCH_TOLERANCE)
    assert loads == [(0, boundary)]
    assert_at_rest(engine)
    run.flipped_byte_changes_output = all(flip_changes_output(engine, expected, rank) for rank in (0, 1))
    assert run.flipped_byte_changes_output


def flip_changes_output(engine: Engine, expected: Answer, rank: int) -> bool:
    """Each rank's own bytes matter: one byte of the full-attention group's last block, on one rank."""
    rpc(engine, "hostkv_fail_loads", 0, 0)  # puts the proxies in
    engine.evict_device()
    engine.ask(cases.PROMPT)
    load = engine.loads[-1]
    group = len(load.tables) - 1
    block = load.tables[group][(load.device_tokens + load.host_tokens - 1) // Geometry.of(engine).unit]
    slot = rpc(engine, "hostkv_last_slot", group, block)[rank]
    rpc(engine, "hostkv_flip", rank, group, slot, 3)
    engine.evict_device()
    changed = not difference(expected, engine.ask(cases.PROMPT)[0]).within(BATCH_TOLERANCE)
    rpc(engine, "hostkv_flip", rank, group, slot, 3)
    engine.evict_device()
    assert_same(expected, engine.ask(cases.PROMPT)[0], BATCH_TOLERANCE)
    return changed


@pytest.mark.parametrize("rank", [0, 1])
def test_failure_on_one_rank_is_computed_again_on_both(engine: Engine, rank: int) -> None:
    assert_failure_is_computed_again(engine, rank, BATCH_TOLERANCE)


def test_load_is_over_when_the_last_rank_says_so(engine: Engine) -> None:
    """One rank reports steps later than the other: nothing is computed in between."""
    expected = cold_answer(engine, cases.PROMPT)
    engine.evict_device()
    rpc(engine, "hostkv_hold_loads", 1, 20)
    answer, loads = engine.ask_one(cases.PROMPT)
    rpc(engine, "hostkv_hold_loads", 1, 0)
    assert loads == [(0, Geometry.of(engine).replay_boundary(len(cases.PROMPT)))]
    assert_same(expected, answer, BATCH_TOLERANCE)
    assert_at_rest(engine)


def test_failure_under_fail_ends_the_request_alone(engine: Engine) -> None:
    assert_failure_ends_the_request_alone(engine, BATCH_TOLERANCE)


def test_failure_on_a_quick_rank_waits_for_the_slow_one(engine: Engine) -> None:
    """The slow rank still writes into the blocks: the request must not be computed before it has ended too."""
    expected = cold_answer(engine, cases.PROMPT)
    engine.evict_device()
    rpc(engine, "hostkv_fail_loads", 0, 1)
    rpc(engine, "hostkv_hold_loads", 1, 20)
    answer = engine.ask(cases.PROMPT)[0]
    rpc(engine, "hostkv_hold_loads", 1, 0)
    assert_same(expected, answer, BATCH_TOLERANCE)
    assert_at_rest(engine)
