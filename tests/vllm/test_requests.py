"""Requests as users send them: shared prefixes, next turns, batches, long prompts, isolation, aborts, resets."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import cases
from support.compare import BATCH_TOLERANCE, assert_right, assert_same
from support.engine import Engine, sampling
from support.hooks import UNTIL_RELEASED, faults
from support.oracle import Oracle
from support.rest import assert_at_rest
from support.theory import Geometry

pytestmark = pytest.mark.run_ahead("llama", "granite")


@pytest.mark.all_versions
@pytest.mark.v2("llama", "granite")
@pytest.mark.v2_long
def test_next_turn_resumes_where_the_first_prompt_ended(engine: Engine, folder: Path, oracle: Oracle) -> None:
    geometry = Geometry.of(engine)
    first, _ = engine.ask_one(cases.PROMPT)
    turn = [*cases.PROMPT, *first.tokens, *cases.random_tokens("second turn", 40)]
    engine.evict_device()
    second, loads = engine.ask_one(turn)
    assert loads == [(0, geometry.replay_boundary(len(cases.PROMPT)))]
    (expected,) = oracle.answers(folder, [turn])
    assert_right(engine, expected, second)
    assert_at_rest(engine)


@pytest.mark.v2("llama")
@pytest.mark.v2_long("llama", "gemma3", "granite")
def test_shared_prefix_is_served_once_a_state_stands_at_its_end(engine: Engine, folder: Path, oracle: Oracle) -> None:
    """Attention serves it at once. A recurrent model has no state inside the first prompt: the second sharer computes
    and leaves one at the junction, the third resumes there."""
    geometry = Geometry.of(engine)
    engine.ask(cases.PROMPT)
    junction = geometry.down(cases.SHARED_TOKENS)
    other = cases.PROMPT[: cases.SHARED_TOKENS] + cases.random_tokens("third tail", 70)
    for prompt, states in ((cases.SHARING, ()), (other, (junction,))):
        engine.evict_device()
        answer, loads = engine.ask_one(prompt)
        expected_hit = geometry.shared_boundary(cases.SHARED_TOKENS, len(prompt), states)
        assert loads == ([(0, expected_hit)] if expected_hit else [])
        (expected,) = oracle.answers(folder, [prompt])
        assert_right(engine, expected, answer)
    assert_at_rest(engine)


@pytest.mark.all_versions
@pytest.mark.v2("llama")
@pytest.mark.v2_long("llama", "gemma3")
def test_batch_of_six_is_served_from_the_host(engine: Engine, folder: Path, oracle: Oracle) -> None:
    geometry = Geometry.of(engine)
    expected = oracle.answers(folder, cases.OTHERS)
    engine.ask(*cases.OTHERS)
    engine.evict_device()
    before = len(engine.loads)
    answers = engine.ask(*cases.OTHERS)
    hits = sorted(load.device_tokens + load.host_tokens for load in engine.loads[before:])
    assert hits == sorted(geometry.replay_boundary(len(prompt)) for prompt in cases.OTHERS)
    for one, other in zip(expected, answers, strict=True):
        assert_right(engine, one, other, BATCH_TOLERANCE)
    assert_at_rest(engine)


def test_device_refilled_by_others_loads_what_it_lost(engine: Engine, folder: Path, oracle: Oracle) -> None:
    (expected,) = oracle.answers(folder, [cases.PROMPT])
    engine.ask(cases.PROMPT)
    engine.evict_by_use([cases.random_tokens(f"refill {i}", 280) for i in range(14)])
    answer, loads = engine.ask_one(cases.PROMPT)
    boundary = Geometry.of(engine).replay_boundary(len(cases.PROMPT))
    assert [device + host for device, host in loads] == [boundary]
    assert_same(expected, answer)
    assert_at_rest(engine)


@pytest.mark.v2_long("granite")
def test_long_prompt_is_computed_in_chunks_and_replayed(engine: Engine, folder: Path, oracle: Oracle) -> None:
    """704 tokens at 256 a step: four steps, each storing what it completed."""
    prompt = cases.random_tokens("long", 704)
    (expected,) = oracle.answers(folder, [prompt])
    cold, _ = engine.ask_one(prompt)
    assert_same(expected, cold)
    engine.evict_device()
    replay, loads = engine.ask_one(prompt)
    assert loads == [(0, Geometry.of(engine).replay_boundary(len(prompt)))]
    assert_same(expected, replay)
    assert_at_rest(engine)


def test_prompt_of_whole_blocks_leaves_its_last_block_to_the_engine(
    engine: Engine, folder: Path, oracle: Oracle
) -> None:
    """One token must be computed: a prompt of ten blocks can hit nine."""
    unit = Geometry.of(engine).unit
    prompt = cases.random_tokens("whole blocks", 5 * unit)
    (expected,) = oracle.answers(folder, [prompt])
    engine.ask(prompt)
    engine.evict_device()
    answer, loads = engine.ask_one(prompt)
    assert loads == [(0, 4 * unit)]
    assert_same(expected, answer)
    assert_at_rest(engine)


def test_long_answer_crosses_blocks_and_the_next_turn_hits_it(engine: Engine, folder: Path, oracle: Oracle) -> None:
    """Attention keeps the blocks of an answer too; a recurrent model resumes at the prompt's state."""
    geometry = Geometry.of(engine)
    prompt = cases.random_tokens("talkative", 100)
    (expected,) = oracle.answers(folder, [prompt], tokens=150)
    answer, _ = engine.ask_one(prompt, params=sampling(150))
    assert_same(expected, answer)
    turn = [*prompt, *answer.tokens, *cases.random_tokens("reply", 30)]
    engine.evict_device()
    _, loads = engine.ask_one(turn)
    # The last sampled token was never computed.
    boundary = geometry.replay_boundary(len(prompt)) if geometry.has_state else geometry.down(len(prompt) + 149)
    assert loads == [(0, boundary)]
    assert_at_rest(engine)


@pytest.mark.all_versions
def test_salts_do_not_see_each_other(engine: Engine) -> None:
    boundary = Geometry.of(engine).replay_boundary(len(cases.PROMPT))
    engine.ask(cases.PROMPT, salt="one")
    for salt, expected in (("two", []), (None, []), ("one", [(0, boundary)])):
        engine.evict_device()
        assert engine.ask_one(cases.PROMPT, salt=salt)[1] == expected, salt
    assert_at_rest(engine)


@pytest.mark.all_versions
def test_prompt_logprobs_are_computed_not_loaded(engine: Engine, folder: Path, oracle: Oracle) -> None:
    """Such a request needs every position; what it computes serves others."""
    (expected,) = oracle.answers(folder, [cases.PROMPT], prompt_logprobs=True)
    engine.ask(cases.PROMPT)
    engine.evict_device()
    answer, loads = engine.ask_one(cases.PROMPT, params=sampling(prompt_logprobs=1))
    assert loads == []
    assert len(answer.prompt_logprobs) == len(cases.PROMPT) - 1
    assert_same(expected, answer)
    assert_at_rest(engine)


@pytest.mark.all_versions
@pytest.mark.v2
def test_abort_while_loading_gives_everything_back(engine: Engine, folder: Path, oracle: Oracle) -> None:
    engine.ask(cases.PROMPT)
    engine.evict_device()
    with faults(engine) as proxy:
        proxy.hold_loads = UNTIL_RELEASED
        engine.start(cases.PROMPT, "9001")
        engine.step_until(lambda: proxy.num_held > 0)
        engine.abort("9001")
        assert engine.scheduler.has_requests(), "the load still runs: the engine must go on stepping"
        assert engine.free_blocks < engine.free_blocks_at_start, "its targets are still written"
        proxy.release()
        engine.idle()
    assert_at_rest(engine)
    engine.evict_device()
    answer, loads = engine.ask_one(cases.PROMPT)
    assert loads
    assert_same(oracle.answers(folder, [cases.PROMPT])[0], answer)
    assert_at_rest(engine)


def test_slow_load_is_waited_for(engine: Engine, folder: Path, oracle: Oracle) -> None:
    engine.ask(cases.PROMPT)
    engine.evict_device()
    with faults(engine) as proxy:
        proxy.hold_loads = 5
        answer, loads = engine.ask_one(cases.PROMPT)
    assert loads
    assert_same(oracle.answers(folder, [cases.PROMPT])[0], answer)
    assert_at_rest(engine)


@pytest.mark.sync_only
@pytest.mark.all_versions
@pytest.mark.v2("llama", "granite")
def test_reset_with_running_requests_lets_them_finish_right(engine: Engine, folder: Path, oracle: Oracle) -> None:
    prompts = [cases.PROMPT, cases.OTHERS[0]]
    expected = oracle.answers(folder, prompts)
    engine.start(prompts[0], "1")
    engine.start(prompts[1], "2")
    for _ in range(4):
        engine.step()
    assert not engine.llm.reset_prefix_cache(), "requests run"
    assert engine.llm.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    answers = engine.finish()
    for number, one in zip(("1", "2"), expected, strict=True):
        assert_right(engine, one, answers[number], BATCH_TOLERANCE)
    assert_at_rest(engine)


def test_reset_of_the_connector_forgets_the_host(engine: Engine, folder: Path, oracle: Oracle) -> None:
    engine.ask(cases.PROMPT)
    engine.forget_all()
    answer, loads = engine.ask_one(cases.PROMPT)
    assert loads == []
    assert_same(oracle.answers(folder, [cases.PROMPT])[0], answer)
    engine.evict_device()
    _, loads = engine.ask_one(cases.PROMPT)
    assert loads, "stored again after the reset"
    assert_at_rest(engine)


@pytest.mark.v2("llama")
def test_reset_of_the_connector_during_a_load_keeps_tokens_right(engine: Engine, folder: Path, oracle: Oracle) -> None:
    """The load's bytes are not wanted any more: the request computes, and nothing of before is offered again."""
    engine.ask(cases.PROMPT)
    engine.evict_device()
    with faults(engine) as proxy:
        proxy.hold_loads = UNTIL_RELEASED
        engine.start(cases.PROMPT, "7")
        engine.step_until(lambda: proxy.num_held > 0)
        assert not engine.llm.reset_prefix_cache(reset_connector=True), "a request waits for its load"
        proxy.release()
        before = len(engine.loads)
        answers = engine.finish()
        assert len(engine.loads) == before, "offered again after the reset"
    assert_same(oracle.answers(folder, [cases.PROMPT])[0], answers["7"])
    assert_at_rest(engine)
