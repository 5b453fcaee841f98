"""Three faults of vLLM's scheduler (0.32.0, 0.33.0) that make an engine without any connector compute on wrong bytes.

A test of a connector's bytes takes them out of the engine, one scheduler at a time, or cannot tell whose fault a wrong
byte is. The first two need hits inside a block, the third a draft model. All only make the engine's own hits shorter or
its chunks smaller here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def correct(scheduler: Any) -> None:
    """The corrections that need nothing but the scheduler."""
    refuse_hits_in_unwritten_blocks(scheduler)
    stop_at_the_end_of_a_started_block(scheduler)


def refuse_hits_in_unwritten_blocks(scheduler: Any) -> None:
    """A hit that ends inside an attention block copies it before the forward pass, also where the block is filled by a
    request of the same step, which has hashed it already: the copy is of what was there before. Such a request computes
    instead."""
    manager = scheduler.kv_cache_manager
    pool = manager.block_pool
    fresh: set[int] = set()
    cache_full_blocks, cache_partial_block = pool.cache_full_blocks, pool.cache_partial_block
    get_computed_blocks, starts = manager.get_computed_blocks, manager.new_step_starts

    def full_blocks(blocks: Any, num_cached_blocks: int, num_full_blocks: int, **how: Any) -> None:
        fresh.update(block.block_id for block in blocks[num_cached_blocks:num_full_blocks])
        cache_full_blocks(blocks=blocks, num_cached_blocks=num_cached_blocks, num_full_blocks=num_full_blocks, **how)

    def partial_block(block: Any, **how: Any) -> Any:
        fresh.add(block.block_id)
        return cache_partial_block(block=block, **how)

    def new_step_starts() -> None:
        fresh.clear()
        starts()

    def checked(request: Any, *arguments: Any) -> Any:
        found = get_computed_blocks(request, *arguments)
        blocks, tokens = found[0], found[1]
        for table, span in zip(blocks.blocks, manager.coordinator.group_block_sizes, strict=True):
            if table and tokens % span and table[-1].block_id in fresh:
                return (manager.empty_kv_cache_blocks, 0, *found[2:])
        return found

    pool.cache_full_blocks, pool.cache_partial_block = full_blocks, partial_block
    manager.get_computed_blocks, manager.new_step_starts = checked, new_step_starts


def stop_at_the_end_of_a_started_block(scheduler: Any) -> None:
    """With states that a prefill exports, a chunk that begins inside a block of states runs past the block's end, and
    the state of its begin is then hashed as that of the end. Older schedulers stop at the end; so does this one."""
    split = scheduler._mamba_block_aligned_split
    block = scheduler.cache_config.block_size

    def stopping(request: Any, num_new_tokens: int, local: int = 0, external: int = 0) -> int:
        count = split(request, num_new_tokens, local, external)
        start = request.num_computed_tokens + local + external
        if start < max(request.num_prompt_tokens, request.num_tokens - 1):
            count = min(count, -start % block or count)
        return count

    scheduler._mamba_block_aligned_split = stopping


def hash_drafts_up_to(scheduler: Any, groups: Iterable[int], most_tokens: Mapping[str, int]) -> None:
    """A block's last row in a draft model's layer is made of the token behind the block, which the block's hash does
    not cover: of two requests that go apart right behind a block, the second to come back finds the row of the first. A
    lookup drops what it found last, which is not enough where both have been computed further. Here the blocks of a
    request that leaves the text of others right behind a block get no hash from that block on (most_tokens, of each).
    """
    pool = scheduler.kv_cache_manager.block_pool
    of_drafts = set(groups)
    cache_full_blocks, cache_partial_block = pool.cache_full_blocks, pool.cache_partial_block

    def full_blocks(request: Any, **how: Any) -> None:
        most = most_tokens.get(request.request_id)
        if most is not None and how["kv_cache_group_id"] in of_drafts:
            how["num_full_blocks"] = min(how["num_full_blocks"], most // how["block_size"])
            if how["num_full_blocks"] <= how["num_cached_blocks"]:
                return
            if how["block_mask"] is not None:
                how["block_mask"] = how["block_mask"][: how["num_full_blocks"] - how["num_cached_blocks"]]
        cache_full_blocks(request=request, **how)

    def partial_block(request: Any, num_tokens: int, **how: Any) -> Any:
        if how["kv_cache_group_id"] in of_drafts and num_tokens > most_tokens.get(request.request_id, num_tokens):
            return None
        return cache_partial_block(request=request, num_tokens=num_tokens, **how)

    pool.cache_full_blocks, pool.cache_partial_block = full_blocks, partial_block
