"""Correction of vLLM's copy-on-write in hybrid models, from outside.

vLLM copies a block through the first view that it finds at an address. In a hybrid that is the recurrent state's, which
is shorter than the page, so a half-filled attention block loses its last rows. Under decode context parallelism hybrids
take this path on every device hit at an odd multiple of the hash block. With the longest view first the copy is whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm_on_cpu.start_patches import Replacements


def _bytes_of_block(cache: Any) -> int:
    return int(cache[0].numel() * cache.element_size())


def patch(replacements: Replacements) -> None:
    import vllm.v1.worker.gpu_model_runner as runner

    plain = runner.copy_kv_cache_blocks_inplace

    def copy(kv_caches: Iterable[Any], *rest: Any) -> None:
        plain(sorted(kv_caches, key=_bytes_of_block, reverse=True), *rest)

    replacements.set(runner, "copy_kv_cache_blocks_inplace", copy)
