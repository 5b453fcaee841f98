"""HostKV as a child of vLLM's MultiConnector: it stores whoever wins, loads when it wins, its statistics survive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import Engines
from support import cases
from support.compare import assert_same
from support.engine import HOST_BYTES, Engine, EngineConfig, sampling
from support.oracle import Oracle
from support.rest import assert_at_rest
from support.theory import Geometry
from vllm_on_cpu import models

from hostkv.vllm import plugin

pytestmark = pytest.mark.run_ahead


def host_child(**options: Any) -> dict[str, Any]:
    return {
        "kv_connector": "HostKVConnector", "kv_connector_module_path": "hostkv.vllm", "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": HOST_BYTES, **options},
    }  # fmt: skip


def example_child(folder: Path) -> dict[str, Any]:
    """vLLM's own example: whole prompts in files."""
    return {
        "kv_connector": "ExampleConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(folder)},
    }  # fmt: skip


def composite(engines: Engines, checkpoint: Path, *children: dict[str, Any], **arguments: Any) -> Engine:
    plugin.register()  # as vLLM does for an installed wheel
    config = EngineConfig.of(checkpoint, {"connectors": list(children)}, connector="MultiConnector", **arguments)
    return engines.get(config)


def stored_blocks(half: Any) -> int:
    return int(half.scheduler_side.core.metrics()["stored_blocks"])


@pytest.mark.parametrize("model", [models.LLAMA, models.GRANITE], ids=lambda model: model.name)
def test_two_host_tiers_both_store_and_the_first_that_hits_loads(
    model: models.Model, engines: Engines, oracle: Oracle, checkpoints: Path, version: str
) -> None:
    folder = cases.checkpoint(model, checkpoints, version)
    engine = composite(engines, folder, host_child(cache_namespace="a"), host_child(cache_namespace="b"))
    (expected,) = oracle.answers(folder, [cases.PROMPT])
    boundary = Geometry.of(engine).replay_boundary(len(cases.PROMPT))
    # The composite hands on the pool sizes of one child alone; the other's come with the first results.
    engine.ask(cases.OTHERS[0][:5], params=sampling(1))
    engine.idle()
    assert_same(expected, engine.ask(cases.PROMPT)[0])
    engine.idle()
    first, second = engine.scheduler_halves
    assert stored_blocks(first) == stored_blocks(second) > 0, "a cold request is stored by every child"

    hits = []
    for emptied in (None, first):
        engine.evict_device()
        if emptied is not None:
            assert emptied.reset_cache() is not False
        answer, loads = engine.ask_one(cases.PROMPT)
        assert_same(expected, answer)
        assert loads == [(0, boundary)]
        hits.append([half.scheduler_side.core.metrics()["hit_tokens"] for half in (first, second)])
    assert hits == [[boundary, 0], [boundary, boundary]], "the second serves when the first is empty"
    assert_at_rest(engine)


@pytest.mark.parametrize("host_first", [True, False], ids=["host first", "host second"])
def test_beside_another_connector_tokens_stay_right(
    host_first: bool, engines: Engines, oracle: Oracle, checkpoints: Path, version: str, tmp_path: Path
) -> None:
    folder = cases.checkpoint(models.LLAMA, checkpoints, version)
    children = [host_child(), example_child(tmp_path)]
    engine = composite(engines, folder, *(children if host_first else children[::-1]))
    (expected,) = oracle.answers(folder, [cases.PROMPT])
    assert_same(expected, engine.ask(cases.PROMPT)[0])
    (half,) = engine.scheduler_halves
    engine.idle()
    assert stored_blocks(half) > 0
    if host_first:
        engine.evict_device()
        answer, loads = engine.ask_one(cases.PROMPT)
        assert loads == [(0, Geometry.of(engine).replay_boundary(len(cases.PROMPT)))]
        assert_same(expected, answer)
    assert_at_rest(engine)


def test_statistics_of_a_child_survive_the_composite(engines: Engines, checkpoints: Path, version: str) -> None:
    """They travel as plain data and are rebuilt by class name in the front end."""
    folder = cases.checkpoint(models.LLAMA, checkpoints, version)
    engine = composite(engines, folder, host_child(), host_child(), disable_log_stats=False)
    multi = type(engine.connector)
    shipped: list[Any] = []
    plain = engine.scheduler.make_stats

    def make_stats(*arguments: Any, **named: Any) -> Any:
        stats = plain(*arguments, **named)
        if stats is not None and stats.kv_connector_stats:
            shipped.append(stats.kv_connector_stats)
        return stats

    engine.scheduler.make_stats = make_stats
    try:
        engine.ask(cases.PROMPT)
        engine.idle()
    finally:
        del engine.scheduler.make_stats
    assert shipped, "a request was stored: there is something to tell"
    total = multi.build_kv_connector_stats()
    for data in shipped:
        total = total.aggregate(multi.build_kv_connector_stats(data=data))
    assert "HostKVConnector" in total.reduce()
    assert total["HostKVConnector"].data["counters"]["stored_blocks"] == 2 * 9, "of both children"
