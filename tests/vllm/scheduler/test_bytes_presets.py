"""The presets of bench/models on vLLM's own scheduler: one prompt, computed, forgotten by the device, and replayed.

What is expected is counted here from the preset's block sizes and the prompt's length alone.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from bytes_model.play import Steps
from bytes_model.shapes import MODES, Pools, Shape, build
from rig import parts
from vllm_on_cpu.byte_worker_groups import Layout

MODELS = Path(__file__).resolve().parents[3] / "bench" / "models"
PROMPT_TOKENS = 60_950
BATCHED_TOKENS = 8192
RUN_ON = ("sync-v1", "ahead-v1", "ahead-v2", "pipeline-ahead-v2")


def preset(name: str) -> dict[str, Any]:
    return json.loads((MODELS / f"{name}.json").read_text())  # type: ignore[no-any-return]


def spec_of(group: dict[str, Any]) -> Any:
    block = group["block_tokens"]
    if group["kind"] == "mamba":
        return parts.mamba(block, state_bytes=parts.PAGE_BYTES)
    if group["kind"] == "sliding_window":
        return parts.window(block, group["window_tokens"])
    if group["kind"] == "ring":
        return parts.ring(block)
    return parts.mla(block, group.get("tokens_per_entry", 1)) if group["kind"] == "mla" else parts.full(block)


def shape_of(model: dict[str, Any], interleave: int) -> Shape:
    """The engine splits prompts at the blocks of its states where there are some."""
    dcp = model["default_dcp"]
    states = [group["block_tokens"] for group in model["groups"] if group["kind"] == "mamba"]
    cached = [group["block_tokens"] for group in model["groups"] if group.get("cacheable", True)]
    return Shape(
        [spec_of(group) for group in model["groups"]], min(states or cached), model["hash_block_tokens"],
        Layout(dcp, dcp, interleave),
    )  # fmt: skip


def spans(model: dict[str, Any]) -> list[int]:
    """Tokens of a block over all ranks, of the groups that are cached."""
    return [
        group["block_tokens"] * (model["default_dcp"] if group["sharded"] else 1)
        for group in model["groups"]
        if group.get("cacheable", True)
    ]


def expected_hit(model: dict[str, Any], boundaries: str) -> int:
    """The last token is always computed; behind that, hits end on hashes where states allow it, else on blocks that all
    groups end together."""
    has_states = any(group["kind"] == "mamba" for group in model["groups"])
    unit = model["hash_block_tokens"] if has_states and boundaries == "fine" else math.lcm(*spans(model))
    return (PROMPT_TOKENS - 1) // unit * unit


def replay(shape: Shape, mode: str, seed: int, **how: Any) -> tuple[int, int]:
    """Tokens found in the host by the second run of a prompt, and rows that its ranks checked."""
    numbers = random.Random(seed)
    blocks = sum(-(-PROMPT_TOKENS // spec.block_size) + 4 for spec in shape.specs)
    rig = build(shape, MODES[mode], Pools(blocks, 2 * blocks), numbers, **how)
    steps = Steps(rig)
    prompt = [numbers.randrange(100, 500) for _ in range(PROMPT_TOKENS)]
    for name in ("first", "again"):
        rig.worker.rows_checked = 0
        rig.engine.add(name, prompt, 3)
        steps.settle()
        rig.engine.forget_device()
    rig.engine.check_rest()
    assert rig.engine.hits["first"] == (0, 0)
    device, host = rig.engine.hits["again"]
    assert device == 0
    return host, rig.worker.rows_checked


@pytest.mark.parametrize("mode", RUN_ON)
@pytest.mark.parametrize("retention", [0, None], ids=["retention 0", "dense"])
@pytest.mark.parametrize("boundaries", ["coarse", "fine"])
@pytest.mark.parametrize("name", ["kimi-like", "deepseek-v4-like", "qwen3.5-like"])
def test_a_replay_of_a_preset_hits_what_theory_says(
    name: str, boundaries: str, retention: int | None, mode: str
) -> None:
    model = preset(name)
    found, rows = replay(
        shape_of(model, 1), mode, 1, boundaries=boundaries, retention=retention, batched_tokens=BATCHED_TOKENS
    )
    assert found == expected_hit(model, boundaries)
    per_row = max(group.get("tokens_per_entry", 1) for group in model["groups"])
    assert rows > found // per_row  # what was loaded has been read


@pytest.mark.parametrize(("boundaries", "hit"), [("coarse", 58_368), ("fine", 60_672)])
@pytest.mark.parametrize("interleave", [1, 64, 384])
def test_kimi_like_at_dcp_8_hits_the_published_numbers(interleave: int, boundaries: str, hit: int) -> None:
    model = preset("kimi-like")
    assert expected_hit(model, boundaries) == hit
    found, _ = replay(shape_of(model, interleave), "ahead-v2", 2, boundaries=boundaries, batched_tokens=BATCHED_TOKENS)
    assert found == hit


@pytest.mark.parametrize(
    ("boundaries", "retention", "batched_tokens", "hit"),
    [
        ("fine", 0, BATCHED_TOKENS, 60_672),
        # Only a prompt computed in steps of one block of all groups leaves a state where a coarse hit can end.
        ("coarse", None, 3072, 58_368),
        ("coarse", 0, 3072, 0),
    ],
)
def test_kimi_like_as_vllm_itself_sizes_states(
    boundaries: str, retention: int | None, batched_tokens: int, hit: int
) -> None:
    """vLLM gives states the block of one rank: 384 tokens beside 3,072 of attention."""
    shape = Shape([parts.mla(384), parts.mamba(384, state_bytes=parts.PAGE_BYTES)], 384, None, Layout(8, 8, 1))
    found, _ = replay(shape, "sync-v1", 3, boundaries=boundaries, retention=retention, batched_tokens=batched_tokens)
    assert found == hit
