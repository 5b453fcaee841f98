"""Cold, hot, evict, replay: the same tokens and logprobs as an engine without a connector, host hits as theory says,
and a flipped host byte that does change the output."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import Engines
from support import cases, mode
from support.compare import difference
from support.engine import Engine, EngineConfig
from support.hooks import CoreProxy, faults, flip_byte
from support.oracle import Oracle
from support.records import ReplayRun, Report
from support.rest import assert_at_rest, leaked_pins
from support.theory import Geometry
from vllm_on_cpu import models


@dataclass(frozen=True)
class Variant:
    """`options` go to the connector, `arguments` to the engine and to the reference."""

    name: str
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    arguments: dict[str, Any] = field(default_factory=dict, hash=False)
    patch: str = "no_export"

    @property
    def lazy(self) -> bool:
        return bool(self.options.get("lazy_offload"))


DEFAULT = Variant("default")
DENSE = Variant("dense", arguments={"prefix_cache_retention_interval": None})
FP8 = Variant("fp8", arguments={"kv_cache_dtype": "fp8"})
LAZY = Variant("lazy", options={"lazy_offload": True})
COARSE = Variant("coarse", options={"boundaries": "coarse"})
LAZY_COARSE = Variant("lazy-coarse", options={"lazy_offload": True, "boundaries": "coarse"})
EXPORT = Variant("export", patch="export")


def cpu_takes_fp8() -> bool:
    """vLLM's CPU kernels read an fp8 KV cache with AVX-512 or AMX alone, and say so with an error."""
    import torch

    return bool(torch.cpu._is_avx512_supported() or torch.cpu._is_amx_tile_supported())


FILLERS = [cases.random_tokens(f"filler {i}", 280) for i in range(10)]
ALL = pytest.mark.all_versions
IN_ALL_MODES = [pytest.mark.v2, pytest.mark.run_ahead]
RUNS = [
    pytest.param(models.LLAMA, DEFAULT, marks=[ALL, *IN_ALL_MODES]),
    *([pytest.param(models.LLAMA, FP8), pytest.param(models.GEMMA, FP8)] if cpu_takes_fp8() else []),
    pytest.param(models.LLAMA, LAZY, marks=pytest.mark.run_ahead),
    pytest.param(models.LLAMA, COARSE),
    pytest.param(models.GEMMA, DEFAULT, marks=[ALL, *IN_ALL_MODES]),
    pytest.param(models.GEMMA, DENSE),
    pytest.param(models.GEMMA, LAZY),
    pytest.param(models.GRANITE, DEFAULT, marks=[ALL, *IN_ALL_MODES]),
    pytest.param(models.GRANITE, DENSE),
    pytest.param(models.GRANITE, LAZY, marks=pytest.mark.run_ahead),
    pytest.param(models.GRANITE, LAZY_COARSE),
    pytest.param(models.GRANITE, EXPORT, marks=pytest.mark.run_ahead),
    pytest.param(models.GDN, DEFAULT, marks=IN_ALL_MODES),
    pytest.param(models.GDN, DENSE),
    pytest.param(models.GDN, LAZY),
]


def last_slots(engine: Engine, proxy: CoreProxy) -> dict[int, int]:
    """Group -> the host slot of the last block that the last load brought."""
    load = engine.loads[-1]
    boundary = load.device_tokens + load.host_tokens
    slot_of = {(group, block): slot for job in proxy.loads for group, block, slot in job.blocks}
    groups = engine.scheduler.kv_cache_config.kv_cache_groups
    return {
        index: slot_of[index, load.tables[index][(boundary - 1) // group.kv_cache_spec.block_size]]
        for index, group in enumerate(groups)
    }


def flipped_byte_changes_output(engine: Engine, expected: Any) -> bool:
    """One byte in each group in turn, of the last block that a replay reads; and back, which must be exact again."""
    with faults(engine) as proxy:
        engine.evict_device()
        engine.ask(cases.PROMPT)
        slots = last_slots(engine, proxy)
    core = engine.worker_connector.worker_side.core
    changes = []
    for group, slot in slots.items():
        flip_byte(core, group, slot, offset=3)
        engine.evict_device()
        changes.append(not difference(expected, engine.ask(cases.PROMPT)[0]).exact)
        flip_byte(core, group, slot, offset=3)
    engine.evict_device()
    assert difference(expected, engine.ask(cases.PROMPT)[0]).exact
    return bool(changes) and all(changes)


@pytest.mark.parametrize(("model", "variant"), RUNS, ids=lambda value: value.name)
def test_replay_is_exact_and_hits_what_theory_says(
    model: models.Model, variant: Variant, engines: Engines, oracle: Oracle, checkpoints: Path, report: Report,
    version: str,
) -> None:  # fmt: skip
    folder = cases.checkpoint(model, checkpoints, version)
    engine = engines.get(EngineConfig.of(folder, variant.options, patch=variant.patch, **variant.arguments))
    (expected,) = oracle.answers(folder, [cases.PROMPT], **variant.arguments)
    boundary = Geometry.of(engine).replay_boundary(len(cases.PROMPT))

    cold, loads = engine.ask_one(cases.PROMPT)
    assert difference(expected, cold).exact, "cold"
    assert (cold.cached_tokens, loads) == (0, [])
    hot, loads = engine.ask_one(cases.PROMPT)
    assert difference(expected, hot).exact, "hot"
    assert (hot.cached_tokens, loads) == (boundary, [])
    if variant.lazy:
        engine.evict_by_use(FILLERS)  # lazy stores wait until the device is about to drop a block
    else:
        engine.evict_device()
    replay, loads = engine.ask_one(cases.PROMPT)

    found = difference(expected, replay)
    run = ReplayRun(
        model.label, version, found.tokens_equal, found.logprob == 0.0, sum(host for _, host in loads), boundary,
        leaked_pins(engine), variant=variant.name, runner=mode.runner(), run_ahead=mode.run_ahead,
    )  # fmt: skip
    report.results.append(run)
    assert found.exact, "replay"
    assert loads == [(0, boundary)]
    assert replay.cached_tokens == boundary
    assert_at_rest(engine)
    run.flipped_byte_changes_output = flipped_byte_changes_output(engine, expected)
    assert run.flipped_byte_changes_output
    assert_at_rest(engine)
