"""Tensor parallel 2 on the V2 runner, running ahead: two spawned workers, which must find the runner by themselves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import Engines
from support import cases, worker_extension
from support.compare import BATCH_TOLERANCE, assert_same, difference
from support.engine import EngineConfig
from support.ranks import rpc
from support.records import ReplayRun, Report
from support.rest import assert_at_rest, leaked_pins
from support.theory import Geometry
from test_parallel import flip_changes_output
from vllm_on_cpu import models

pytestmark = [pytest.mark.v2, pytest.mark.long]  # a minute to start


def test_two_ranks_replay_and_recover(engines: Engines, checkpoints: Path, report: Report, version: str) -> None:
    os.environ[worker_extension.PATCH_VARIABLE] = "no_export"
    folder = cases.checkpoint(models.LLAMA, checkpoints, version)
    engine = engines.get(EngineConfig.of(
        folder, {}, tensor_parallel_size=2, worker_extension_cls=worker_extension.NAME, async_scheduling=True,
    ))  # fmt: skip
    assert rpc(engine, "hostkv_runs_v2") == [True, True]
    boundary = Geometry.of(engine).replay_boundary(len(cases.PROMPT))
    expected, loads = engine.ask_one(cases.PROMPT)
    assert loads == []
    engine.evict_device()
    answer, loads = engine.ask_one(cases.PROMPT)
    found = difference(expected, answer)
    run = ReplayRun(
        models.LLAMA.label, version, found.tokens_equal, found.within(BATCH_TOLERANCE),
        sum(host for _, host in loads), boundary, leaked_pins(engine), runner="v2", run_ahead=True, tp=2,
    )  # fmt: skip
    report.results.append(run)
    assert found.within(BATCH_TOLERANCE) and loads == [(0, boundary)]
    run.flipped_byte_changes_output = all(flip_changes_output(engine, expected, rank) for rank in (0, 1))
    assert run.flipped_byte_changes_output

    engine.evict_device()
    before = rpc(engine, "hostkv_torn_loads")
    rpc(engine, "hostkv_fail_loads", 1, 1)
    assert_same(expected, engine.ask(cases.PROMPT)[0], BATCH_TOLERANCE)
    assert [b - a for a, b in zip(before, rpc(engine, "hostkv_torn_loads"), strict=True)] == [0, 1]
    assert_at_rest(engine)
