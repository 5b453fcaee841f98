"""The reference attention as vLLM backends: they take the places of CPU_ATTN and CPU_MLA in vLLM's own registry.

The CPU platform chooses by these names and ignores a custom one. Refused: sinks, alibi, encoder attention, fp8 caches.
Speculative tokens were not looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from vllm.config import get_current_vllm_config
from vllm.distributed import get_dcp_group
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionType, MultipleOf
from vllm.v1.kv_cache_layout import KVCacheLayout

from vllm_on_cpu.attention import Metadata, MetadataBuilder, Rank, Scores, attend, combine

if TYPE_CHECKING:
    from vllm_on_cpu.start_patches import Replacements


class ReferenceAttention(AttentionImpl[Metadata]):
    """Cache of a layer: [blocks, kv heads, block tokens, 2 * head size], key and value of a token behind each other."""

    can_return_lse_for_decode = True
    supports_dcp = True

    def __init__(
        self, num_heads: int, head_size: int, scale: float, num_kv_heads: int | None = None, alibi_slopes: Any = None,
        sliding_window: int | None = None, kv_cache_dtype: str = "auto", logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER, kv_sharing_target_layer_name: str | None = None, sinks: Any = None,
    ) -> None:  # fmt: skip
        if alibi_slopes is not None or sinks is not None or attn_type != AttentionType.DECODER:
            raise NotImplementedError("the reference attention knows no sinks, no alibi and decoders only")
        if kv_cache_dtype.startswith("fp8"):
            raise NotImplementedError(f"the reference attention reads no {kv_cache_dtype} cache")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.scores = Scores(self.scale, sliding_window, logits_soft_cap)
        self.parallel_config = get_current_vllm_config().parallel_config

    def do_kv_cache_update(self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor,
                           slots: torch.Tensor) -> None:  # fmt: skip
        count, block_tokens = min(len(slots), len(key)), kv_cache.shape[2]
        mine = slots[:count] >= 0
        at = slots[:count][mine]
        rows = torch.cat((key[:count], value[:count]), -1)[mine]
        kv_cache[at // block_tokens, :, at % block_tokens] = rows.to(kv_cache.dtype)

    def forward(self, layer: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor,
                attn_metadata: Metadata | None, output: torch.Tensor, output_scale: Any = None,
                output_block_scale: Any = None) -> torch.Tensor:  # fmt: skip
        if attn_metadata is None:  # warm-up
            return output
        count = attn_metadata.starts[-1]
        place = Rank.of(self)
        query = query[:count].contiguous()
        if place.num_ranks > 1:
            if self.num_kv_heads != 1:
                raise NotImplementedError(f"ranks of one context share one kv head, not {self.num_kv_heads}")
            query = get_dcp_group().all_gather(query, dim=1)
        query = query.view(count, self.num_kv_heads, -1, self.head_size)

        def fetch(blocks: torch.Tensor, rows: torch.Tensor) -> Any:
            return kv_cache[blocks, :, rows].split(self.head_size, -1)

        out, lse = attend(query, attn_metadata, fetch, kv_cache.shape[2], place, self.scores)
        output[:count] = (combine(out, lse) if place.num_ranks > 1 else out).to(output.dtype)
        return output


class ReferenceBackend(AttentionBackend):
    """`layout` may be set to another of vLLM's layouts before the engine starts: the cache is indexed logically."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32, torch.bfloat16, torch.float16]
    forward_includes_kv_cache_update = False
    layout: ClassVar[KVCacheLayout] = KVCacheLayout.LBHNC

    @staticmethod
    def get_name() -> str:
        return "CPU_ATTN"

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl[Any]]:
        return ReferenceAttention

    @staticmethod
    def get_builder_cls() -> type[MetadataBuilder]:
        return MetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        return [MultipleOf(16)]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...] | None:
        return (ReferenceBackend.layout,)

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True


def patch(replacements: Replacements) -> None:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    from vllm_on_cpu import dcp_placement, mla_backend

    dcp_placement.patch(replacements)
    mla_backend.patch(replacements)
    for name, backend in (
        (AttentionBackendEnum.CPU_ATTN, ReferenceBackend),
        (AttentionBackendEnum.CPU_MLA, mla_backend.ReferenceMLABackend),
        (AttentionBackendEnum.AMX_MLA, mla_backend.ReferenceMLABackend),
    ):
        register_backend(name, f"{backend.__module__}.{backend.__name__}")
        replacements.on_restore(name.clear_override)
