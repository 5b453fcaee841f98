"""Configuration objects, requests and scheduler outputs of the installed vLLM (0.30 to 0.33)."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import rig  # noqa: F401  (the environment, before torch and vllm)
import torch
from vllm.config import (
    CacheConfig,
    KVTransferConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request

kv_cache_utils.init_none_hash(sha256)

HOSTKV = "HostKVConnector"
SIMPLE = "SimpleCPUOffloadConnector"
NATIVE = "OffloadingConnector"
# OffloadingConnector rounds a chunk up to this, which makes its pool exactly as large as asked for.
PAGE_BYTES = 4096
MAX_TOKENS = 1 << 20
_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": MAX_TOKENS,
    "torch_dtype": "float32",
}


def vllm_config(
    connector: str,
    host_blocks: int,
    block_tokens: int = 16,
    batched_tokens: int = 8192,
    prefix_match_unit: int | None = None,
    align: bool = False,
    retention: int | None = 0,
    load_failure_policy: str = "recompute",
    max_requests: int = 256,
    **extra: Any,
) -> VllmConfig:
    """A real VllmConfig. host_blocks: usable blocks of the host pool. retention: vLLM's default is 0; None is dense."""
    model = tempfile.mkdtemp()
    with open(os.path.join(model, "config.json"), "w") as file:
        json.dump(_MODEL, file)
    # SimpleCPU keeps one block of its pool as the null block, the others none.
    host_bytes = (host_blocks + (connector == SIMPLE)) * PAGE_BYTES
    config = VllmConfig(
        model_config=ModelConfig(
            model=model, skip_tokenizer_init=True, dtype="float32", max_model_len=MAX_TOKENS, seed=0
        ),
        cache_config=CacheConfig(
            block_size=block_tokens,
            enable_prefix_caching=True,
            prefix_match_unit=prefix_match_unit,
            prefix_cache_retention_interval=retention,
        ),
        scheduler_config=SchedulerConfig(
            max_num_batched_tokens=batched_tokens,
            max_num_seqs=min(max_requests, batched_tokens),
            max_model_len=MAX_TOKENS,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            async_scheduling=False,
        ),
        parallel_config=ParallelConfig(),
        kv_transfer_config=KVTransferConfig(
            kv_connector=connector,
            kv_connector_module_path="hostkv.vllm" if connector == HOSTKV else None,
            kv_role="kv_both",
            kv_load_failure_policy=load_failure_policy,
            kv_connector_extra_config={"cpu_bytes_to_use": host_bytes, **extra},
        ),
    )
    config.cache_config.block_size = block_tokens
    if align:
        config.cache_config.mamba_cache_mode = "align"
    return config


def in_parallel(config: VllmConfig, num_ranks: int, dcp: int = 1, interleave_tokens: int = 1, pp: int = 1) -> None:
    """num_ranks counts all; dcp lies inside tensor parallelism."""
    parallel = config.parallel_config
    parallel.tensor_parallel_size, parallel.pipeline_parallel_size = num_ranks // pp, pp
    parallel.world_size = num_ranks
    parallel.decode_context_parallel_size = dcp
    parallel.cp_kv_cache_interleave_size = interleave_tokens


def with_drafts(config: VllmConfig, num_drafts: int, method: str = "ngram") -> None:
    """ngram: drafts that come from the text, so no group drops a block. With a draft model ("eagle", "mtp") the
    scheduler reads no more of it than the method."""
    config.speculative_config = SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=num_drafts,
        prompt_lookup_max=2,
        target_model_config=config.model_config,
        target_parallel_config=config.parallel_config,
    )
    config.speculative_config.method = method


def _attention(block_tokens: int) -> dict[str, Any]:
    return {
        "block_size": block_tokens,
        "num_kv_heads": 1,
        "head_size": max(1, PAGE_BYTES // block_tokens // 4),
        "dtype": torch.int8,
        "page_size_padded": PAGE_BYTES,
    }


def full(block_tokens: int = 16, sharded: bool = True) -> FullAttentionSpec:
    return FullAttentionSpec(**_attention(block_tokens), **_whole_unless(sharded))


def mla(block_tokens: int = 16, tokens_per_entry: int = 1) -> MLAAttentionSpec:
    return MLAAttentionSpec(**_attention(block_tokens), tokens_per_state=tokens_per_entry)


def window(block_tokens: int = 16, window_tokens: int = 128, sharded: bool = True) -> SlidingWindowSpec:
    """sharded: as by default; vLLM takes windows under context parallelism only where every rank holds them whole."""
    return SlidingWindowSpec(**_attention(block_tokens), sliding_window=window_tokens, **_whole_unless(sharded))


def chunked(block_tokens: int = 16, chunk_tokens: int = 128) -> ChunkedLocalAttentionSpec:
    return ChunkedLocalAttentionSpec(**_attention(block_tokens), attention_chunk_size=chunk_tokens)


def _whole_unless(sharded: bool) -> dict[str, Any]:
    return {} if sharded else {"dcp_sharded": False}


def mamba(
    block_tokens: int = 64, num_drafts: int = 0, checkpoint_alignment: int | None = None, state_bytes: int = 1024
) -> MambaSpec:
    """checkpoint_alignment: where a prefill can export a state inside its chunk, counted from the chunk's begin."""
    return MambaSpec(
        block_size=block_tokens,
        shapes=((state_bytes // 4,),),
        dtypes=(torch.float32,),
        page_size_padded=PAGE_BYTES,
        mamba_cache_mode="align",
        num_speculative_blocks=num_drafts,
        num_prefill_checkpoint_blocks=int(checkpoint_alignment is not None),
        **({"prefill_checkpoint_alignment": checkpoint_alignment} if checkpoint_alignment is not None else {}),
    )


def ring(block_tokens: int = 4) -> Any:
    """Raw keys of the running request: never cached. vLLM 0.32 and newer."""
    from vllm.v1.kv_cache_interface import CircularBufferSpec

    return CircularBufferSpec(**_attention(block_tokens))


def kv_config(
    specs: Sequence[Any],
    num_blocks: int,
    config: VllmConfig,
    layout: str = "LBHNC",
    layers: Sequence[list[str]] | None = None,
    drafts: Collection[int] = (),
) -> KVCacheConfig:
    """One layer a group, all groups in one memory, as in the engine. num_blocks counts the null block. layers: names of
    each group's instead; drafts: the groups that the engine marks as those of its draft model."""
    register_all_kvcache_specs(vllm_config=None)
    size = PAGE_BYTES * num_blocks
    names = layers or [[f"layer{i}"] for i in range(len(specs))]
    kv = KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=[
            KVCacheTensor(size=size, layers=of_group, layer_stride=size, block_stride=PAGE_BYTES) for of_group in names
        ],
        kv_cache_groups=[
            KVCacheGroupSpec(names[i], spec, is_eagle_group=i in drafts) for i, spec in enumerate(specs)
        ],
        **({"kv_cache_layout": layout} if "kv_cache_layout" in KVCacheConfig.__dataclass_fields__ else {}),
    )
    config.cache_config.num_gpu_blocks = num_blocks
    scheduler_block, hash_block = kv_cache_utils.resolve_kv_cache_block_sizes(kv, config)
    for name, value in {
        "hash_block_size": hash_block,
        "prefix_cache_retention_interval": config.cache_config.prefix_cache_retention_interval,
    }.items():
        if hasattr(kv, name):
            setattr(kv, name, value)
    align = getattr(kv_cache_utils, "resolve_cache_hit_alignment_tokens", None)
    if align is not None:
        kv.cache_hit_alignment_tokens = align(kv, config, scheduler_block, hash_block)
    return kv


def scheduler_half(config: VllmConfig, kv: KVCacheConfig) -> Any:
    """The connector's scheduler half, built by vLLM's own factory."""
    return KVConnectorFactory.create_connector(config=config, role=KVConnectorRole.SCHEDULER, kv_cache_config=kv)


def request(
    request_id: str,
    tokens: list[int],
    hashes: list[bytes] | None = None,
    hash_block: int = 16,
    max_tokens: int = 1,
    **extra: Any,
) -> Request:
    """A real Request. hashes: ready-made block hashes, else vLLM's own chain is computed."""
    if hashes is None:
        hasher = kv_cache_utils.get_request_block_hasher(hash_block, sha256)
    else:

        def hasher(of: Request) -> list[bytes]:
            return [] if of.block_hashes else hashes

    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, **extra)
    return Request(
        request_id=request_id,
        prompt_token_ids=tokens,
        sampling_params=sampling,
        pooling_params=None,
        block_hasher=hasher,
    )


def step_output(
    new: Iterable[tuple[Request, Any]] = (),
    cached: Sequence[tuple[str, Any]] = (),
    tokens: dict[str, int] | None = None,
    finished: Iterable[str] = (),
) -> SchedulerOutput:
    """new: (request, block numbers a group); cached: (request id, new block numbers a group or None)."""
    output = SchedulerOutput.make_empty()
    output.scheduled_new_reqs = [NewRequestData.from_request(of, blocks) for of, blocks in new]
    if cached:
        output.scheduled_cached_reqs = CachedRequestData(
            req_ids=[of for of, _ in cached],
            resumed_req_ids=set(),
            new_token_ids=[],
            all_token_ids={},
            new_block_ids=[blocks for _, blocks in cached],
            num_computed_tokens=[0] * len(cached),
            num_output_tokens=[1] * len(cached),
        )
    output.num_scheduled_tokens = dict(tokens or {})
    output.total_num_scheduled_tokens = sum(output.num_scheduled_tokens.values())
    output.finished_req_ids = set(finished)
    output.preempted_req_ids = set()
    return output
