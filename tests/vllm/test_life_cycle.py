"""Stores and rows over time on the real engine: what upstream's own offloading tests demand, against HostKV."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import Engines
from support import cases
from support.compare import assert_same
from support.engine import Engine, EngineConfig, sampling
from support.hooks import UNTIL_RELEASED, faults
from support.oracle import Oracle
from support.rest import assert_at_rest
from support.theory import Geometry
from vllm_on_cpu import models

pytestmark = pytest.mark.run_ahead("llama", "granite")


def test_same_prompt_twice_is_stored_once(engine: Engine) -> None:
    """Alone, at once with its twin, and again when it is stored already."""

    def planned(*prompts: list[int]) -> int:
        before = engine.metrics()["planned_store_blocks"]
        engine.ask(*prompts)
        engine.idle()
        return engine.metrics()["planned_store_blocks"] - before

    alone = planned(cases.PROMPT)
    assert alone > 0
    engine.forget_all()
    assert planned(cases.PROMPT, cases.PROMPT) == alone
    engine.evict_device()
    assert planned(cases.PROMPT) == 0
    assert_at_rest(engine)


@pytest.mark.v2("llama", "granite")
def test_request_that_ends_before_its_stores_keeps_its_blocks_until_they_end(
    engine: Engine, folder: Path, oracle: Oracle
) -> None:
    with faults(engine) as proxy:
        proxy.hold_stores = UNTIL_RELEASED
        engine.ask(cases.PROMPT)
        assert proxy.num_held > 0
        assert engine.free_blocks < engine.free_blocks_at_start, "the source of a running copy was given away"
        proxy.release()
        engine.idle()
    assert_at_rest(engine)
    engine.evict_device()
    answer, loads = engine.ask_one(cases.PROMPT)
    assert loads == [(0, Geometry.of(engine).replay_boundary(len(cases.PROMPT)))]
    assert_same(oracle.answers(folder, [cases.PROMPT])[0], answer)


def test_stores_that_a_reset_overtakes_are_never_offered(engine: Engine) -> None:
    with faults(engine) as proxy:
        proxy.hold_stores = UNTIL_RELEASED
        engine.ask(cases.PROMPT)
        engine.llm.reset_prefix_cache(reset_connector=True)
        proxy.release()
        engine.idle()
    engine.evict_device()
    _, loads = engine.ask_one(cases.PROMPT)
    assert loads == []
    assert_at_rest(engine)


@pytest.mark.v2("gemma3", "granite")
def test_null_blocks_are_never_copied(engine: Engine) -> None:
    """Windows and recurrent groups have holes in their tables: block 0."""
    prompt = cases.random_tokens("long", 704)
    with faults(engine) as proxy:
        engine.ask(prompt)
        engine.evict_device()
        engine.ask(prompt)
        assert proxy.stores and proxy.loads
        assert all(block != 0 for job in proxy.jobs for _, block, _ in job.blocks)
    assert_at_rest(engine)


@pytest.mark.v2("llama", "gemma3")
def test_device_prefix_and_host_suffix_join(engine: Engine, folder: Path, oracle: Oracle) -> None:
    """The device holds the first 160 tokens, the host the rest: only the rest is loaded."""
    unit = Geometry.of(engine).unit
    engine.ask(cases.PROMPT)
    engine.evict_device()
    engine.ask(cases.PROMPT[: 5 * unit + 1], params=sampling(1))
    engine.idle()
    answer, loads = engine.ask_one(cases.PROMPT)
    boundary = Geometry.of(engine).replay_boundary(len(cases.PROMPT))
    assert loads == [(5 * unit, boundary - 5 * unit)]
    assert_same(oracle.answers(folder, [cases.PROMPT])[0], answer)
    assert_at_rest(engine)


def test_shutdown_with_a_load_in_flight_ends(engine: Engine, engines: Engines) -> None:
    engine.ask(cases.PROMPT)
    engine.evict_device()
    engine.start(cases.PROMPT, "1")
    engine.step()
    assert engine.loads
    engines.drop()


def cached_after_eviction(engine: Engine, prompt: list[int]) -> int:
    """Host tokens that a replay finds; changes the order of use."""
    engine.evict_device()
    return sum(host for _, host in engine.ask_one(prompt, params=sampling(1))[1])


def test_full_pool_gives_up_what_was_used_longest_ago(engines: Engines, checkpoints: Path, version: str) -> None:
    """Room for three prompts: the fourth costs the one that nobody asked for again."""
    folder = cases.checkpoint(models.LLAMA, checkpoints, version)
    block_bytes = 3 * 16384
    engine = engines.get(EngineConfig.of(folder, {"cpu_bytes_to_use": 30 * block_bytes}))
    first, second, third, fourth = (cases.random_tokens(f"lru {i}", 300) for i in range(4))
    for prompt in (first, second, third):
        engine.evict_device()
        engine.ask(prompt, params=sampling(1))
    engine.idle()
    assert engine.metrics()["evicted_blocks"] == 0
    assert cached_after_eviction(engine, first) == 288
    engine.evict_device()
    engine.ask(fourth, params=sampling(1))
    engine.idle()
    assert engine.metrics()["evicted_blocks"] > 0
    assert cached_after_eviction(engine, second) < 288
    assert cached_after_eviction(engine, first) == 288
    assert_at_rest(engine)


def test_rows_promised_to_a_waiting_request_stay(
    engines: Engines, oracle: Oracle, checkpoints: Path, version: str
) -> None:
    """Both pools tight: between a request's lookup and its blocks others need rows and device blocks."""
    folder = cases.checkpoint(models.GRANITE, checkpoints, version)
    engine = engines.get(
        EngineConfig.of(folder, {"cpu_bytes_to_use": 2 << 20}, num_gpu_blocks_override=28, max_model_len=512)
    )
    prompts = [cases.random_tokens(f"promised {i % 9}", 250) for i in range(18)]
    answers = engine.ask(*prompts, params=sampling(40))
    for one, other in zip(oracle.answers(folder, prompts, tokens=40), answers, strict=True):
        assert_same(one, other, 1e-5)
    assert engine.metrics()["evicted_blocks"] > 0
    assert_at_rest(engine)


def test_layout_of_the_engine_stays_as_it_is(engines: Engines, checkpoints: Path, version: str) -> None:
    """A connector must not switch the hybrid cache manager off."""
    folder = cases.checkpoint(models.GRANITE, checkpoints, version)

    def groups(config: EngineConfig) -> list[tuple[Any, ...]]:
        found = engines.get(config).scheduler.kv_cache_config.kv_cache_groups
        return [(type(group.kv_cache_spec).__name__, *group.layer_names) for group in found]

    assert groups(EngineConfig.of(folder)) == groups(EngineConfig.of(folder, {}))


def test_events_tell_groups_medium_and_tokens(engines: Engines, checkpoints: Path, version: str) -> None:
    """What cache-aware routers follow: every block stored, with its tokens, and the end of all at a reset."""
    from vllm.distributed.kv_events import AllBlocksCleared, BlockStored

    folder = cases.checkpoint(models.GRANITE, checkpoints, version)
    config = EngineConfig.of(folder, {}, kv_events_config={"enable_kv_cache_events": True, "publisher": "null"})
    engine = engines.get(config)
    told: list[Any] = []
    plain = engine.connector.take_events

    def take_events() -> Any:
        found = list(plain())
        told.extend(found)
        return found

    engine.connector.take_events = take_events
    engine.ask(cases.PROMPT)
    engine.idle()
    engine.forget_all()
    told.extend(plain())
    del engine.connector.take_events
    stored = [event for event in told if isinstance(event, BlockStored)]
    assert {event.medium for event in stored} == {"CPU"}
    assert {event.group_idx for event in stored} == {0, 1}
    attention = [event for event in stored if event.kv_cache_spec_kind == "full_attention"]
    blocks = [cases.PROMPT[first : first + 32] for first in range(0, 288, 32)]
    assert [event.token_ids for event in attention[:9]] == blocks, "a block's parent comes before it"
    assert attention[0].parent_block_hash is None
    assert [event.parent_block_hash for event in attention[1:9]] == [event.block_hashes[0] for event in attention[:8]]
    assert any(isinstance(event, AllBlocksCleared) for event in told)
