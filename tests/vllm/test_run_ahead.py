"""Two steps in flight (AsyncScheduler): what ends, is preempted or reset while a later step of its own still runs.

A step's message is built before the results of the step before it are known. test_requests.py and others run in this
mode too (`--run-ahead`); here is what exists in this mode alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Engines
from support import cases
from support.compare import BATCH_TOLERANCE, Answer, assert_same
from support.engine import Engine, EngineConfig, sampling
from support.hooks import UNTIL_RELEASED, faults
from support.in_flight import decoding_in_flight, request_named, watched
from support.oracle import Oracle
from support.ranks import assert_replayed
from support.rest import assert_at_rest
from vllm_on_cpu import models

pytestmark = pytest.mark.run_ahead

MODELS = [models.LLAMA, models.GEMMA, models.GRANITE]


@pytest.fixture(scope="module", params=MODELS, ids=lambda model: model.name)
def model(request: pytest.FixtureRequest) -> models.Model:
    return request.param


@pytest.fixture
def engine(folder: Path, engines: Engines) -> Engine:
    return engines.get(EngineConfig.of(folder, {}, async_scheduling=True))


@pytest.fixture
def expected(folder: Path, oracle: Oracle) -> Answer:
    """Of the prompt, by an engine that never runs ahead and has no connector."""
    return oracle.answers(folder, [cases.PROMPT])[0]


def test_results_arrive_while_the_next_step_is_in_flight(engine: Engine, expected: Answer) -> None:
    """The mode is what it says; everything below would prove nothing otherwise."""
    with watched(engine) as counts:
        assert_same(expected, engine.ask(cases.PROMPT)[0])
        engine.idle()
    assert counts["in flight"] >= len(expected.tokens) - 2
    assert_replayed(engine, expected)


def test_stop_token_is_met_while_a_later_step_is_in_flight(engine: Engine, expected: Answer) -> None:
    at = next(i for i in range(5, 16) if expected.tokens[i] not in expected.tokens[:i])
    with watched(engine) as counts:
        (answer,) = engine.ask(cases.PROMPT, params=sampling(stop_token_ids=[expected.tokens[at]]))
        engine.idle()
    assert answer.tokens == expected.tokens[: at + 1]
    assert answer.logprobs == expected.logprobs[: at + 1]
    assert counts["late"] == 1 and counts["deferred"] == 1, "the step behind the stop ran, its output was dropped"
    assert_replayed(engine, expected)


def test_abort_while_a_step_is_in_flight(engine: Engine, expected: Answer) -> None:
    with watched(engine) as counts:
        engine.start(cases.PROMPT, "1", sampling(60))
        engine.step_until(lambda: decoding_in_flight(engine, "1"))
        engine.abort("1")
        assert engine.scheduler.deferred_frees, "freed under a running step"
        engine.idle()
    assert counts["late"] == 1 and counts["deferred"] == 1
    assert not engine.scheduler.deferred_frees
    assert_replayed(engine, expected)


def test_abort_while_the_first_chunk_of_a_prompt_is_in_flight(engine: Engine, expected: Answer) -> None:
    """Its stores are planned by a message that the worker has; nothing of the second chunk was computed."""
    engine.start(cases.PROMPT, "1")
    engine.step_until(lambda: bool(engine.core.batch_queue))
    assert request_named(engine, "1").num_output_tokens == 0
    engine.abort("1")
    engine.idle()
    assert_at_rest(engine)
    engine.evict_device()
    assert_same(expected, engine.ask(cases.PROMPT)[0])
    assert_replayed(engine, expected)


@pytest.mark.parametrize("reset_connector", [False, True], ids=["device", "device and host"])
def test_reset_while_a_step_is_in_flight_raises_and_the_request_ends_right(
    engine: Engine, expected: Answer, reset_connector: bool
) -> None:
    """vLLM cannot free what a running step uses: it raises, with the request preempted already. A later reset works."""
    engine.start(cases.PROMPT, "1")
    engine.step_until(lambda: decoding_in_flight(engine, "1"))
    with pytest.raises(RuntimeError, match="reset"):
        engine.llm.reset_prefix_cache(reset_running_requests=True, reset_connector=reset_connector)
    # Its tokens so far are computed again as part of a prompt: another split of the recurrence.
    assert_same(expected, engine.finish()["1"], BATCH_TOLERANCE)
    engine.idle()
    assert engine.llm.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    assert_at_rest(engine)
    assert engine.ask_one(cases.PROMPT)[1] == [], "the host forgot"
    assert_replayed(engine, expected)


@pytest.mark.parametrize("reset_connector", [False, True], ids=["device", "device and host"])
def test_reset_while_a_load_is_in_flight(engine: Engine, expected: Answer, reset_connector: bool) -> None:
    engine.ask(cases.PROMPT)
    engine.evict_device()
    with faults(engine) as proxy:
        proxy.hold_loads = UNTIL_RELEASED
        engine.start(cases.PROMPT, "1")
        engine.step_until(lambda: proxy.num_held > 0)
        with pytest.raises(RuntimeError, match="reset"):
            engine.llm.reset_prefix_cache(reset_running_requests=True, reset_connector=reset_connector)
        proxy.release()
        answers = engine.finish()
    assert_same(expected, answers["1"])
    engine.idle()
    assert engine.llm.reset_prefix_cache(reset_running_requests=True, reset_connector=reset_connector)
    assert_at_rest(engine)


def test_load_ends_while_another_request_is_always_in_flight(engine: Engine, oracle: Oracle, folder: Path) -> None:
    """The result of a load lags behind the messages: none of them plans for the request before it is known."""
    other = cases.OTHERS[0]
    first, second = oracle.answers(folder, [cases.PROMPT]) + oracle.answers(folder, [other], tokens=60)
    engine.ask(cases.PROMPT)
    engine.evict_device()
    with faults(engine) as proxy, watched(engine) as counts:
        proxy.hold_loads = 6
        engine.start(other, "2", sampling(60))
        engine.step_until(lambda: decoding_in_flight(engine, "2"))
        engine.start(cases.PROMPT, "1")
        answers = engine.finish()
    assert counts["in flight"] > 30 and len(engine.loads) == 1
    assert_same(first, answers["1"], BATCH_TOLERANCE)
    assert_same(second, answers["2"], BATCH_TOLERANCE)
    assert_at_rest(engine)


def test_failed_load_while_another_request_is_in_flight(engine: Engine, oracle: Oracle, folder: Path) -> None:
    other = cases.OTHERS[0]
    first, second = oracle.answers(folder, [cases.PROMPT]) + oracle.answers(folder, [other], tokens=60)
    engine.ask(cases.PROMPT)
    engine.evict_device()
    with faults(engine) as proxy:
        proxy.fail_loads = 1
        engine.start(other, "2", sampling(60))
        engine.step_until(lambda: decoding_in_flight(engine, "2"))
        engine.start(cases.PROMPT, "1")
        answers = engine.finish()
        assert len(proxy.torn) == 1
    assert_same(first, answers["1"], BATCH_TOLERANCE)
    assert_same(second, answers["2"], BATCH_TOLERANCE)
    assert_at_rest(engine)
