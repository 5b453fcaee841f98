"""Engines of several workers: calls into one rank, and what a failure there leads to, however they share the work."""

from __future__ import annotations

from typing import Any

from support import cases
from support.compare import Answer, assert_same
from support.engine import Engine, Prompt
from support.rest import assert_at_rest
from support.theory import Geometry


def rpc(engine: Engine, method: str, *arguments: Any) -> list[Any]:
    """One answer a rank."""
    return list(engine.llm.collective_rpc(method, args=arguments))


def slot_of_last_load(engine: Engine, group: int, block: int) -> int:
    """The host slot that filled this device block, the same on every rank: each of them has loaded it."""
    (slot,) = set(rpc(engine, "hostkv_last_slot", group, block))
    return int(slot)


def cold_answer(engine: Engine, prompt: Prompt, **more: Any) -> Answer:
    """The reference: nothing of the prompt is cached."""
    answer, loads = engine.ask_one(prompt, **more)
    assert (answer.cached_tokens, loads) == (0, []), "not cold"
    return answer


def assert_replayed(engine: Engine, expected: Answer, tolerance: float = 0.0) -> None:
    """At rest now; off the device, cases.PROMPT comes back from the host to its last boundary."""
    assert_at_rest(engine)
    engine.evict_device()
    answer, loads = engine.ask_one(cases.PROMPT)
    assert loads == [(0, Geometry.of(engine).replay_boundary(len(cases.PROMPT)))]
    assert_same(expected, answer, tolerance)
    assert_at_rest(engine)


def assert_failure_is_computed_again(engine: Engine, rank: int, tolerance: float = 0.0) -> None:
    """One of two ranks fails its load: both compute again, and what was dropped is stored anew."""
    expected = cold_answer(engine, cases.PROMPT)
    engine.evict_device()
    before = rpc(engine, "hostkv_torn_loads")
    rpc(engine, "hostkv_fail_loads", rank, 1)
    answer = engine.ask(cases.PROMPT)[0]
    after = rpc(engine, "hostkv_torn_loads")
    assert [b - a for a, b in zip(before, after, strict=True)] == [int(rank == 0), int(rank == 1)]
    assert_same(expected, answer, tolerance)
    assert_replayed(engine, expected, tolerance)


def assert_failure_ends_the_request_alone(engine: Engine, tolerance: float = 0.0) -> None:
    """Under the policy `fail`."""
    expected = cold_answer(engine, cases.PROMPT)
    engine.evict_device()
    engine.scheduler.recompute_kv_load_failures = False
    try:
        rpc(engine, "hostkv_fail_loads", 1, 1)
        answer = engine.ask(cases.PROMPT)[0]
    finally:
        engine.scheduler.recompute_kv_load_failures = True
    assert (answer.finish_reason, answer.tokens) == ("error", ())
    engine.evict_device()
    assert_same(expected, engine.ask(cases.PROMPT)[0], tolerance)
    assert_at_rest(engine)
