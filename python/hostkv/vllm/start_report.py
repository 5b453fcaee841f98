"""What the connector says when it starts, and what it refuses there by name.

Purpose: the one start-up line (boundaries, smallest reusable prefix, pool per rank, versions), a warning for every
setting that quietly costs what HostKV is for, and a watch on hooks that the engine never calls.
Thread-safety: values and functions; a HookWatch belongs to one thread. Cost: once at start; a HookWatch costs one test
a step until it has made up its mind. Failure: check_platform and check_device raise ValueError.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Line = tuple[int, str]  # a level of the module logging, and the text

_GIB = 1 << 30
_CUDA_REFUSED = "the CUDA backend is not connected to vLLM yet; HostKV serves vLLM on CPUs for now"
_FLAG = '"kv_load_failure_policy": "recompute"'


@dataclass(frozen=True)
class GroupFacts:
    """One KV cache group: the core's label, tokens of one block over all ranks, and whether HostKV keeps it."""

    label: str
    block_tokens: int
    offloadable: bool


@dataclass(frozen=True)
class StartFacts:
    """What the start-up line is made of. Bytes are those of one rank."""

    hostkv_version: str
    vllm_version: str
    store_mode: str
    boundaries: str
    hit_alignment_tokens: int
    smallest_prefix_tokens: int
    groups: tuple[GroupFacts, ...]
    ranks: int
    host_bytes: int
    device_bytes: int
    damaged_fine_hits: bool = False

    @property
    def block_sizes(self) -> str:
        """Each group's block size in tokens, as the info metric and the line show it."""
        return ",".join(str(group.block_tokens) for group in self.groups)


def facts_of(
    resolved: Any,
    geometry: Any,
    kv_cache_config: Any,
    ranks: int,
    versions: tuple[str, str],
    damaged_fine_hits: bool = False,
) -> StartFacts:
    """The facts of resolved options, the core's geometry and vLLM's cache; versions are (HostKV's, vLLM's)."""
    # Every tensor entry of vLLM's says where it lies in one allocation, and repeats that allocation's size.
    tensors = kv_cache_config.kv_cache_tensors
    return StartFacts(
        hostkv_version=versions[0],
        vllm_version=versions[1],
        store_mode=str(resolved.values["store_mode"]),
        boundaries="fine" if geometry.fine_hits and resolved.values["boundaries"] == "fine" else "coarse",
        hit_alignment_tokens=geometry.hit_alignment_tokens,
        smallest_prefix_tokens=geometry.min_reusable_tokens,
        groups=tuple(
            GroupFacts(geometry.label(index), geometry.span_tokens(index), geometry.offloadable(index))
            for index in range(geometry.num_groups)
        ),
        ranks=ranks,
        host_bytes=resolved.bytes_per_rank,
        device_bytes=int(tensors[0].size) if tensors else 0,
        damaged_fine_hits=damaged_fine_hits,
    )


def start_line(facts: StartFacts) -> str:
    """The one line at start."""
    groups = ", ".join(
        f"{group.label} {group.block_tokens}" + ("" if group.offloadable else " (not stored)") for group in facts.groups
    )
    return (
        f"HostKV {facts.hostkv_version} on vLLM {facts.vllm_version}: hits end on multiples of "
        f"{facts.hit_alignment_tokens} tokens (boundaries {facts.boundaries}), smallest reusable prefix "
        f"{facts.smallest_prefix_tokens} tokens, host pool {facts.host_bytes / _GIB:.2f} GiB on each of {facts.ranks} "
        f"rank{'' if facts.ranks == 1 else 's'} (device cache {facts.device_bytes / _GIB:.2f} GiB), stores "
        f"{facts.store_mode}; groups and their block tokens: {groups}"
    )


def stats_info(facts: StartFacts, hash_block_tokens: int) -> dict[str, str]:
    """What statistics say of the connector itself, once."""
    return {
        "version": facts.hostkv_version,
        "store_mode": facts.store_mode,
        "boundaries": facts.boundaries,
        "block_sizes": facts.block_sizes,
        "hash_block_size": str(hash_block_tokens),
    }


def report_lines(facts: StartFacts, vllm_config: Any) -> list[Line]:
    """The start-up line and every warning, in the order in which to log them."""
    return [(logging.INFO, start_line(facts)), *config_warnings(vllm_config), *_pool_warnings(facts)]


def config_warnings(vllm_config: Any) -> list[Line]:
    """Warnings that the configuration alone calls for; they hold without a geometry too."""
    transfer = vllm_config.kv_transfer_config
    warnings = []
    if not vllm_config.cache_config.enable_prefix_caching:
        warnings.append("prefix caching is off: HostKV stores and finds nothing; leave out --no-enable-prefix-caching")
    if transfer.kv_load_failure_policy != "recompute":
        warnings.append(
            f'kv_load_failure_policy is "{transfer.kv_load_failure_policy}": a load that fails ends its request with '
            f"an error instead of being computed again; put {_FLAG} into --kv-transfer-config"
        )
    if transfer.kv_role != "kv_both":
        missing = "finds nothing" if transfer.kv_role == "kv_producer" else "stores nothing"
        warnings.append(
            f'kv_role is "{transfer.kv_role}": a host cache both stores and loads, and one that {missing} makes no '
            'sense; HostKV does both all the same, write "kv_both"'
        )
    return [(logging.WARNING, warning) for warning in warnings]


def _pool_warnings(facts: StartFacts) -> list[Line]:
    warnings = []
    if facts.host_bytes <= facts.device_bytes and facts.store_mode == "eager":
        warnings.append(
            f"the host pool ({facts.host_bytes} bytes a rank) is not larger than the device cache "
            f"({facts.device_bytes} bytes): an eager pool mostly mirrors what the device still has; raise "
            "cpu_bytes_to_use or set store_mode lazy"
        )
    if facts.damaged_fine_hits:
        warnings.append(
            "vLLM's copy of a partly filled block loses bytes with this cache layout after a device hit that ends "
            "inside a block (with and without a connector); HostKV stores no blocks of a request after such a hit"
        )
    return [(logging.WARNING, warning) for warning in warnings]


def check_platform(platform: Any) -> None:
    """Refuses vLLM platforms that HostKV does not serve. `platform` is vllm.platforms.current_platform."""
    for name, asks in (("ROCm", "is_rocm"), ("XPU", "is_xpu"), ("TPU", "is_tpu")):
        if getattr(platform, asks, bool)():
            raise ValueError(f"HostKV does not serve {name}; it serves vLLM on CPUs")
    if getattr(platform, "is_cuda", bool)():
        raise ValueError(_CUDA_REFUSED)


def check_device(device_type: str, hip_version: str | None = None) -> None:
    """Refuses tensors that no backend copies. PyTorch calls ROCm's devices "cuda"; torch.version.hip tells."""
    if device_type == "cpu":
        return
    if device_type == "cuda" and hip_version:
        raise ValueError(f"KV caches are on ROCm ({hip_version}); HostKV does not serve it")
    if device_type == "cuda":
        raise ValueError(f"KV caches are on CUDA devices: {_CUDA_REFUSED}")
    raise ValueError(f'KV caches are on "{device_type}" devices; HostKV serves "cpu"')


class HookWatch:
    """Notices hooks that the engine never calls.

    expected: hook -> what does not work without it. After `after_steps` steps with requests, step() returns the lines
    to log, once; then the watch is over.
    """

    def __init__(self, expected: Mapping[str, str], after_steps: int = 100) -> None:
        self._missing = dict(expected)
        self._steps_left = after_steps if self._missing else 0

    def called(self, hook: str) -> None:
        """Call it from the hook."""
        if self._steps_left:
            self._missing.pop(hook, None)

    def step(self, num_requests: int) -> Iterable[Line]:
        """Call it once a step."""
        if not self._steps_left or not num_requests:
            return ()
        self._steps_left -= 1
        if self._steps_left or not self._missing:
            return ()
        return [
            (logging.WARNING, f"the engine has never called {hook}: {consequence}")
            for hook, consequence in self._missing.items()
        ]


def log_lines(logger: logging.Logger, lines: Iterable[Line]) -> None:
    """Writes lines as made above."""
    for level, text in lines:
        logger.log(level, "%s", text if text.startswith("HostKV") else f"HostKV: {text}")
