"""Shapes of models for the byte model, and engines of vLLM's own parts for them."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rig import parts
from rig.engine import Engine
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm_on_cpu.byte_worker import ByteWorker, Setup
from vllm_on_cpu.byte_worker_corrections import correct, hash_drafts_up_to
from vllm_on_cpu.byte_worker_groups import DRAFT_LAYER, Layout

from bytes_model.host import ByteRanks

ONE_RANK = Layout()


@dataclass(frozen=True)
class Shape:
    """block_tokens: what the engine takes for its block size, with states their span. unit: prefix_match_unit.

    draft_layers: what a draft model has in each group: "own" layers only, layers "beside" those of the model, nothing
    (""). names_drafts: the engine marks the groups, as with MTP; else none, as with EAGLE, where all drop.
    """

    specs: Sequence[Any]
    block_tokens: int
    unit: int | None = None
    layout: Layout = ONE_RANK
    num_drafts: int = 0
    draft_layers: Sequence[str] = ()
    names_drafts: bool = True

    @property
    def has_states(self) -> bool:
        return any(isinstance(spec, parts.MambaSpec) for spec in self.specs)

    @property
    def draft_groups(self) -> list[int]:
        return [index for index, kind in enumerate(self.draft_layers) if kind]

    @property
    def layers(self) -> list[list[str]] | None:
        """Names of each group's."""
        if not self.draft_layers:
            return None
        of_kind = {"own": (DRAFT_LAYER,), "beside": ("layer", DRAFT_LAYER), "": ("layer",)}
        return [[f"{name}{index}" for name in of_kind[kind]] for index, kind in enumerate(self.draft_layers)]


@dataclass(frozen=True)
class Mode:
    """How steps are run. in_flight: batches that are scheduled before the results of the first one are known."""

    name: str
    run_ahead: bool
    v2: bool
    in_flight: int
    pp: int = 1


MODES = {
    mode.name: mode
    for mode in (
        Mode("sync-v1", run_ahead=False, v2=False, in_flight=1),
        Mode("sync-v2", run_ahead=False, v2=True, in_flight=1),
        Mode("pipeline-v1", run_ahead=False, v2=False, in_flight=2, pp=2),
        Mode("ahead-v1", run_ahead=True, v2=False, in_flight=2),
        Mode("ahead-v2", run_ahead=True, v2=True, in_flight=2),
        Mode("pipeline-ahead-v2", run_ahead=True, v2=True, in_flight=3, pp=2),
    )
}


@dataclass(frozen=True)
class Pools:
    """Usable blocks of the device and slots of the host."""

    device: int
    host: int


@dataclass
class Rig:
    """An engine whose ranks have bytes."""

    engine: Engine
    worker: ByteWorker
    ranks: ByteRanks
    mode: Mode
    shape: Shape
    # Of requests that leave a text right behind a block, in front of which their drafts get no hash.
    most_hashed: dict[str, int]
    facts: dict[str, Any] = field(default_factory=dict)


@contextmanager
def _runner(v2: bool) -> Iterator[None]:
    """vLLM asks for Triton where a configuration is made; its scheduler only reads the variable."""
    before = os.environ.get("VLLM_USE_V2_MODEL_RUNNER")
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(int(v2))
    try:
        yield
    finally:
        if before is None:
            del os.environ["VLLM_USE_V2_MODEL_RUNNER"]
        else:
            os.environ["VLLM_USE_V2_MODEL_RUNNER"] = before


def build(shape: Shape, mode: Mode, pools: Pools, numbers: random.Random, memory: str = "BLHNC", **how: Any) -> Rig:
    """memory: the layout; where it is block-outermost, vLLM's block copies keep all bytes."""
    config = parts.vllm_config(
        parts.HOSTKV, pools.host, shape.block_tokens, prefix_match_unit=shape.unit, align=shape.has_states, **how
    )
    if shape.num_drafts:
        parts.with_drafts(config, shape.num_drafts, _method(shape))
    layout = Layout(shape.layout.num_ranks * mode.pp, shape.layout.dcp, shape.layout.interleave)
    parts.in_parallel(config, layout.num_ranks, layout.dcp, layout.interleave, mode.pp)
    config.scheduler_config.async_scheduling = mode.run_ahead
    kv = parts.kv_config(
        shape.specs, pools.device + 1, config, memory, shape.layers, shape.draft_groups if shape.names_drafts else ()
    )
    with _runner(mode.v2):
        scheduler_class = AsyncScheduler if mode.run_ahead else Scheduler
        engine = Engine(config, kv, pools.host, layout.num_ranks, scheduler_class)
        assert config.max_concurrent_batches == mode.in_flight
    correct(engine.scheduler)
    most_hashed: dict[str, int] = {}
    if shape.draft_groups:
        hash_drafts_up_to(engine.scheduler, shape.draft_groups, most_hashed)
    coordinator = engine.scheduler.kv_cache_manager.coordinator
    alignment = getattr(coordinator, "_cache_hit_alignment_tokens", engine.scheduler.block_size)
    setup = Setup(layout, engine.hash_block, alignment, mode.v2, shape.num_drafts, bool(shape.draft_groups))
    worker = ByteWorker(kv, setup, numbers)
    ranks = ByteRanks(worker, numbers)
    ranks.cuts_in_place = engine.ranks.cuts_in_place
    engine.ranks = ranks
    return Rig(engine, worker, ranks, mode, shape, most_hashed)


def _method(shape: Shape) -> str:
    if not shape.draft_groups:
        return "ngram"
    return "mtp" if shape.names_drafts else "eagle"
