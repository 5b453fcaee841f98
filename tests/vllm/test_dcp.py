"""Decode context parallelism: two ranks hold one sequence's cache between them.

Every cell is a model and an interleave. The reference is the same engine's own cold run, and a run is right when it is
equal to the last bit.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Engines
from support import cases
from support.compare import BATCH_TOLERANCE, Answer, assert_same, difference
from support.contexts import CELLS, GDN, GRANITE, LLAMA, NUM_RANKS, ONE_EACH, Cell, name_of, usually
from support.engine import Engine, Lookup
from support.oracle import Oracle
from support.ranks import (
    assert_failure_ends_the_request_alone,
    assert_failure_is_computed_again,
    assert_replayed,
    cold_answer,
    rpc,
    slot_of_last_load,
)
from support.records import ReplayRun, Report
from support.rest import assert_at_rest, leaked_pins
from support.theory import Geometry, rows_held
from vllm_on_cpu import models

RANKS = range(NUM_RANKS)


@pytest.fixture(scope="module", params=CELLS, ids=name_of)
def cell(request: pytest.FixtureRequest) -> Cell:
    return request.param


@pytest.fixture
def engine(cell: Cell, engines: Engines, checkpoints: Path) -> Engine:
    return engines.get(cell.config(checkpoints))


# ------------------------------------------------------------------------------------------ cold, hot, evict, replay


def test_replay_is_exact_and_hits_what_theory_says(cell: Cell, engine: Engine, report: Report, version: str) -> None:
    boundary = Geometry.of(engine).replay_boundary(len(cases.PROMPT))
    expected = cold_answer(engine, cases.PROMPT)
    hot, loads = engine.ask_one(cases.PROMPT)
    assert_same(expected, hot)
    assert (hot.cached_tokens, loads) == (boundary, [])
    engine.evict_device()
    replay, loads = engine.ask_one(cases.PROMPT)
    found = difference(expected, replay)
    run = ReplayRun(
        cell.model.label, version, found.tokens_equal, found.logprob == 0.0, sum(host for _, host in loads), boundary,
        leaked_pins(engine), tp=NUM_RANKS, dcp=NUM_RANKS, interleave_tokens=cell.interleave,
    )  # fmt: skip
    report.results.append(run)
    assert found.exact, "replay"
    assert (replay.cached_tokens, loads) == (boundary, [(0, boundary)])
    assert_at_rest(engine)
    run.flipped_byte_changes_output = all(flips_of_first_blocks(cell, engine, expected))
    assert run.flipped_byte_changes_output
    assert_at_rest(engine)


def flips_of_first_blocks(cell: Cell, engine: Engine, expected: Answer) -> list[bool]:
    """One byte on one rank alone, in each group's first block that a replay loads: did it change the answer?"""
    load = replayed(engine)
    changes = []
    for group, table in enumerate(load.tables):
        block = next(block for block in table if block)
        slot = slot_of_last_load(engine, group, block)
        changes += [flip_changes(engine, expected, rank, group, slot) for rank in RANKS]
    engine.evict_device()
    assert_same(expected, engine.ask(cases.PROMPT)[0])
    return changes


def replayed(engine: Engine) -> Lookup:
    """The load that serves the prompt now."""
    rpc(engine, "hostkv_fail_loads", 0, 0)  # puts the proxies in, which note what is loaded
    engine.evict_device()
    engine.ask(cases.PROMPT)
    return engine.loads[-1]


def flip_changes(engine: Engine, expected: Answer, rank: int, group: int, slot: int) -> bool:
    rpc(engine, "hostkv_flip", rank, group, slot, 3)
    engine.evict_device()
    changed = not difference(expected, engine.ask(cases.PROMPT)[0]).exact
    rpc(engine, "hostkv_flip", rank, group, slot, 3)
    return changed


@pytest.mark.parametrize("cell", usually(ONE_EACH, CELLS), indirect=True, ids=name_of)
def test_next_turn_loads_the_whole_of_the_last_one(engine: Engine) -> None:
    """Turn by turn from the host: what a turn that was itself loaded has added is found by the next."""
    geometry = Geometry.of(engine)
    first = engine.ask(cases.PROMPT)[0]
    turn = [*cases.PROMPT, *first.tokens, *cases.OTHERS[0][:40]]
    engine.evict_device()
    second, loads = engine.ask_one(turn)
    # The state at the first prompt's end is the newest one; attention alone has the blocks of its answer as well.
    stored = len(cases.PROMPT) if geometry.has_state else len(cases.PROMPT) + len(first.tokens)
    assert loads == [(0, geometry.replay_boundary(stored))]
    engine.evict_device()
    again, loads = engine.ask_one(turn)
    assert loads == [(0, geometry.replay_boundary(len(turn)))]
    engine.forget_all()
    expected = cold_answer(engine, turn)
    assert_same(expected, second)
    assert_same(expected, again)
    assert_at_rest(engine)


@pytest.mark.parametrize("cell", usually(ONE_EACH, CELLS), indirect=True, ids=name_of)
def test_shared_prefix_is_loaded_as_far_as_every_group_has_it(engine: Engine) -> None:
    geometry = Geometry.of(engine)
    expected = cold_answer(engine, cases.SHARING)
    engine.forget_all()
    engine.ask(cases.PROMPT)
    engine.evict_device()
    states = (geometry.replay_boundary(len(cases.PROMPT)),)
    boundary = geometry.shared_boundary(cases.SHARED_TOKENS, len(cases.SHARING), states)
    answer, loads = engine.ask_one(cases.SHARING)
    assert loads == ([(0, boundary)] if boundary else [])
    assert_same(expected, answer)
    engine.evict_device()
    again, loads = engine.ask_one(cases.SHARING)
    assert loads == [(0, geometry.replay_boundary(len(cases.SHARING)))]
    assert_same(expected, again)
    assert_at_rest(engine)


@pytest.mark.long
def test_spawned_workers_do_as_forked_ones(engines: Engines, checkpoints: Path) -> None:
    """They apply the patches of this process when they start."""
    cell = GRANITE[1]
    patches = tuple(name for name in cell.patches if name != "fork")
    engine = engines.get(cell.config(checkpoints, patches=patches))
    expected = cold_answer(engine, cases.PROMPT)
    assert_replayed(engine, expected)


@pytest.mark.long
@pytest.mark.parametrize("cell", CELLS, ids=name_of)
def test_sharing_a_context_changes_no_answer(cell: Cell, engines: Engines, checkpoints: Path) -> None:
    """The same two ranks, each with the whole sequence in its cache, answer the same to the last bit."""
    prompts = [cases.PROMPT, *cases.OTHERS[:3]]
    answers = []
    for dcp in (1, NUM_RANKS):
        engine = engines.get(cell.config(checkpoints, dcp=dcp))
        answers.append([engine.ask(prompt)[0] for prompt in prompts])
    for one, other in zip(*answers, strict=True):
        assert_same(one, other)


# ---------------------------------------------------------------------------------------- the half-filled last block


@pytest.mark.parametrize("cell", [*GRANITE, *GDN], indirect=True, ids=name_of)
def test_half_filled_block_is_stored_and_loaded_on_every_rank(cell: Cell, engine: Engine) -> None:
    """The only state of the prompt lies at an odd multiple of the hash block, inside an attention block: that block is
    there on both ranks, whichever of them holds rows of it, and each byte of a held row carries the answer."""
    geometry = Geometry.of(engine)
    prompt = cases.PROMPT if cell in GRANITE else cases.PROMPT[:230]
    boundary = geometry.replay_boundary(len(prompt))
    (group,) = (index for index, span in enumerate(geometry.spans) if boundary % span)
    expected = cold_answer(engine, prompt)
    engine.evict_device()
    rpc(engine, "hostkv_fail_loads", 0, 0)
    answer, loads = engine.ask_one(prompt)
    assert loads == [(0, boundary)]
    assert_same(expected, answer)
    block = engine.loads[-1].tables[group][boundary // geometry.spans[group]]
    slot = slot_of_last_load(engine, group, block)
    filled = boundary % geometry.spans[group]
    held = [rows_held(rank, filled, NUM_RANKS, cell.interleave) for rank in RANKS]
    assert sum(held) == filled
    for rank in RANKS:
        rpc(engine, "hostkv_flip", rank, group, slot, 3)  # the first row
        engine.evict_device()
        changed = not difference(expected, engine.ask(prompt)[0]).exact
        rpc(engine, "hostkv_flip", rank, group, slot, 3)
        assert changed == (held[rank] > 0), f"rank {rank} holds {held[rank]} rows"
    engine.evict_device()
    assert_same(expected, engine.ask(prompt)[0])
    assert_at_rest(engine)


@pytest.mark.parametrize("cell", usually(ONE_EACH, CELLS), indirect=True, ids=name_of)
def test_ranks_hold_tokens_of_their_own(cell: Cell, engine: Engine) -> None:
    """Otherwise a wrong rank's bytes would go unnoticed: no loaded block is the same on both."""
    engine.ask(cases.PROMPT)
    load = replayed(engine)
    for group, table in enumerate(load.tables):
        slots = [slot_of_last_load(engine, group, block) for block in table[: -1 or None] if block]
        for slot in slots[:3]:
            first, second = rpc(engine, "hostkv_bytes", group, slot)
            assert first != second, f"group {group}, slot {slot}"


@pytest.mark.parametrize("cell", usually([LLAMA[0], GRANITE[-1]], [*LLAMA, *GRANITE]), indirect=True, ids=name_of)
def test_two_ranks_answer_as_one_rank_with_vllms_own_kernel(
    cell: Cell, engine: Engine, oracle: Oracle, checkpoints: Path
) -> None:
    """Otherwise the reference attention could be exact and wrong. The sums of two ranks are rounded differently."""
    prompts = [cases.PROMPT, *cases.OTHERS[:3]]
    folder = models.checkpoint(cell.model, checkpoints)
    for prompt, expected in zip(prompts, oracle.answers(folder, prompts), strict=True):
        assert_same(expected, engine.ask(prompt)[0], BATCH_TOLERANCE)


# ------------------------------------------------------------------------------------------------------ failed loads


@pytest.mark.parametrize("cell", usually(ONE_EACH, CELLS), indirect=True, ids=name_of)
@pytest.mark.parametrize("rank", RANKS)
def test_torn_load_of_one_rank_that_nobody_reports_is_wrong(engine: Engine, rank: int) -> None:
    """The fault is real: the tests below would pass for nothing otherwise."""
    expected = cold_answer(engine, cases.PROMPT)
    engine.evict_device()
    rpc(engine, "hostkv_fail_loads", rank, 1, True)
    assert not difference(expected, engine.ask(cases.PROMPT)[0]).exact
    rpc(engine, "hostkv_fail_loads", rank, 0)
    engine.evict_device()
    assert_same(expected, engine.ask(cases.PROMPT)[0])


@pytest.mark.parametrize("rank", RANKS)
def test_load_that_fails_on_one_rank_is_computed_again(engine: Engine, rank: int) -> None:
    assert_failure_is_computed_again(engine, rank)


@pytest.mark.parametrize("cell", usually(ONE_EACH, CELLS), indirect=True, ids=name_of)
def test_failure_on_a_quick_rank_waits_for_the_slow_one(engine: Engine) -> None:
    expected = cold_answer(engine, cases.PROMPT)
    engine.evict_device()
    rpc(engine, "hostkv_fail_loads", 0, 1)
    rpc(engine, "hostkv_hold_loads", 1, 20)
    answer = engine.ask(cases.PROMPT)[0]
    rpc(engine, "hostkv_hold_loads", 1, 0)
    assert_same(expected, answer)
    assert_at_rest(engine)


@pytest.mark.parametrize("cell", usually(ONE_EACH, CELLS), indirect=True, ids=name_of)
def test_failure_under_fail_ends_the_request_alone(engine: Engine) -> None:
    assert_failure_ends_the_request_alone(engine)
