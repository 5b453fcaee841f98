"""The one place that knows the inside of vLLM's BlockPool.

The core's binding counts owners and reads keys of block objects by the names given here; what changes the free queue
goes through the pool's own methods. tests/vllm has the contract test.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core import kv_cache_utils as utils


class BlockPoolShim:
    """What hostkv._core.Scheduler asks of a block pool. One thread: the scheduler's."""

    name_of_id = "block_id"
    name_of_owners = "ref_cnt"
    name_of_key = "_block_hash"
    name_of_key_tokens = "_block_hash_num_tokens"
    name_of_next_free = "next_free_block"
    block_type = utils.KVCacheBlock

    def __init__(self, kv_cache_manager: Any, count_handed_out: bool) -> None:
        self._manager = kv_cache_manager
        self._pool = kv_cache_manager.block_pool
        self.num_handed_out = 0
        if count_handed_out:
            self._count_handed_out()

    @property
    def blocks(self) -> list[Any]:
        """All blocks by number; the null block is number 0."""
        return self._pool.blocks  # type: ignore[no-any-return]

    @property
    def cached(self) -> dict[Any, Any]:
        """Key -> block, or dict of blocks. A reset of the pool makes a new one."""
        return self._pool.cached_block_hash_to_block._cache  # type: ignore[no-any-return]

    @property
    def secondary_keys(self) -> dict[int, set[Any]]:
        """Block number -> keys beside its first one."""
        return self._pool.cached_block_hashes_by_block  # type: ignore[no-any-return]

    @property
    def shows_cache(self) -> bool:
        return bool(self._pool.enable_caching)

    @property
    def counts_accesses(self) -> bool:
        """The pool's own collector wants to hear of every access."""
        return getattr(self._pool, "metrics_collector", None) is not None

    def key_suffix(self, group: int) -> bytes:
        """What vLLM appends to a prefix hash to tell groups apart."""
        return bytes(utils.make_block_hash_with_group_id(utils.BlockHash(b""), group))

    def tables(self, request_id: str) -> Any:
        """The request's blocks, one sequence a group."""
        return self._manager.get_blocks(request_id).blocks

    def touch(self, blocks: list[Any]) -> None:
        self._pool.touch(blocks)

    def free(self, blocks: list[Any]) -> None:
        self._pool.free_blocks(blocks)

    def free_to_front(self, blocks: list[Any]) -> None:
        """Blocks of one owner go back to where they were: the next to be handed out, the first of the list foremost."""
        for block in blocks:
            block.ref_cnt -= 1
        self._pool.free_block_queue.prepend_n(blocks)

    def num_free_blocks(self) -> int:
        return int(self._pool.get_num_free_blocks())

    def first_victim(self) -> Any:
        """The block that is handed out next; the queue's end has number -1."""
        return self._pool.free_block_queue.fake_free_list_head.next_free_block

    def _count_handed_out(self) -> None:
        get_new_blocks = self._pool.get_new_blocks

        def counted(num_blocks: int) -> list[Any]:
            blocks = get_new_blocks(num_blocks)
            self.num_handed_out += len(blocks)
            return blocks  # type: ignore[no-any-return]

        self._pool.get_new_blocks = counted
