"""Random shapes by family: blocks, ranks, interleave, units, windows, drafts; and the options that go with them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rig import parts
from vllm_on_cpu.byte_worker_groups import Layout, groups_of

from bytes_model.shapes import Mode, Pools, Rig, Shape, build

# Hits that would have been a unit longer, and wrong, had nothing been dropped.
DROPS = ("drops on the device", "drops on the host")


@dataclass(frozen=True)
class Family:
    """needs: counters that a run of this family must have moved, beside those that every run must."""

    draw: Callable[[random.Random], Shape]
    needs: tuple[str, ...] = ()
    has_drafts: bool = False


def _dealt_out(numbers: random.Random, block: int, least: int = 1) -> Layout:
    """Decode context parallelism of `least` to 8 over as many ranks, or over twice as many."""
    dcp = numbers.choice([count for count in (1, 2, 4, 8) if count >= least])
    ranks = dcp * (numbers.choice((1, 2)) if dcp < 8 else 1)
    return Layout(ranks, dcp, numbers.choice([tokens for tokens in (1, 2, 4, 8, 16, 32) if block % tokens == 0]))


def _full(numbers: random.Random) -> Shape:
    block = numbers.choice((8, 16, 32))
    return Shape([parts.full(block)], block, layout=_dealt_out(numbers, block))


def _full_and_window(numbers: random.Random) -> Shape:
    block = numbers.choice((8, 16))
    windows = [parts.window(block, numbers.choice((20, 64, 100)))] * numbers.choice((1, 2))
    return Shape([*windows, parts.full(block * numbers.choice((1, 2)))], block, layout=Layout(numbers.choice((1, 2))))


def _full_and_whole_window(numbers: random.Random) -> Shape:
    """Windows that every rank holds whole, beside attention that is dealt out."""
    layout = _dealt_out(numbers, 16, least=2)
    return Shape([parts.window(16 * layout.dcp, 100, sharded=False), parts.full(16)], 16, layout=layout)


def _states(numbers: random.Random) -> Shape:
    block = numbers.choice((32, 64))
    return Shape([parts.mamba(block), parts.full(block)], block, layout=Layout(numbers.choice((1, 2))))


def _states_with_unit(numbers: random.Random) -> Shape:
    block = numbers.choice((32, 64))
    groups = [*[parts.mamba(block)] * numbers.choice((1, 3)), parts.full(block)]
    return Shape(groups, block, numbers.choice((8, 16)), _dealt_out(numbers, block))


def _states_dealt_out(numbers: random.Random) -> Shape:
    """As vLLM itself resolves a hybrid model: the same block for both, times the ranks for attention."""
    block = numbers.choice((16, 32))
    return Shape([parts.mamba(block), parts.full(block)], block, layout=_dealt_out(numbers, block, least=2))


def _checkpoints(numbers: random.Random) -> Shape:
    block = numbers.choice((32, 64))
    unit = numbers.choice((8, 16, block))
    layout = _dealt_out(numbers, block, least=1 if unit < block else 2)
    return Shape(
        [parts.mamba(block, checkpoint_alignment=numbers.choice((1, unit))), parts.full(block)], block, unit, layout
    )


def _drafts(numbers: random.Random) -> Shape:
    block, count = numbers.choice((32, 64)), numbers.choice((1, 2, 4))
    groups = [*[parts.mamba(block, count)] * numbers.choice((1, 2)), parts.full(block)]
    return Shape(groups, block, numbers.choice((8, 16)), _dealt_out(numbers, block), count)


def _drafts_and_checkpoints(numbers: random.Random) -> Shape:
    block, count = 32, numbers.choice((1, 3))
    groups = [parts.mamba(block, count, checkpoint_alignment=1), parts.full(block)]
    return Shape(groups, block, 16, _dealt_out(numbers, block), count)


def _drafts_of_attention(numbers: random.Random) -> Shape:
    block, count = 16, numbers.choice((1, 3))
    return Shape([parts.full(block)], block, layout=_dealt_out(numbers, block), num_drafts=count)


def _five_groups(numbers: random.Random) -> Shape:
    """Compressed attention, two rings that belong to a running request, two windows."""
    block = numbers.choice((8, 16))
    windows = [parts.window(block, 2 * block)] * 2
    groups = [parts.mla(4 * block, 4), parts.ring(4), parts.ring(8), *windows]
    return Shape(groups, block, layout=Layout(numbers.choice((1, 2))))


def _latent_and_states(numbers: random.Random) -> Shape:
    """A state every so many tokens as a latent block spans over all ranks, hashed as finely as one rank's share."""
    block, dcp = numbers.choice((8, 16)), numbers.choice((2, 4, 8))
    layout = Layout(dcp, dcp, numbers.choice((1, 2, block)))
    return Shape([parts.mla(block), parts.mamba(block * dcp)], block * dcp, block, layout)


def _chunked(numbers: random.Random) -> Shape:
    """All blocks as long as those of the chunks, or the connector refuses the model."""
    block = numbers.choice((8, 16))
    groups = [parts.chunked(block, block * numbers.choice((1, 2, 5)))] * numbers.choice((1, 2))
    return Shape([*groups, parts.full(block)], block, layout=Layout(numbers.choice((1, 2))))


def _draft_group(numbers: random.Random) -> Shape:
    """A draft model's attention beside that of the model: in its group, or in one that is alike, longer, or whole on
    every rank."""
    block = numbers.choice((8, 16, 32))
    count, layout = numbers.choice((1, 2, 4)), _dealt_out(numbers, block)
    if numbers.random() < 0.3:
        return Shape([parts.full(block)], block, None, layout, count, ["beside"], numbers.random() < 0.5)
    target = numbers.choice((parts.full(block), parts.mla(block)))
    draft = numbers.choice((parts.full(block), parts.full(2 * block), parts.full(block, sharded=layout.dcp == 1)))
    return Shape([target, draft], block, None, layout, count, ["", "own"], numbers.random() < 0.7)


def _draft_beside_windows(numbers: random.Random) -> Shape:
    block, count = numbers.choice((8, 16)), numbers.choice((1, 3))
    window = parts.window(block, numbers.choice((20, 64, 100)))
    groups, layers = numbers.choice((
        ([window, parts.full(block)], ["", "beside"]),
        ([window, window, parts.full(2 * block), parts.full(block)], ["", "", "", "own"]),
    ))  # fmt: skip
    return Shape(groups, block, None, Layout(numbers.choice((1, 2))), count, layers, numbers.random() < 0.7)


def _draft_window(numbers: random.Random) -> Shape:
    """The draft model sees a window only, its own or that of the model's layers."""
    block, count = numbers.choice((8, 16)), numbers.choice((1, 3))
    window = parts.window(block, numbers.choice((20, 64, 100)))
    groups, layers = numbers.choice((
        ([window, parts.full(block)], ["own", ""]),
        ([window, window, parts.full(2 * block)], ["", "own", ""]),
        ([parts.window(block, 2 * block), window, parts.full(block)], ["", "own", ""]),
    ))  # fmt: skip
    return Shape(groups, block, None, Layout(numbers.choice((1, 2))), count, layers)


def _draft_beside_states(numbers: random.Random) -> Shape:
    block, count = numbers.choice((32, 64)), numbers.choice((1, 2, 4))
    unit, layout = numbers.choice((8, 16)), _dealt_out(numbers, block)
    states = [parts.mamba(block, count, checkpoint_alignment=numbers.choice((None, 1)))] * numbers.choice((1, 2))
    groups, layers = numbers.choice((
        ([parts.full(block)], ["beside"]),
        ([parts.full(block), parts.full(block)], ["", "own"]),
        ([parts.mla(block), parts.full(block, sharded=layout.dcp == 1)], ["", "own"]),
    ))  # fmt: skip
    draft_layers = [""] * len(states) + layers
    return Shape([*states, *groups], block, unit, layout, count, draft_layers, numbers.random() < 0.7)


FAMILIES = {
    "full": Family(_full),
    "full and window": Family(_full_and_window),
    "full and whole window": Family(_full_and_whole_window),
    "states": Family(_states),
    "states with unit": Family(_states_with_unit, ("block copies",)),
    "states dealt out": Family(_states_dealt_out, ("block copies",)),
    "checkpoints": Family(_checkpoints, ("block copies", "exports")),
    "drafts": Family(_drafts, ("block copies",), has_drafts=True),
    "drafts and checkpoints": Family(_drafts_and_checkpoints, ("exports",), has_drafts=True),
    "drafts of attention": Family(_drafts_of_attention, has_drafts=True),
    "five groups": Family(_five_groups),
    "latent and states": Family(_latent_and_states, ("block copies",)),
    "chunks": Family(_chunked),
    "draft group": Family(_draft_group, DROPS, has_drafts=True),
    "draft group beside windows": Family(_draft_beside_windows, DROPS, has_drafts=True),
    "draft window": Family(_draft_window, DROPS, has_drafts=True),
    "draft group beside states": Family(_draft_beside_states, ("block copies", *DROPS), has_drafts=True),
}


def longest_span(shape: Shape) -> int:
    return max(
        spec.block_size * (shape.layout.dcp if getattr(spec, "dcp_sharded", False) else 1) for spec in shape.specs
    )


def blocks_of_one(shape: Shape, most_tokens: int, batched_tokens: int) -> int:
    """What the longest request may hold at once."""
    count = 0
    for spec, group in zip(shape.specs, groups_of(_Groups(shape.specs), shape.layout.dcp), strict=True):
        tokens = most_tokens
        if group.kind == "window":
            tokens = min(tokens, spec.sliding_window + 3 * batched_tokens + spec.block_size)
        if group.kind == "state":
            count += 4 + group.num_speculative
        else:
            count += 1 if group.kind == "ring" else -(-tokens // group.span(shape.layout)) + 1
    return count


class _Groups:
    """The part of a KV cache configuration that groups_of reads."""

    def __init__(self, specs: Any) -> None:
        self.kv_cache_groups = [parts.KVCacheGroupSpec(["layer"], spec) for spec in specs]


def draw_rig(family: Family, mode: Mode, numbers: random.Random) -> tuple[Rig, int]:
    """An engine of the family with random pools and options, and the longest span of its groups."""
    shape = family.draw(numbers)
    span = longest_span(shape)
    batched = max(64, numbers.choice((span // 2, span, 3 * span, 2048)))
    need = blocks_of_one(shape, 9 * span + 60, batched)
    pools = Pools(int(need * numbers.choice((1.1, 1.5, 3))) + 4, numbers.choice((need, 4 * need, 12 * need)))
    rig = build(
        shape, mode, pools, numbers, numbers.choice(("BLHNC", "LBHNC")),
        batched_tokens=batched, max_requests=8,
        retention=numbers.choice((0, 0, None)),
        store_mode=numbers.choice(("eager", "eager", "lazy")),
        boundaries=numbers.choice(("fine", "fine", "coarse")),
    )  # fmt: skip
    rig.facts = {"shape": shape, "pools": pools, "batched": batched}
    return rig, span
