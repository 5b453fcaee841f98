"""vLLM's real Scheduler with a made-up worker: no model. Runs on every supported vLLM, 0.33 included."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench" / "vllm"))

from rig import parts
from rig.engine import Engine

# name: (groups, block tokens, prefix_match_unit, align)
SHAPES: dict[str, tuple[Callable[[], list[Any]], int, int | None, bool]] = {
    "full": (lambda: [parts.full(16)], 16, None, False),
    "full+window": (lambda: [parts.window(16, 128), parts.full(16)], 16, None, False),
    "full+mamba": (lambda: [parts.mamba(64), parts.full(64)], 64, None, True),
    "full+mamba, fine": (lambda: [parts.mamba(64), parts.full(64)], 64, 16, True),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.all_versions)


def make_engine(
    shape: str = "full", device_blocks: int = 200, host_blocks: int = 400, num_ranks: int = 1, events: bool = False,
    short_of: dict[int, int] | None = None, **how: Any,
) -> Engine:  # fmt: skip
    groups, block_tokens, unit, align = SHAPES[shape]
    config = parts.vllm_config(
        parts.HOSTKV, host_blocks, block_tokens, prefix_match_unit=unit, align=align, **{"batched_tokens": 2048, **how}
    )
    config.parallel_config.tensor_parallel_size = config.parallel_config.world_size = num_ranks
    if events:
        from vllm.config import KVEventsConfig

        config.kv_events_config = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
    kv = parts.kv_config(groups(), device_blocks + 1, config)
    return Engine(config, kv, host_blocks, num_ranks, short_of=short_of)


@pytest.fixture
def engine_of() -> Iterator[Callable[..., Engine]]:
    """Makes engines; each must be at rest when the test ends, unless the test has taken it out (`engine.used_up`)."""
    made: list[Engine] = []

    def make(*arguments: Any, **how: Any) -> Engine:
        made.append(make_engine(*arguments, **how))
        return made[-1]

    yield make
    for engine in made:
        if not getattr(engine, "used_up", False):
            engine.check_rest()


# Older engines keep no recurrent state for a prompt whose length is a multiple of the unit, on the device neither.
KEEPS_STATES_OF_ALIGNED_PROMPTS = hasattr(parts.kv_cache_utils, "resolve_cache_hit_alignment_tokens")


def tokens_of(seed: int, count: int) -> list[int]:
    """Prompts of different seeds share no block."""
    source = random.Random(seed)
    return [source.randrange(100, 500) for _ in range(count)]


@pytest.fixture
def keeps_aligned() -> bool:
    return KEEPS_STATES_OF_ALIGNED_PROMPTS


@pytest.fixture
def tokens() -> Callable[[int, int], list[int]]:
    return tokens_of
