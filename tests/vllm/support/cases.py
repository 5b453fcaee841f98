"""Prompts, and which checkpoint a model has on which version."""

from __future__ import annotations

import os
import random
from pathlib import Path

from vllm_on_cpu import models

PROMPT_TOKENS = 300


def random_tokens(seed: int | str, count: int) -> list[int]:
    """Ids that no special token uses."""
    source = random.Random(seed)
    return [source.randrange(3, models.VOCABULARY - 12) for _ in range(count)]


PROMPT = random_tokens("prompt", PROMPT_TOKENS)
SHARED_TOKENS = 224
SHARING = PROMPT[:SHARED_TOKENS] + random_tokens("other tail", 70)
OTHERS = [random_tokens(f"other {i}", 200 + 16 * i) for i in range(6)]


def checkpoint(model: models.Model, root: Path, version: str) -> Path:
    """Before 0.32 the CPU's convolution kernel knows no float32."""
    old = version.startswith(("0.30.", "0.31."))
    return models.checkpoint(model, root, "bfloat16" if old and model is models.GRANITE else None)


NUM_FAMILIES = 12


def seed() -> int:
    return int(os.environ.get("HOSTKV_TEST_SEED", "20"))


def random_prompts(source: random.Random, count: int) -> list[list[int]]:
    """Families with a common beginning; members branch off inside it, some repeat one that came before."""
    families = [random_tokens(f"{source.random()}", 320) for _ in range(NUM_FAMILIES)]
    prompts: list[list[int]] = []
    while len(prompts) < count:
        if prompts and source.random() < 0.4:
            prompts.append(source.choice(prompts))
            continue
        shared = source.choice(families)[: source.randrange(0, 320)]
        prompts.append(shared + random_tokens(f"{source.random()}", source.randrange(1, 60)))
    return prompts
