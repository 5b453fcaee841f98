"""Engines of two ranks that share each sequence's cache (decode context parallelism): cells of model and interleave."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_on_cpu import models

from support import worker_extension
from support.engine import EngineConfig

NUM_RANKS = 2
DEVICE_BLOCKS = 64


@dataclass(frozen=True)
class Cell:
    """`block_tokens` of the attention group on one rank. `corrected`: vLLM's copy of half-filled blocks is whole."""

    model: models.Model
    block_tokens: int
    interleave: int
    corrected: bool = True

    @property
    def name(self) -> str:
        return f"{self.model.label}-interleave{self.interleave}{'' if self.corrected else '-uncorrected'}"

    @property
    def patches(self) -> tuple[str, ...]:
        copy = ("longest_copy",) if self.corrected else ()
        mla = ("mla",) if self.model is models.MLA else ()
        return ("reference_attention", "fork", *copy, *mla)

    def config(self, root: Path, options: dict[str, Any] | None = None, *, dcp: int = NUM_RANKS,
               patches: tuple[str, ...] | None = None, **arguments: Any) -> EngineConfig:  # fmt: skip
        """HostKV with `options` on this cell's engine; `arguments` go to vllm.LLM."""
        os.environ[worker_extension.PATCH_VARIABLE] = "no_export"
        own = {
            "block_size": self.block_tokens,
            "num_gpu_blocks_override": DEVICE_BLOCKS * 32 // self.block_tokens,
            "tensor_parallel_size": NUM_RANKS,
            "decode_context_parallel_size": dcp,
            "cp_kv_cache_interleave_size": self.interleave if dcp > 1 else 1,
            "worker_extension_cls": worker_extension.NAME,
        }
        folder = models.checkpoint(self.model, root)
        chosen = self.patches if patches is None else patches
        return EngineConfig.of(folder, options or {}, patches=chosen, **{**own, **arguments})


def _cells(model: models.Model, block_tokens: int, *interleaves: int) -> list[Cell]:
    return [Cell(model, block_tokens, interleave) for interleave in interleaves]


LLAMA = _cells(models.LLAMA1, 32, 1, 32)
GRANITE = _cells(models.GRANITE1, 32, 1, 8, 32)
GDN = _cells(models.GDN1, 64, 1, 64)
MLA = _cells(models.MLA, 16, 1, 16)
CELLS = [*LLAMA, *GRANITE, *GDN, *MLA]
ONE_EACH = [LLAMA[0], GRANITE[-1], GDN[-1], MLA[0]]


def usually(usual: Sequence[Cell], cells: Sequence[Cell]) -> list[Any]:
    """Parameters of a test: `usual`, and with --long the others of `cells` as well."""
    import pytest

    return [*usual, *(pytest.param(cell, marks=pytest.mark.long) for cell in cells if cell not in usual)]


def name_of(value: object) -> str:
    return str(getattr(value, "name", value))
