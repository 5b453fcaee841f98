"""A connector that stores and loads nothing, under a name for which vLLM changes the interleave of decode contexts.

With a NixlConnector anywhere in the configuration, vLLM sets the interleave to the block size: up to 0.32 in each
worker and nowhere else, just before the connectors are made.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    SupportsHMA,
)


class NixlConnector(KVConnectorBase_V1, SupportsHMA):
    """Named in the configuration together with this module's path, which vLLM prefers to its own of that name."""

    def start_load_kv(self, forward_context: Any, **kw: Any) -> None: ...

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kw: Any) -> None: ...

    def wait_for_save(self) -> None: ...

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None: ...

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """MultiConnector hands on the first that it gets, and no other child's."""
        talks = self._kv_transfer_config.kv_connector_extra_config.get("talks")
        return KVConnectorHandshakeMetadata() if talks else None

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[Any, KVConnectorHandshakeMetadata]) -> None: ...

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        return False, None


def child(*, talks: bool) -> dict[str, Any]:
    """Of a MultiConnector. `talks`: it sends handshake metadata of its own."""
    return {
        "kv_connector": "NixlConnector", "kv_connector_module_path": __name__, "kv_role": "kv_both",
        "kv_connector_extra_config": {"talks": talks},
    }  # fmt: skip
