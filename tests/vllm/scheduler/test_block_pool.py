"""The contract of hostkv.vllm.block_pool: what it names and does equals what vLLM's BlockPool does itself."""

from __future__ import annotations

import pytest
from rig import parts
from vllm.v1.core import kv_cache_utils

from hostkv.vllm.block_pool import BlockPoolShim


@pytest.fixture
def pool_of(engine_of, tokens):
    """(shim, pool, blocks of a cached prompt in table order)."""
    engine = engine_of("full", device_blocks=40)
    engine.run("a", tokens(1, 320))
    shim = BlockPoolShim(engine.scheduler.kv_cache_manager, False)
    hashes = parts.request("b", tokens(1, 320)).block_hashes
    blocks = [engine.pool.get_cached_block(block_hash, [0])[0] for block_hash in hashes]
    return shim, engine.pool, blocks, hashes


def queue_of(pool):
    return [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]


def test_the_names_are_those_of_the_block(pool_of):
    shim, pool, blocks, _ = pool_of
    block = blocks[0]
    assert type(block) is shim.block_type
    assert getattr(block, shim.name_of_id) == block.block_id
    assert getattr(block, shim.name_of_owners) == block.ref_cnt == 0
    assert getattr(block, shim.name_of_key) == block.block_hash
    assert hasattr(block, shim.name_of_key_tokens)
    assert hasattr(block, shim.name_of_next_free)
    assert shim.blocks is pool.blocks
    assert all(shim.blocks[number].block_id == number for number in range(len(shim.blocks)))
    assert shim.blocks[0].is_null


def test_a_key_is_a_hash_and_the_suffix_of_its_group(pool_of):
    shim, pool, blocks, hashes = pool_of
    for group in (0, 1, 255, 70_000):
        key = kv_cache_utils.make_block_hash_with_group_id(hashes[0], group)
        assert bytes(hashes[0]) + shim.key_suffix(group) == key
    found = shim.cached[bytes(hashes[0]) + shim.key_suffix(0)]
    assert found is blocks[0] or blocks[0] in found.values()
    assert pool.get_cached_block(hashes[0], [0]) == [blocks[0]]


def test_the_map_of_keys_is_a_new_one_after_a_reset(pool_of):
    shim, pool, _, hashes = pool_of
    key = bytes(hashes[0]) + shim.key_suffix(0)
    assert key in shim.cached
    assert pool.reset_prefix_cache()
    assert key not in shim.cached


def test_touch_and_free_are_the_pools_own(pool_of):
    shim, pool, blocks, _ = pool_of
    free = shim.num_free_blocks()
    assert free == pool.get_num_free_blocks()
    shim.touch(blocks[:3])
    assert [block.ref_cnt for block in blocks[:3]] == [1, 1, 1]
    assert shim.num_free_blocks() == free - 3
    assert not set(queue_of(pool)) & {block.block_id for block in blocks[:3]}
    shim.free(blocks[:3])
    assert [block.ref_cnt for block in blocks[:3]] == [0, 0, 0]
    assert queue_of(pool)[-3:] == [block.block_id for block in blocks[:3]]


def test_blocks_given_back_to_the_front_are_handed_out_next(pool_of):
    shim, pool, blocks, _ = pool_of
    shim.touch(blocks[5:8])
    shim.free_to_front(blocks[5:8])
    assert [block.ref_cnt for block in blocks[5:8]] == [0, 0, 0]
    assert queue_of(pool)[:3] == [block.block_id for block in blocks[5:8]]
    assert shim.first_victim() is blocks[5]
    taken = pool.get_new_blocks(3)
    assert taken == blocks[5:8]
    pool.free_blocks(taken)


def test_the_queue_can_be_walked_to_its_end(pool_of):
    shim, pool, _, _ = pool_of
    block, seen = shim.first_victim(), []
    while block is not None and block.block_id >= 0:
        seen.append(block.block_id)
        block = getattr(block, shim.name_of_next_free)
    assert seen == queue_of(pool)


def test_blocks_handed_out_are_counted_when_asked_for(engine_of):
    engine = engine_of("full", device_blocks=40)
    shim = BlockPoolShim(engine.scheduler.kv_cache_manager, True)
    blocks = engine.pool.get_new_blocks(7)
    assert shim.num_handed_out == 7
    engine.pool.free_blocks(blocks)


def test_pins_of_the_binding_are_those_of_touch(engine_of, tokens):
    """The binding counts owners behind the pool's back: the same blocks, counts and queue as touch and free."""
    engine = engine_of("full", device_blocks=60)
    engine.ranks.hold = lambda job, rank: True
    engine.add("a", tokens(1, 320), 30)
    for _ in range(3):
        engine.step()
    pinned = {block for job in engine.ranks.seen for _, block, _ in job.blocks}
    assert pinned
    assert all(engine.pool.blocks[number].ref_cnt == 2 for number in pinned)
    engine.ranks.hold = lambda job, rank: False
    engine.step()
    assert all(engine.pool.blocks[number].ref_cnt == 1 for number in pinned)
    engine.run_until_idle()
