"""The KV cache that vLLM would build for a model, without its weights and without its engine.

Purpose: the doctor says groups and boundaries before a deployment. vLLM's own code makes the configuration: the model
is built on PyTorch's meta device (no weights, no memory), its layers are asked for their cache specs, and the engine
core's own function turns them into groups, with a double in place of its executor. So the answer is that of the
installed version on this machine's platform.

Run as a process of its own (`python -m hostkv.vllm.doctor_model`, JSON on standard input, the answer as the last line
of standard output): it sets up process groups of one and then calls them as large as asked. Failure: exit 1 with the
cause as the last line.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# More than any model asks for one request; nothing is allocated.
_PRETENDED_BYTES = 1 << 44


def describe(model: str, engine_args: dict[str, Any], options: str = "{}") -> dict[str, Any]:
    """Groups and boundaries for a model folder and vLLM engine arguments."""
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs

    config = EngineArgs(
        model=model, load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, **engine_args
    ).create_engine_config()
    with set_current_vllm_config(config):
        _build_on_meta(config)
        cache = _kv_cache_config(config)
        return _facts(cache, config) | {"pool_problem": _pool_problem(cache, config, options)}


def _build_on_meta(config: Any) -> Any:
    """The model without weights, as rank 0 of its tensor and context parallel groups would build it."""
    import torch
    from vllm.distributed import parallel_state
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.platforms import current_platform
    from vllm.utils.torch_utils import set_default_torch_dtype

    parallel = config.parallel_config
    names = ("tensor_parallel_size", "decode_context_parallel_size", "world_size")
    sizes = {name: getattr(parallel, name) for name in names}
    for name in names:
        setattr(parallel, name, 1)
    with tempfile.TemporaryDirectory() as folder:
        parallel_state.init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
        parallel_state.ensure_model_parallel_initialized(1, 1)
    for name, size in sizes.items():
        setattr(parallel, name, size)
    # Nothing communicates while layers are made; they only ask how many ranks share them.
    parallel_state.get_tp_group().world_size = sizes["tensor_parallel_size"]
    parallel_state.get_dcp_group().world_size = sizes["decode_context_parallel_size"]
    with torch.device("meta"), set_default_torch_dtype(config.model_config.dtype):
        model = initialize_model(vllm_config=config)
    current_platform.update_block_size_for_backend(config)
    return model


def _kv_cache_config(config: Any) -> Any:
    """The scheduler's KVCacheConfig, by the engine core's own function."""
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner
    from vllm.v1.worker.worker_base import WorkerBase

    ranks = config.parallel_config.world_size
    worker = SimpleNamespace(vllm_config=config, shared_kv_cache_layers={})
    executor = SimpleNamespace(
        get_kv_cache_specs=lambda: [GPUModelRunner.get_kv_cache_spec(worker) for _ in range(ranks)],
        get_supported_kv_cache_layouts=lambda: [WorkerBase.get_supported_kv_cache_layouts(worker)] * ranks,
        set_kv_cache_layout=lambda *layout: WorkerBase.set_kv_cache_layout(worker, *layout),
        determine_available_memory=lambda: [_PRETENDED_BYTES] * ranks,
        initialize_from_config=lambda configs: None,
        compile_or_warm_up_model=lambda: None,
    )
    core = SimpleNamespace(model_executor=executor, collective_rpc=lambda *args, **kw: None)
    return EngineCore._initialize_kv_caches(core, config)


def _pool_problem(cache: Any, config: Any, options: str) -> str | None:
    """Why a worker of this cache would refuse its host pool; no byte of device or pool is touched."""
    from vllm.v1.kv_cache_interface import MambaSpec

    from hostkv import _core
    from hostkv.vllm import geometry

    resolved = geometry.resolve(cache, config)
    stride_of = {name: tensor.block_stride for tensor in cache.kv_cache_tensors for name in tensor.layers}
    groups: list[list[tuple[int, int, int, int]]] = []
    for index, group in enumerate(cache.kv_cache_groups):
        ranges, offset = [], 0
        for name in group.layer_names if resolved.offloadable(index) else ():
            spec = geometry.layer_spec(group.kv_cache_spec, name)
            size = geometry.state_bytes(spec) if isinstance(spec, MambaSpec) else spec.page_size_bytes
            stride = max(stride_of[name], size)
            ranges.append((0, offset, stride, size))
            offset += stride * 2
        groups.append(ranges)
    end = max((ranges[-1][1] + ranges[-1][2] * 2 for ranges in groups if ranges), default=1)
    worker = _core.Worker(resolved, options, 0, config.parallel_config.world_size)
    try:
        worker.register_layout(2, [(4096, end)], groups)
    except (ValueError, RuntimeError) as error:
        return str(error)
    worker.shutdown(1.0)
    return None


def _facts(cache: Any, config: Any) -> dict[str, Any]:
    from hostkv.vllm import geometry

    resolved = geometry.resolve(cache, config)
    parallel = config.parallel_config
    return geometry_facts(resolved) | {
        "prefix_caching": bool(config.cache_config.enable_prefix_caching),
        "layout": getattr(cache, "kv_cache_layout", None),
        "block_bytes": _PRETENDED_BYTES // cache.num_blocks,
        "damaged_fine_hits": bool(geometry.damages_fine_hits(cache, resolved)),
        "tp": parallel.tensor_parallel_size,
        "dcp": parallel.decode_context_parallel_size,
    }


def geometry_facts(resolved: Any) -> dict[str, Any]:
    """What the core's geometry says, as plain values."""
    return {
        "scheduler_block_tokens": resolved.scheduler_block_tokens,
        "hash_block_tokens": resolved.hash_block_tokens,
        "hit_alignment_tokens": resolved.hit_alignment_tokens,
        "smallest_prefix_tokens": resolved.min_reusable_tokens,
        "fine_hits": bool(resolved.fine_hits),
        "groups": [
            {
                "label": resolved.label(index),
                "block_tokens": resolved.span_tokens(index),
                "offloadable": bool(resolved.offloadable(index)),
            }
            for index in range(resolved.num_groups)
        ],
    }


def geometry_file_facts(path: Path, tp: int | None, dcp: int | None, interleave_tokens: int) -> dict[str, Any]:
    """The same for a geometry file of ours (bench/models). Raises ValueError naming file and cause.

    Without `dcp` the file's own; without `tp` as many ranks as that needs.
    """
    from hostkv import _core

    try:
        model = json.loads(path.read_text())
        groups = [group | {"mamba_mode": group.get("state_mode", "align")} for group in model["groups"]]
        dcp = dcp or model.get("default_dcp", 1)
        parallel = {"tp": tp or dcp, "dcp": dcp, "interleave_tokens": interleave_tokens}
        resolved = _core.Geometry(groups=groups, parallel=parallel, hash_block_tokens=model.get("hash_block_tokens"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"--geometry {path}: {type(error).__name__}: {error}") from None
    return geometry_facts(resolved) | {"prefix_caching": True, "damaged_fine_hits": False} | parallel


def main() -> int:
    """The process of its own."""
    asked = json.load(sys.stdin)
    try:
        facts = describe(asked["model"], asked["engine_args"], asked.get("options", "{}"))
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        return 1
    print(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
