"""Draft models: how far a hit reaches in front of another text, by what the engine says of its groups."""

from __future__ import annotations

import pytest
from rig import parts
from rig.engine import Engine

BLOCK = 16
SHARED = 4 * BLOCK  # where the two prompts of a test go apart


def hit_in_front_of_another_text(method: str, specs: list, drafts: tuple[int, ...], same_text: bool = False) -> int:
    """From the host, of a prompt that has the first tokens of one that was computed, or all of them."""
    config = parts.vllm_config(parts.HOSTKV, 200, BLOCK, batched_tokens=2048)
    parts.with_drafts(config, 2, method)
    kv = parts.kv_config(specs, 101, config, drafts=drafts)
    engine = Engine(config, kv, 200)
    first = list(range(100, 100 + SHARED + 2 * BLOCK))
    engine.run("first", first)
    engine.forget_device()
    device, host = engine.run("again", first if same_text else first[:SHARED] + [7] * (2 * BLOCK))
    assert device == 0
    engine.check_rest()
    return host


TWO = [parts.full(BLOCK), parts.full(BLOCK)]
WINDOW_BESIDE = [parts.window(BLOCK, 3 * BLOCK), parts.full(BLOCK)]


@pytest.mark.parametrize(
    ("specs", "drafts"),
    [(TWO[:1], (0,)), (TWO[:1], ()), (TWO, (1,)), (TWO, ()), (WINDOW_BESIDE, (0,)), (WINDOW_BESIDE, ())],
    ids=["one group", "one, unnamed", "two", "two, unnamed", "window", "beside a window, unnamed"],
)
@pytest.mark.parametrize("method", ["eagle", "mtp"])
def test_a_hit_ends_one_block_in_front_of_another_text(method: str, specs: list, drafts: tuple[int, ...]) -> None:
    assert hit_in_front_of_another_text(method, specs, drafts) == SHARED - BLOCK


def test_a_hit_ends_where_another_text_begins_without_a_draft_model() -> None:
    assert hit_in_front_of_another_text("ngram", TWO[:1], ()) == SHARED


@pytest.mark.parametrize(
    ("specs", "tokens"),
    # Where there are several groups, a block that ends with the prompt still shows what follows the one in front of it.
    [(TWO[:1], SHARED), (TWO, SHARED + BLOCK)],
    ids=["one group", "two"],
)
def test_the_same_text_again_hits_what_the_engine_itself_would_hit(specs: list, tokens: int) -> None:
    assert hit_in_front_of_another_text("eagle", specs, (), same_text=True) == tokens
