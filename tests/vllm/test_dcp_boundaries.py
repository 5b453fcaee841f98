"""Boundaries inside a block of attention: without them half of the prompts never hit, and around them the engine's own
copy-on-write loses bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Engines
from support import cases
from support.compare import assert_same, difference
from support.contexts import GRANITE, Cell, name_of, usually
from support.engine import Engine
from support.ranks import cold_answer
from support.rest import assert_at_rest
from support.theory import Geometry


@pytest.mark.parametrize("cell", usually(GRANITE[-1:], GRANITE), ids=name_of)
def test_coarse_boundaries_miss_what_lies_at_an_odd_multiple(cell: Cell, engines: Engines, checkpoints: Path) -> None:
    engine = engines.get(cell.config(checkpoints, {"boundaries": "coarse"}))
    geometry = Geometry.of(engine)
    for tokens, hit in ((300, 0), (340, 320)):
        prompt = cases.random_tokens(f"coarse {tokens}", tokens)
        state = geometry.replay_boundary(tokens)
        assert hit == (0 if state % geometry.scheduler_block else state)
        expected = cold_answer(engine, prompt)
        engine.evict_device()
        answer, loads = engine.ask_one(prompt)
        assert loads == ([(0, hit)] if hit else [])
        assert_same(expected, answer)
        engine.evict_device()
    assert_at_rest(engine)


UNCORRECTED = replace(GRANITE[-1], corrected=False)
TURN = [*cases.PROMPT, *cases.random_tokens("turn", 100)]
NEXT_TURN = [*TURN, *cases.random_tokens("next turn", 100)]
FILLERS = [cases.random_tokens(f"filler {i}", 280) for i in range(10)]
EAGER_AND_LAZY = pytest.mark.parametrize(
    "lazy", [False, pytest.param(True, marks=pytest.mark.long)], ids=["eager", "lazy"]
)


@EAGER_AND_LAZY
def test_what_the_engine_has_damaged_is_never_stored(lazy: bool, engines: Engines, checkpoints: Path) -> None:
    """As vLLM is, a device hit at an odd multiple of the hash block reads a half-copied block. The answers of such
    requests are wrong without any connector, and so is all that they compute and all that others compute from what they
    have left on the device; replays from the host are right."""
    engine = engines.get(UNCORRECTED.config(checkpoints, {"lazy_offload": lazy}))
    geometry = Geometry.of(engine)
    boundary = geometry.replay_boundary(len(cases.PROMPT))
    assert boundary % geometry.scheduler_block
    prompts = [cases.PROMPT, TURN, NEXT_TURN]
    expected = []
    for prompt in prompts:
        expected.append(cold_answer(engine, prompt))
        engine.forget_all()
    cold_answer(engine, cases.PROMPT)
    for prompt, right, hit in zip(prompts, expected, (boundary, boundary, 384), strict=True):
        damaged, loads = engine.ask_one(prompt)
        assert (damaged.cached_tokens, loads) == (hit, [])
        assert not difference(right, damaged).exact, "vLLM copies the whole block: the correction can go"

    for prompt, right, hit in (
        (NEXT_TURN, expected[2], boundary),
        (cases.PROMPT, expected[0], boundary),
        (TURN, expected[1], boundary),
        (TURN, expected[1], geometry.replay_boundary(len(TURN))),
        (NEXT_TURN, expected[2], geometry.replay_boundary(len(NEXT_TURN))),
    ):
        evict(engine, lazy)
        answer, loads = engine.ask_one(prompt)
        assert loads == [(0, hit)], "stored is what was computed behind a load, and nothing else"
        assert_same(right, answer)
    assert_at_rest(engine)


@EAGER_AND_LAZY
def test_load_takes_the_place_of_a_half_copied_block(lazy: bool, engines: Engines, checkpoints: Path) -> None:
    """The device has the prompt up to an odd multiple, the host more: the engine asks from the last whole block on, so
    that the load brings the block that would have been copied in part."""
    engine = engines.get(UNCORRECTED.config(checkpoints, {"lazy_offload": lazy}))
    geometry = Geometry.of(engine)
    whole = geometry.replay_boundary(len(cases.PROMPT)) // geometry.scheduler_block * geometry.scheduler_block
    expected = cold_answer(engine, NEXT_TURN)
    engine.forget_all()
    expected_turn = cold_answer(engine, TURN)
    evict(engine, lazy)
    engine.ask(cases.PROMPT)
    answer, loads = engine.ask_one(TURN)
    assert loads == [(whole, geometry.replay_boundary(len(TURN)) - whole)]
    assert_same(expected_turn, answer)
    evict(engine, lazy)
    answer, loads = engine.ask_one(NEXT_TURN)
    assert loads == [(0, geometry.replay_boundary(len(TURN)))]
    assert_same(expected, answer)
    assert_at_rest(engine)


def evict(engine: Engine, lazy: bool) -> None:
    """A lazy store waits until the device is about to drop a block."""
    if lazy:
        engine.evict_by_use(FILLERS)
    engine.evict_device()
