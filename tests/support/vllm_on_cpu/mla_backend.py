"""Multi-head latent attention on the reference attention, and two corrections without which it is no oracle.

One latent row per token; its first kv_lora_rank values are also the value. vLLM's MLA layer gathers the queries of the
context's ranks and combines their results itself, with Triton: it is handed our combine. And the CPU's rotary kernel
takes a query of [tokens, heads, size], as MLA passes it, for [tokens, size]: only the first rows are turned, by wrong
positions, so that results depend on the batch. Such queries take vLLM's own native path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm.config import get_current_vllm_config
from vllm.v1.attention.backend import AttentionImpl, MLAAttentionImpl

from vllm_on_cpu import attention_backend
from vllm_on_cpu.attention import Metadata, Rank, Scores, attend, combine

if TYPE_CHECKING:
    from vllm_on_cpu.start_patches import Replacements


class ReferenceMLA(MLAAttentionImpl[Metadata]):
    """Cache of a layer: [blocks, block tokens, latent size]."""

    can_return_lse_for_decode = True
    supports_dcp = True
    supports_quant_query_input = False

    def __init__(
        self, num_heads: int, head_size: int, scale: float, num_kv_heads: int, alibi_slopes: Any,
        sliding_window: int | None, kv_cache_dtype: str, logits_soft_cap: float | None, attn_type: str,
        kv_sharing_target_layer_name: str | None, **mla: Any,
    ) -> None:  # fmt: skip
        if sliding_window is not None or kv_cache_dtype.startswith("fp8"):
            raise NotImplementedError("the reference MLA knows no window and reads no fp8 cache")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = 1
        self.kv_cache_dtype = kv_cache_dtype
        self.value_size = mla["kv_lora_rank"]
        self.parallel_config = get_current_vllm_config().parallel_config

    def do_kv_cache_update(self, kv_c_normed: torch.Tensor, k_pe: torch.Tensor, kv_cache: torch.Tensor,
                           slots: torch.Tensor, kv_cache_dtype: str, k_scale: Any) -> None:  # fmt: skip
        count, block_tokens = min(slots.numel(), len(kv_c_normed)), kv_cache.shape[1]
        slots = slots.flatten()[:count]
        mine = slots >= 0
        at = slots[mine]
        rows = torch.cat((kv_c_normed[:count], k_pe[:count].flatten(1)), -1)[mine]
        kv_cache[at // block_tokens, at % block_tokens] = rows.to(kv_cache.dtype)

    def forward_mqa(self, q: Any, kv_cache: torch.Tensor, attn_metadata: Metadata, layer: Any) -> Any:
        query = torch.cat(q, -1) if isinstance(q, tuple) else q  # heads of all ranks: the layer has gathered them

        def fetch(blocks: torch.Tensor, rows: torch.Tensor) -> Any:
            latent = kv_cache[blocks, rows][:, None]
            return latent, latent[..., : self.value_size]

        place = Rank.of(self)
        out, lse = attend(query[:, None], attn_metadata, fetch, kv_cache.shape[1], place, Scores(self.scale))
        return (out, lse) if place.num_ranks > 1 else (out.to(query.dtype), lse)


class ReferenceMLABackend(attention_backend.ReferenceBackend):
    @staticmethod
    def get_name() -> str:
        return "CPU_MLA"

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl[Any]]:
        return ReferenceMLA

    @classmethod
    def is_mla(cls) -> bool:
        return True

    @classmethod
    def supported_kv_cache_layouts(cls) -> None:
        return None


def patch(replacements: Replacements) -> None:
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
    from vllm.v1.attention.ops.dcp import MLADCPManager

    plain = RotaryEmbedding.forward_cpu

    def init_combine(self: Any, num_heads: int, head_dim: int, dtype: torch.dtype, *rest: Any) -> Any:
        return lambda out, lse, **more: combine(out, lse).to(dtype)

    def forward_cpu(self: Any, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None) -> Any:
        if query.ndim == 3:
            return self.forward_native(positions, query, key)
        return plain(self, positions, query, key)

    replacements.set(MLADCPManager, "_init_combine", init_combine)
    replacements.set(RotaryEmbedding, "forward_cpu", forward_cpu)
