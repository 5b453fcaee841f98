"""From vLLM's cache configuration to the core's geometry.

Raises ValueError naming what HostKV cannot serve: a kind of group it does not know, block sizes that differ from the
engine's own.
"""

from __future__ import annotations

from typing import Any

from vllm.v1 import kv_cache_interface as specs

from hostkv import _core
from hostkv.vllm import compat

# A page whose blocks lie behind each other with all layers inside: vLLM copies it whole on copy-on-write.
_BLOCK_OUTERMOST_LAYOUTS = {"BLHNC", "BLNHC", "BHLNC"}


def layer_spec(spec: Any, layer: str | None = None) -> Any:
    """The spec of one layer of a group; any layer's where the group wraps several."""
    if isinstance(spec, specs.UniformTypeKVCacheSpecs):
        inner = spec.kv_cache_specs
        return inner[layer] if layer is not None else next(iter(inner.values()))
    return spec


def resolve(kv_cache_config: Any, vllm_config: Any, interleave_tokens: int | None = None) -> _core.Geometry:
    """The geometry of both sides; scheduler and workers come to the same.

    interleave_tokens: as the workers have it, where that is known; else as configured.
    """
    scheduler_block, hash_block = compat.block_sizes(kv_cache_config, vllm_config)
    parallel = vllm_config.parallel_config
    groups = [_group(group, index, parallel) for index, group in enumerate(kv_cache_config.kv_cache_groups)]
    if compat.drops_draft_blocks(vllm_config):
        _mark_drafts(groups)
    geometry = _core.Geometry(
        groups=groups,
        parallel={
            "tp": parallel.tensor_parallel_size,
            "pp": parallel.pipeline_parallel_size,
            "dcp": parallel.decode_context_parallel_size,
            "pcp": getattr(parallel, "prefill_context_parallel_size", 1),
            "interleave_tokens": interleave_tokens or compat.configured_interleave_tokens(parallel),
        },
        hash_block_tokens=hash_block,
        prefix_caching=bool(vllm_config.cache_config.enable_prefix_caching),
        fine_hits=False if compat.published_alignment(kv_cache_config) == scheduler_block else None,
    )
    if geometry.scheduler_block_tokens != scheduler_block:
        raise ValueError(
            f"the engine schedules in blocks of {scheduler_block} tokens, its groups resolve to "
            f"{geometry.scheduler_block_tokens}; HostKV cannot serve this combination of groups and context parallelism"
        )
    return geometry


def _mark_drafts(groups: list[dict[str, Any]]) -> None:
    """Where the engine cannot tell which groups hold layers of its draft model (EAGLE), it marks none and drops in all.

    Full attention that drops is enough: it sees the token behind a hit, which is what the hit lacks. Windows are marked
    where there is nothing else.
    """
    if any(group["eagle"] for group in groups):
        return
    for kinds in (("full", "mla"), ("sliding_window",)):
        marked = [group for group in groups if group["kind"] in kinds]
        for group in marked:
            group["eagle"] = True
        if marked:
            return


def damages_fine_hits(kv_cache_config: Any, geometry: _core.Geometry) -> bool:
    """Does vLLM's copy-on-write of a partly filled attention block lose bytes?

    It copies the first view of an address, and a recurrent state's view is shorter than the page that it shares with an
    attention layer.
    """
    if not geometry.fine_hits or getattr(kv_cache_config, "kv_cache_layout", None) in _BLOCK_OUTERMOST_LAYOUTS:
        return False
    states = [layer_spec(group.kv_cache_spec) for group in kv_cache_config.kv_cache_groups]
    return any(isinstance(spec, specs.MambaSpec) and state_bytes(spec) < spec.page_size_bytes for spec in states)


def can_be_cut_in_place(kv_cache_config: Any) -> bool:
    """Does vLLM keep the good prefix of a failed load when it is told which blocks failed? Of one group of full or
    latent attention only: block ids of several groups end the engine, and a window would run on blocks that are gone.
    """
    if len(kv_cache_config.kv_cache_groups) != 1:
        return False
    return isinstance(layer_spec(kv_cache_config.kv_cache_groups[0].kv_cache_spec), specs.FullAttentionSpec)


def state_bytes(spec: Any) -> int:
    """Bytes of one recurrent state of one layer, without the padding of its page."""
    total = 0
    for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True):
        elements = 1
        for size in shape:
            elements *= size
        total += elements * dtype.itemsize
    return total


def _group(group: Any, index: int, parallel: Any) -> dict[str, Any]:
    spec = layer_spec(group.kv_cache_spec)
    described = _kind(spec, index)
    tokens_per_entry = getattr(spec, "tokens_per_state", 1)
    described.update(
        name=type(spec).__name__,
        block_tokens=spec.block_size,
        eagle=bool(group.is_eagle_group),
        cacheable=bool(spec.prefix_cacheable) and described["kind"] != "ring",
        transferable=bool(group.enable_kv_transfer),
        sharded=parallel.decode_context_parallel_size > 1 and compat.is_dcp_sharded(spec, (specs.FullAttentionSpec,)),
        tokens_per_entry=tokens_per_entry if isinstance(tokens_per_entry, int) and tokens_per_entry > 0 else 1,
    )
    return described


def _kind(spec: Any, index: int) -> dict[str, Any]:
    """Kind and reach of a group. The order matters: specs derive from each other."""
    if not spec.prefix_cacheable or isinstance(spec, (specs.CrossAttentionSpec, specs.EncoderOnlyAttentionSpec)):
        return {"kind": "ring"}
    if isinstance(spec, specs.MambaSpec):
        return {"kind": "mamba", "mamba_mode": spec.mamba_cache_mode}
    if isinstance(spec, specs.SlidingWindowSpec):
        return {
            "kind": "sliding_window",
            "window_tokens": spec.sliding_window,
            "extra_retained_tokens": getattr(spec, "extra_retained_tokens", 0),
        }
    if isinstance(spec, specs.ChunkedLocalAttentionSpec):
        return {"kind": "chunked_local", "chunk_tokens": spec.attention_chunk_size}
    if type(spec).__name__ == "RSWASpec":
        raise ValueError(
            f"group {index} is RSWASpec, whose table loses blocks between prompt and window; HostKV does not serve it"
        )
    if isinstance(spec, specs.MLAAttentionSpec):
        return {"kind": "mla"}
    if isinstance(spec, specs.FullAttentionSpec):
        return {"kind": "full"}
    raise ValueError(
        f"group {index} is {type(spec).__name__}; HostKV serves full attention, MLA, sliding window, chunked local "
        "attention and Mamba"
    )
