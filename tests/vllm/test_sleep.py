"""Sleep and wake as vLLM 0.33 calls them: device memory is given up and comes back empty, host memory stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Engines
from support import cases
from support.compare import Answer, assert_same, difference
from support.engine import Engine, EngineConfig
from support.hooks import UNTIL_RELEASED, faults
from support.oracle import Oracle
from support.rest import assert_at_rest
from support.sleeper import Sleeper
from support.theory import Geometry
from vllm_on_cpu import models

from hostkv.vllm import HostKVConnector


@pytest.fixture(scope="module", params=[models.LLAMA, models.GRANITE], ids=lambda model: model.name)
def model(request: pytest.FixtureRequest) -> models.Model:
    return request.param


@pytest.fixture
def engine(folder: Path, engines: Engines) -> Engine:
    return engines.get(EngineConfig.of(folder, {}))


@pytest.fixture
def expected(folder: Path, oracle: Oracle) -> Answer:
    return oracle.answers(folder, [cases.PROMPT])[0]


def assert_served_from_the_host(engine: Engine, expected: Answer) -> None:
    engine.evict_device()
    answer, loads = engine.ask_one(cases.PROMPT)
    assert loads == [(0, Geometry.of(engine).replay_boundary(len(cases.PROMPT)))]
    assert_same(expected, answer)
    assert_at_rest(engine)


def test_device_contents_are_gone(engine: Engine, expected: Answer) -> None:
    """The fake is no pretence: an engine that does not reset its prefix cache is wrong behind it."""
    engine.ask(cases.PROMPT)
    engine.idle()
    sleeper = Sleeper(engine)
    sleeper.give_up()
    sleeper.wake()
    hot, loads = engine.ask_one(cases.PROMPT)
    assert hot.cached_tokens > 0 and loads == []
    assert not difference(expected, hot).exact
    engine.forget_all()
    assert_same(expected, engine.ask(cases.PROMPT)[0])
    assert_at_rest(engine)


@pytest.mark.parametrize("moved", [False, True], ids=["same address", "other address"])
def test_host_contents_serve_after_the_wake(engine: Engine, expected: Answer, moved: bool) -> None:
    engine.ask(cases.PROMPT)
    sleeper = Sleeper(engine)
    sleeper.sleep(reset_connector=False)
    sleeper.wake(moved=moved)
    assert_served_from_the_host(engine, expected)
    # What is computed now is stored from where the memory is now.
    fresh = cases.random_tokens("after the wake", 300)
    cold, loads = engine.ask_one(fresh)
    assert loads == []
    engine.evict_device()
    replay, loads = engine.ask_one(fresh)
    assert loads and difference(cold, replay).exact
    assert_at_rest(engine)


def test_sleep_that_resets_the_connector_forgets_the_host(engine: Engine, expected: Answer) -> None:
    """As 0.33 does it. Nothing is found, everything is stored anew."""
    engine.ask(cases.PROMPT)
    sleeper = Sleeper(engine)
    sleeper.sleep()
    sleeper.wake()
    answer, loads = engine.ask_one(cases.PROMPT)
    assert loads == []
    assert_same(expected, answer)
    assert_served_from_the_host(engine, expected)


def test_load_that_ended_unseen_before_the_sleep_has_failed(engine: Engine, expected: Answer) -> None:
    """Its bytes went to memory that is gone. The engine hears of it when it is awake, and computes."""
    engine.ask(cases.PROMPT)
    engine.evict_device()
    sleeper = Sleeper(engine)
    with faults(engine) as proxy:
        proxy.hold_loads = UNTIL_RELEASED
        engine.start(cases.PROMPT, "1")
        engine.step_until(lambda: proxy.num_held > 0)
        sleeper.give_up()
        sleeper.wake()
        proxy.release()
        answers = engine.finish()
    assert_same(expected, answers["1"])
    assert_served_from_the_host(engine, expected)


def test_load_of_the_step_before_the_sleep_has_failed(engine: Engine, expected: Answer) -> None:
    """Whether the copy runs still or has ended: the engine has not heard of it."""
    engine.ask(cases.PROMPT)
    engine.evict_device()
    sleeper = Sleeper(engine)
    with faults(engine) as proxy:
        engine.start(cases.PROMPT, "1")
        proxy.hold_loads = 1
        engine.step_until(lambda: bool(proxy.loads))
        sleeper.give_up()
        sleeper.wake(moved=True)
        answers = engine.finish()
    assert_same(expected, answers["1"])
    assert_served_from_the_host(engine, expected)


def test_stores_that_ended_unseen_before_the_sleep_count(engine: Engine, expected: Answer) -> None:
    """They read while the memory was there."""
    sleeper = Sleeper(engine)
    with faults(engine) as proxy:
        proxy.hold_stores = UNTIL_RELEASED
        engine.ask(cases.PROMPT)
        assert proxy.num_held > 0
        sleeper.give_up()
        sleeper.wake()
        proxy.release()
        engine.idle()
    assert_served_from_the_host(engine, expected)


def test_steps_of_an_engine_asleep_copy_nothing(engine: Engine, expected: Answer) -> None:
    """No engine should run them. A load fails and is computed, stores are given up; awake, all is as ever."""
    engine.ask(cases.PROMPT)
    engine.evict_device()
    other = cases.OTHERS[0]
    with faults(engine) as proxy:
        engine.worker_connector.unregister_kv_caches()
        answer, loads = engine.ask_one(cases.PROMPT)
        engine.ask(other)
        engine.idle()
        assert loads and proxy.loads and proxy.stores
        engine.worker_connector.restore_kv_caches()
    assert_same(expected, answer)
    engine.evict_device()
    assert engine.ask_one(other)[1] == [], "never stored"
    assert_same(expected, engine.ask(cases.PROMPT)[0])
    assert_served_from_the_host(engine, expected)


def test_calls_out_of_order_change_nothing(engine: Engine, expected: Answer) -> None:
    """Twice the same, or back before away: 0.33 promises that both may be repeated."""
    worker = engine.worker_connector
    engine.ask(cases.PROMPT)
    engine.idle()
    worker.restore_kv_caches()
    worker.unregister_kv_caches()
    worker.unregister_kv_caches()
    worker.restore_kv_caches()
    worker.restore_kv_caches()
    with pytest.raises(RuntimeError, match="already"):
        worker.register_kv_caches(worker.worker_side.kv_caches)
    assert_served_from_the_host(engine, expected)


def test_caches_registered_anew_take_the_place_of_those_given_up(engine: Engine, expected: Answer) -> None:
    """An engine may allocate and register again in place of restoring."""
    engine.ask(cases.PROMPT)
    sleeper = Sleeper(engine)
    sleeper.sleep(reset_connector=False)
    caches = dict(engine.worker_connector.worker_side.kv_caches)
    engine.worker_connector.register_kv_caches(caches)
    engine.worker_connector.restore_kv_caches()
    assert_served_from_the_host(engine, expected)


def test_engine_asleep_shuts_down(engine: Engine, engines: Engines) -> None:
    engine.ask(cases.PROMPT)
    Sleeper(engine).sleep()
    engines.drop()


def test_sleep_mode_is_supported() -> None:
    assert HostKVConnector.supports_sleep_mode(None)
