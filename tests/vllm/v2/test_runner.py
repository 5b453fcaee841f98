"""The V2 runner is what runs here: its own kernels, in Triton's interpreter, and no placeholder of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Engines
from support import cases
from support.engine import EngineConfig
from vllm_on_cpu import models, v2_runner

pytestmark = pytest.mark.v2


def test_this_process_runs_the_v2_runner(engines: Engines, checkpoints: Path, version: str) -> None:
    engine = engines.get(EngineConfig.of(cases.checkpoint(models.LLAMA, checkpoints, version), {}))
    runner = engine.core.model_executor.driver_worker.worker.model_runner
    assert engine.core.vllm_config.use_v2_model_runner
    assert any(base.__module__ == "vllm.v1.worker.gpu.model_runner" for base in type(runner).__mro__)
    assert v2_runner.kernels_are_interpreted()


def test_it_cannot_be_chosen_when_vllm_is_imported_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(RuntimeError, match="vllm"):
        v2_runner.prepare()
