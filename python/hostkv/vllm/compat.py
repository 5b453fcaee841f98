"""The one place that knows how vLLM's versions differ: 0.30 to 0.33 are supported.

Everything is decided once, from what the installed vLLM offers; nothing asks for a version while steps run. An untested
newer version starts only when every name that HostKV uses is there (missing_names).
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

OLDEST = (0, 30)
NEWEST_TESTED = (0, 33)
REFUSED_29 = (
    "vLLM 0.29 has no way to report one request's failed load and no hand-off when a request ends on its prompt's tail"
)

_BASE = "vllm.distributed.kv_transfer.kv_connector.v1.base"
_UTILS = "vllm.v1.core.kv_cache_utils"
_SPECS = "vllm.v1.kv_cache_interface"
_POOL = "vllm.v1.core.block_pool"

# Every name of vLLM that HostKV uses: (module, object, attributes or parameters that it must have).
USED_NAMES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        _BASE,
        "KVConnectorBase_V1",
        (
            "bind_kv_cache_manager",
            "get_transfer_results",
            "has_pending_block_frees",
            "has_pending_push_work",
            "register_finished_partial_tail",
            "build_connector_meta",
            "build_connector_worker_meta",
            "get_handshake_metadata",
            "take_events",
            "set_xfer_handshake_metadata_pp_aware",
            "update_connector_output",
        ),
    ),
    (_BASE, "SupportsHMA", ("request_finished_all_groups",)),
    (_BASE, "KVConnectorTransferResults", ("finished_sending", "finished_recving", "failed_recving")),
    (_BASE, "KVConnectorHandshakeMetadata", ()),
    (_BASE, "KVConnectorMetadata", ()),
    (_BASE, "KVConnectorWorkerMetadata", ("aggregate",)),
    (_BASE, "KVConnectorRole", ("SCHEDULER", "WORKER")),
    ("vllm.distributed.kv_transfer.kv_connector.v1.metrics", "KVConnectorStats", ("aggregate", "reduce", "is_empty")),
    ("vllm.distributed.kv_transfer.kv_connector.v1.metrics", "KVConnectorPromMetrics", ("observe",)),
    ("vllm.distributed.kv_transfer.kv_connector.factory", "KVConnectorFactory", ("register_connector",)),
    (_UTILS, "resolve_kv_cache_block_sizes", ()),
    (_UTILS, "make_block_hash_with_group_id", ()),
    (
        _UTILS,
        "KVCacheBlock",
        ("block_id", "ref_cnt", "_block_hash", "_block_hash_num_tokens", "next_free_block", "is_null"),
    ),
    (_UTILS, "FreeKVCacheBlockQueue", ("prepend_n",)),
    (_POOL, "BlockPool", ("touch", "free_blocks", "get_new_blocks", "get_num_free_blocks")),
    (_POOL, "BlockHashToBlockMap", ("get_one_block",)),
    ("vllm.v1.core.kv_cache_manager", "KVCacheManager", ("get_blocks",)),
    (_SPECS, "KVCacheConfig", ("num_blocks", "kv_cache_tensors", "kv_cache_groups")),
    (_SPECS, "KVCacheTensor", ("size", "layers", "layer_stride", "block_stride", "offset")),
    (_SPECS, "KVCacheGroupSpec", ("layer_names", "kv_cache_spec", "is_eagle_group", "enable_kv_transfer")),
    *(
        (_SPECS, name, ())
        for name in (
            "FullAttentionSpec",
            "MLAAttentionSpec",
            "SlidingWindowSpec",
            "ChunkedLocalAttentionSpec",
            "MambaSpec",
            "UniformTypeKVCacheSpecs",
            "CrossAttentionSpec",
            "EncoderOnlyAttentionSpec",
        )
    ),
    ("vllm.config", "SpeculativeConfig", ("use_eagle_block_drop",)),
    ("vllm.v1.core.sched.output", "KVConnectorBlockState", ("boundary_state_offloads",)),
)


def installed_version() -> str | None:
    """The version of the vLLM that an import would find, None where there is none."""
    try:
        return str(importlib.import_module("vllm.version").__version__)
    except ImportError:
        return None


def release_of(version: str) -> tuple[int, int]:
    """(0, 32) of "0.32.0", "0.32.1rc1+cpu"; (0, 0) where it cannot be read."""
    parts = version.split(".")
    try:
        return int(parts[0]), int("".join(c for c in parts[1] if c.isdigit()))
    except (IndexError, ValueError):
        return 0, 0


def version_problem(version: str) -> str | None:
    """Why HostKV does not start under this version, None where it does."""
    release = release_of(version)
    if release < OLDEST and release != (0, 0):
        reason = f": {REFUSED_29}" if release == (0, 29) else ""
        return f"vLLM {version} is not supported; HostKV needs 0.30 or newer{reason}"
    if OLDEST <= release <= NEWEST_TESTED:
        return None
    missing = missing_names()
    if missing:
        return f"vLLM {version} is newer than the last one HostKV was tested with (0.33) and lacks {missing[0]}" + (
            f" and {len(missing) - 1} other names" if len(missing) > 1 else ""
        )
    return None


def missing_names() -> list[str]:
    """Names that HostKV uses and that the installed vLLM lacks."""
    missing = []
    for module_name, name, members in USED_NAMES:
        try:
            found = getattr(importlib.import_module(module_name), name)
        except (ImportError, AttributeError):
            missing.append(f"{module_name}.{name}")
            continue
        missing += [f"{module_name}.{name}.{member}" for member in members if not _has_member(found, member)]
    return missing


def _has_member(found: Any, member: str) -> bool:
    if hasattr(found, member) or member in getattr(found, "__dataclass_fields__", {}):
        return True
    if member in getattr(found, "__annotations__", {}):
        return True
    return inspect.isclass(found) and member in getattr(found, "__slots__", ())


def host_hit_source() -> Any:
    """vLLM's label for tokens that came from host memory (0.32 and newer), else None."""
    for module_name in (_BASE, "vllm.v1.metrics.stats"):
        source = getattr(importlib.import_module(module_name), "CacheHitSource", None)
        if source is not None and hasattr(source, "HOST"):
            return source.HOST
    return None


def block_sizes(kv_cache_config: Any, vllm_config: Any) -> tuple[int, int]:
    """(scheduler block, hash block) in tokens, as the engine resolves them."""
    resolve: Callable[..., tuple[int, int]] = importlib.import_module(_UTILS).resolve_kv_cache_block_sizes
    scheduler_block, hash_block = resolve(kv_cache_config, vllm_config)
    return int(scheduler_block), int(getattr(kv_cache_config, "hash_block_size", None) or hash_block)


def published_alignment(kv_cache_config: Any) -> int | None:
    """Where hits end, in tokens, if the engine says so (0.32 and newer)."""
    alignment = getattr(kv_cache_config, "cache_hit_alignment_tokens", None)
    return int(alignment) if alignment else None


def alignment_of_manager(kv_cache_manager: Any) -> int | None:
    """The same, from the bound cache manager (hybrid models of every version)."""
    alignment = getattr(getattr(kv_cache_manager, "coordinator", None), "_cache_hit_alignment_tokens", None)
    return int(alignment) if isinstance(alignment, int) else None


def drops_draft_blocks(vllm_config: Any) -> bool:
    """Do the engine's lookups drop what they found last? A draft model's rows are made of the token behind too."""
    speculative = getattr(vllm_config, "speculative_config", None)
    return speculative is not None and bool(speculative.use_eagle_block_drop())


def is_dcp_sharded(spec: Any, attention_types: tuple[type, ...]) -> bool:
    """Does DCP deal out the tokens of this group's blocks? Said by the spec since 0.31, by its type before."""
    sharded = getattr(spec, "dcp_sharded", None)
    if sharded is None:
        return isinstance(spec, attention_types)
    return bool(sharded) and isinstance(spec, attention_types)


def configured_interleave_tokens(parallel_config: Any) -> int:
    """What the configuration asks for; the workers' own may differ until they have told it (settled_interleave_tokens).

    The old name wins where it is set, as in vLLM.
    """
    old_name = getattr(parallel_config, "dcp_kv_cache_interleave_size", None) or 1
    return int(old_name) if old_name > 1 else settled_interleave_tokens(parallel_config)


def settled_interleave_tokens(parallel_config: Any) -> int:
    """In a worker, behind its connector's construction: what its model runs with.

    vLLM settles it late, in each worker up to 0.32: the old name is copied over, and a NixlConnector beside us forces
    it to the block size. The scheduler's configuration hears nothing of that.
    """
    return int(getattr(parallel_config, "cp_kv_cache_interleave_size", None) or 1)
