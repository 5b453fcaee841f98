"""HostKV for vLLM: `kv_connector="HostKVConnector"`, `kv_connector_module_path="hostkv.vllm"`.

Importing this package imports neither torch nor vllm; the connector class is loaded when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hostkv.vllm.connector import HostKVConnector

__all__ = ["HostKVConnector"]


def __getattr__(name: str) -> Any:
    if name == "HostKVConnector":
        from hostkv.vllm.connector import HostKVConnector

        return HostKVConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
