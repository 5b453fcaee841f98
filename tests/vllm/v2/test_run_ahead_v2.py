"""The V2 runner with two steps in flight: order and kernels.

What the scheduler alone decides is tested in test_run_ahead.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Engines
from support import cases
from support.compare import BATCH_TOLERANCE, Answer, assert_same, difference
from support.engine import Engine, EngineConfig, sampling
from support.hooks import UNTIL_RELEASED, faults
from support.in_flight import decoding_in_flight, watched
from support.oracle import Oracle
from support.records import ReplayRun, Report
from support.rest import assert_at_rest, leaked_pins
from support.theory import Geometry
from test_replay import flipped_byte_changes_output
from vllm_on_cpu import models

pytestmark = pytest.mark.v2


@pytest.fixture(scope="module", params=[models.LLAMA, models.GRANITE], ids=lambda model: model.name)
def model(request: pytest.FixtureRequest) -> models.Model:
    return request.param


@pytest.fixture
def engine(folder: Path, engines: Engines) -> Engine:
    return engines.get(EngineConfig.of(folder, {}, async_scheduling=True))


@pytest.fixture
def expected(folder: Path, oracle: Oracle) -> Answer:
    return oracle.answers(folder, [cases.PROMPT])[0]


def test_replay_is_exact(engine: Engine, model: models.Model, expected: Answer, report: Report, version: str) -> None:
    boundary = Geometry.of(engine).replay_boundary(len(cases.PROMPT))
    with watched(engine) as counts:
        assert difference(expected, engine.ask(cases.PROMPT)[0]).exact, "cold"
    assert counts["in flight"] >= len(expected.tokens) - 2
    hot, loads = engine.ask_one(cases.PROMPT)
    assert difference(expected, hot).exact and (hot.cached_tokens, loads) == (boundary, []), "hot"
    engine.evict_device()
    replay, loads = engine.ask_one(cases.PROMPT)
    found = difference(expected, replay)
    run = ReplayRun(
        model.label, version, found.tokens_equal, found.logprob == 0.0, sum(host for _, host in loads), boundary,
        leaked_pins(engine), runner="v2", run_ahead=True,
    )  # fmt: skip
    report.results.append(run)
    assert found.exact and loads == [(0, boundary)]
    run.flipped_byte_changes_output = flipped_byte_changes_output(engine, expected)
    assert run.flipped_byte_changes_output
    assert_at_rest(engine)


@pytest.mark.v2("llama")
@pytest.mark.v2_long
def test_batch_from_the_host(engine: Engine, folder: Path, oracle: Oracle) -> None:
    prompts = cases.OTHERS[:3]
    engine.ask(*prompts)
    engine.evict_device()
    answers = engine.ask(*prompts)
    assert sorted(load.host_tokens for load in engine.loads) == sorted(
        Geometry.of(engine).replay_boundary(len(prompt)) for prompt in prompts
    )
    for one, other in zip(oracle.answers(folder, prompts), answers, strict=True):
        assert_same(one, other, BATCH_TOLERANCE)
    assert_at_rest(engine)


def test_stop_token_and_abort_while_a_later_step_is_in_flight(engine: Engine, expected: Answer) -> None:
    at = next(i for i in range(5, 16) if expected.tokens[i] not in expected.tokens[:i])
    with watched(engine) as counts:
        (answer,) = engine.ask(cases.PROMPT, params=sampling(stop_token_ids=[expected.tokens[at]]))
        engine.idle()
        assert answer.tokens == expected.tokens[: at + 1]
        engine.start(cases.OTHERS[0], "1", sampling(60))
        engine.step_until(lambda: decoding_in_flight(engine, "1"))
        engine.abort("1")
        engine.idle()
    assert counts["late"] == counts["deferred"] == 2
    assert_at_rest(engine)
    engine.evict_device()
    replay, loads = engine.ask_one(cases.PROMPT)
    assert loads
    assert_same(expected, replay)


def test_failed_load_and_abort_while_loading(engine: Engine, expected: Answer) -> None:
    engine.ask(cases.PROMPT)
    engine.evict_device()
    with faults(engine) as proxy:
        proxy.fail_loads = 1
        answer = engine.ask(cases.PROMPT)[0]
        assert len(proxy.torn) == 1
        engine.evict_device()
        proxy.hold_loads = UNTIL_RELEASED
        engine.start(cases.PROMPT, "1")
        engine.step_until(lambda: proxy.num_held > 0)
        engine.abort("1")
        proxy.release()
        engine.idle()
    assert_same(expected, answer)
    assert_at_rest(engine)


def test_reset_while_a_step_is_in_flight(engine: Engine, expected: Answer) -> None:
    engine.start(cases.PROMPT, "1")
    engine.step_until(lambda: decoding_in_flight(engine, "1"))
    with pytest.raises(RuntimeError, match="reset"):
        engine.llm.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    assert_same(expected, engine.finish()["1"], BATCH_TOLERANCE)
    engine.idle()
    assert engine.llm.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    assert_at_rest(engine)
