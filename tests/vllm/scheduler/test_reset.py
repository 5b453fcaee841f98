"""reset_cache: what was stored before is never served again, whatever is in flight."""

from __future__ import annotations

import pytest
from rig.ranks import never
from vllm.v1.request import RequestStatus


def test_a_reset_at_rest_says_so_and_empties_the_host(engine_of, tokens):
    engine = engine_of("full")
    a = tokens(1, 320)
    engine.run("a", a)
    assert engine.connector.reset_cache() is True
    engine.forget_device()
    assert engine.run("b", a) == (0, 0)
    engine.forget_device()
    assert engine.run("c", a) == (0, 304)


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_a_reset_while_stores_run_says_no_and_then_yes(engine_of, tokens, mode):
    engine = engine_of("full", device_blocks=60, store_mode=mode, batched_tokens=256)
    engine.ranks.hold = lambda job, rank: True
    a = tokens(1, 320)
    engine.add("a", a)
    for _ in range(4):
        engine.step()
    for seed in range(10, 12):
        engine.add(f"x{seed}", tokens(seed, 320))
        for _ in range(4):
            engine.step()
    assert engine.ranks.seen
    assert engine.connector.reset_cache() is False
    engine.ranks.hold = never
    engine.run_until_idle()
    assert engine.connector.reset_cache() is True
    engine.forget_device()
    assert engine.run("b", a) == (0, 0)


def test_a_reset_while_a_load_runs_makes_the_request_compute(engine_of, tokens):
    engine = engine_of("full")
    a = tokens(1, 320)
    engine.run("a", a)
    engine.forget_device()
    engine.ranks.hold = lambda job, rank: job.direction != "store"
    engine.add("b", a)
    engine.step()
    assert engine.scheduler.requests["b"].status == RequestStatus.WAITING_FOR_REMOTE_KVS
    assert engine.connector.reset_cache() is False
    engine.ranks.hold = never
    engine.run_until_idle()
    assert engine.connector.reset_cache() is True
    assert engine.hits["b"][1] == 0


def test_what_a_running_request_had_computed_before_a_reset_is_not_served_behind_it(engine_of, tokens):
    engine = engine_of("full")
    a = tokens(1, 320)
    engine.add("a", a, 200)
    for _ in range(3):
        engine.step()
    engine.connector.reset_cache()
    engine.run_until_idle()
    engine.forget_device()
    assert engine.run("b", a + [7] * 198) == (0, 0)
    engine.forget_device()
    assert engine.run("c", a) == (0, 304)
