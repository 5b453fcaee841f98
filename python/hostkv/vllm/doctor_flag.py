"""What is wrong with the JSON of --kv-transfer-config, beside HostKV's own options.

Failure: our_part raises ValueError for JSON that cannot hold our options; problems() only tells.
"""

from __future__ import annotations

import difflib
from typing import Any

NAME = "HostKVConnector"
MODULE = "hostkv.vllm"
ROLES = ("kv_both", "kv_producer", "kv_consumer")
POLICIES = ("recompute", "fail")
_KEYS = (
    "kv_connector", "kv_connector_module_path", "kv_connector_extra_config", "kv_role", "kv_load_failure_policy",
    "engine_id", "kv_buffer_device", "kv_buffer_size", "kv_rank", "kv_parallel_size", "kv_ip", "kv_port",
    "enable_permute_local_kv",
)  # fmt: skip


def our_part(transfer: dict[str, Any]) -> dict[str, Any]:
    """The flag itself, or our child of a MultiConnector."""
    name = transfer.get("kv_connector", NAME)
    extra = transfer.get("kv_connector_extra_config") or {}
    if not isinstance(extra, dict):
        raise ValueError(f"--kv-transfer-config: kv_connector_extra_config is {extra!r}; a JSON object is needed")
    if name == "MultiConnector":
        children = extra.get("connectors")
        ours = [
            child
            for child in (children if isinstance(children, list) else [])
            if isinstance(child, dict) and child.get("kv_connector") == NAME
        ]
        if not ours:
            raise ValueError(f'--kv-transfer-config: none of MultiConnector\'s "connectors" is "{NAME}"')
        return our_part({"kv_load_failure_policy": transfer.get("kv_load_failure_policy", "fail"), **ours[0]})
    if name != NAME:
        raise ValueError(f'--kv-transfer-config: kv_connector is {name!r}; "{NAME}" is ours')
    return transfer


def problems(transfer: dict[str, Any]) -> list[str]:
    """What vLLM would refuse, or would not find."""
    found = []
    for key in transfer:
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key), _KEYS, 1)
            found.append(
                f"unknown key {key!r}" + (f"; did you mean {near[0]!r}?" if near else f"; known: {list(_KEYS)}")
            )
    if transfer.get("kv_role") not in ROLES:
        found.append(f'kv_role is {transfer.get("kv_role")!r}; write "kv_both"')
    if transfer.get("kv_load_failure_policy", POLICIES[0]) not in POLICIES:
        found.append(f"kv_load_failure_policy is {transfer['kv_load_failure_policy']!r}; allowed: recompute, fail")
    if transfer.get("kv_connector_module_path", MODULE) not in (MODULE, None):
        found.append(f'kv_connector_module_path is {transfer["kv_connector_module_path"]!r}; write "{MODULE}"')
    if "kv_connector" not in transfer:
        found.append(f'kv_connector is missing; write "{NAME}"')
    return found
