"""Loads that fail: right tokens under `recompute`, finish reason "error" under `fail`, and a live engine after both."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import cases
from support.compare import BATCH_TOLERANCE, assert_right, difference
from support.engine import Engine
from support.hooks import faults
from support.oracle import Oracle
from support.rest import assert_at_rest
from support.theory import Geometry

pytestmark = [pytest.mark.all_versions, pytest.mark.run_ahead("llama", "granite")]


@pytest.fixture
def stored(engine: Engine) -> Engine:
    """The prompt is in the host and not on the device."""
    engine.ask(cases.PROMPT)
    engine.evict_device()
    return engine


def set_policy(engine: Engine, policy: str) -> None:
    engine.scheduler.recompute_kv_load_failures = policy == "recompute"


@pytest.mark.v2("llama")
def test_torn_load_that_nobody_reports_is_wrong(stored: Engine, folder: Path, oracle: Oracle) -> None:
    """The fault is real: unreported, it changes the answer. The tests below would pass for nothing otherwise."""
    with faults(stored) as proxy:
        proxy.fail_loads, proxy.silent = 1, True
        answer = stored.ask(cases.PROMPT)[0]
        assert len(proxy.torn) == 1
    assert not difference(oracle.answers(folder, [cases.PROMPT])[0], answer).exact


@pytest.mark.v2
def test_recompute_gives_the_right_tokens(stored: Engine, folder: Path, oracle: Oracle) -> None:
    (expected,) = oracle.answers(folder, [cases.PROMPT])
    with faults(stored) as proxy:
        proxy.fail_loads = 1
        answer = stored.ask(cases.PROMPT)[0]
        assert len(proxy.torn) == 1
        retries = proxy.loads[1:]
        offered_again = {slot for job in retries for slot in job.slots} & proxy.torn_slots()
    assert not offered_again, "rows of a failed load were offered again"
    assert_right(stored, expected, answer, on_grid=True)
    assert_at_rest(stored)
    stored.evict_device()
    assert_right(stored, expected, stored.ask(cases.PROMPT)[0], on_grid=True)
    assert_at_rest(stored)


def test_the_next_request_after_a_failure_hits_again(stored: Engine, folder: Path, oracle: Oracle) -> None:
    """What the failed request computed anew is stored anew."""
    with faults(stored) as proxy:
        proxy.fail_loads = 1
        stored.ask(cases.PROMPT)
    stored.evict_device()
    answer, loads = stored.ask_one(cases.PROMPT)
    assert loads == [(0, Geometry.of(stored).replay_boundary(len(cases.PROMPT)))]
    assert_right(stored, oracle.answers(folder, [cases.PROMPT])[0], answer, on_grid=True)
    assert_at_rest(stored)


@pytest.mark.v2
def test_fail_ends_the_request_and_the_engine_lives(stored: Engine, folder: Path, oracle: Oracle) -> None:
    set_policy(stored, "fail")
    try:
        with faults(stored) as proxy:
            proxy.fail_loads = 1
            answer = stored.ask(cases.PROMPT)[0]
            assert len(proxy.torn) == 1
    finally:
        set_policy(stored, "recompute")
    assert (answer.finish_reason, answer.tokens) == ("error", ())
    assert_at_rest(stored)
    stored.evict_device()
    assert_right(stored, oracle.answers(folder, [cases.PROMPT])[0], stored.ask(cases.PROMPT)[0], on_grid=True)
    assert_at_rest(stored)


@pytest.mark.v2("llama")
def test_one_failure_in_a_batch_leaves_the_others_alone(stored: Engine, folder: Path, oracle: Oracle) -> None:
    prompts = [cases.PROMPT, *cases.OTHERS[:3]]
    stored.ask(*cases.OTHERS[:3])
    stored.evict_device()
    with faults(stored) as proxy:
        proxy.fail_loads = 1
        answers = stored.ask(*prompts)
        assert len(proxy.torn) == 1
    for one, other in zip(oracle.answers(folder, prompts), answers, strict=True):
        assert_right(stored, one, other, BATCH_TOLERANCE)
    assert_at_rest(stored)


def test_every_load_failing_ends_in_computing(stored: Engine, folder: Path, oracle: Oracle) -> None:
    with faults(stored) as proxy:
        proxy.fail_loads = 100
        answer = stored.ask(cases.PROMPT)[0]
        assert proxy.torn
    assert_right(stored, oracle.answers(folder, [cases.PROMPT])[0], answer, on_grid=True)
    assert_at_rest(stored)
