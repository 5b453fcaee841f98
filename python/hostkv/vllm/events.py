"""The core's cache events as vLLM's KV events.

Purpose: cache-aware routers follow BlockStored, BlockRemoved and AllBlocksCleared. The core knows hashes and
boundaries, vLLM's request knows tokens, parents and keys: what a store needs from the request is taken when the store
is planned, because at its completion the request may be gone, and told when the store is published.
One event per key, self-describing: the tokens of the block's span, the parent's hash, group, kind, window, medium CPU.
A store planned without a request (mode lazy saves blocks that the device is about to drop, whose request ended long
ago) is told as vLLM does it there: the hash and the group, no tokens, block size 0.

Core events are tuples (kind, group, hash, boundary_tokens, request): kind is one of KINDS or its index, boundary_tokens
0 when unknown, request whatever the lookup function understands, or None.
Thread-safety: one thread, the scheduler's. Cost: nothing unless KV events are enabled; then the span's tokens once a
planned store. Failure: an event with an unknown kind raises ValueError; missing facts make a placeholder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind, get_kv_cache_spec_sliding_window

KINDS = ("planned", "dropped", "stored", "removed", "cleared")
MEDIUM = "CPU"
LOCALITY = "LOCAL"

CacheEvent = tuple[str | int, int, bytes, int, Any]
_Key = tuple[int, bytes]


@dataclass(frozen=True)
class EventGroup:
    """What events say about a KV cache group: tokens_per_block over all context-parallel ranks, kind and window."""

    tokens_per_block: int
    kind: str | None = None
    sliding_window: int | None = None


def event_groups(kv_cache_groups: Sequence[Any], tokens_per_block: Sequence[int]) -> list[EventGroup]:
    """The groups of vLLM's KVCacheConfig, with the spans that the adapter resolved."""
    return [
        EventGroup(
            span,
            get_kv_cache_spec_kind(group.kv_cache_spec).value,
            get_kv_cache_spec_sliding_window(group.kv_cache_spec),
        )
        for group, span in zip(kv_cache_groups, tokens_per_block, strict=True)
    ]


def events_enabled(vllm_config: Any) -> bool:
    """True when the operator asked vLLM for KV events."""
    config = vllm_config.kv_events_config
    return bool(config is not None and config.enable_kv_cache_events)


class EventTranslator:
    """Turns the core's events into vLLM's, in their order.

    find_request: from an event's request to the live vLLM Request, None when it is gone.
    """

    def __init__(
        self,
        groups: Sequence[EventGroup],
        hash_block_size: int,
        find_request: Callable[[Any], Any | None],
    ) -> None:
        self._groups = tuple(groups)
        self._hash_block_size = hash_block_size
        self._find_request = find_request
        self._planned: dict[_Key, tuple[int, BlockStored]] = {}  # boundary in tokens, event

    @property
    def num_planned(self) -> int:
        """Stores that were planned and neither published nor dropped."""
        return len(self._planned)

    def translate(self, events: Iterable[CacheEvent]) -> list[KVCacheEvent]:
        """The KV events to publish for these events of the core."""
        told: list[KVCacheEvent] = []
        stored: list[tuple[int, BlockStored]] = []  # neighbours of one kind
        for kind, group, block_hash, boundary_tokens, request in events:
            name = KINDS[kind] if isinstance(kind, int) else kind
            if name in ("removed", "cleared"):
                told += _parents_first(stored)
                stored = []
            match name:
                case "planned":
                    event = self._describe(group, block_hash, boundary_tokens, request)
                    self._planned[group, block_hash] = boundary_tokens, event
                case "dropped":
                    self._planned.pop((group, block_hash), None)
                case "stored":
                    known = self._planned.pop((group, block_hash), None)
                    stored.append(known or (boundary_tokens, self._stored(group, block_hash)))
                case "removed":
                    told.append(_removed(group, block_hash))
                case "cleared":
                    told.append(AllBlocksCleared())
                case unknown:
                    raise ValueError(f"cache event of kind {unknown!r}; known: {', '.join(KINDS)}")
        told += _parents_first(stored)
        return told

    def _describe(self, group: int, block_hash: bytes, boundary_tokens: int, request_key: Any) -> BlockStored:
        """The event of a planned store while its request lives; a placeholder when it does not say enough."""
        request = None if request_key is None else self._find_request(request_key)
        if request is None or not 0 < boundary_tokens <= len(request.all_token_ids):
            return self._stored(group, block_hash)
        # A block may be filled up to the boundary only (a prompt's tail); it begins where its span begins.
        span = self._groups[group].tokens_per_block
        start = (boundary_tokens - 1) // span * span
        extra_keys, _ = kv_cache_utils.generate_block_hash_extra_keys(request, start, boundary_tokens, 0)
        lora = request.lora_request
        return self._stored(
            group,
            block_hash,
            parent_block_hash=self._hash_at(request, start),
            token_ids=list(request.all_token_ids[start:boundary_tokens]),
            block_size=boundary_tokens - start,
            lora_id=lora.adapter_id if lora else None,
            lora_name=lora.name if lora else None,
            extra_keys=_published_extra_keys(extra_keys),
            session_id=getattr(request, "session_id", None),
        )

    def _hash_at(self, request: Any, tokens: int) -> Any:
        """The published hash of the request's prefix of that many tokens; None for the empty one."""
        index = tokens // self._hash_block_size - 1
        if not 0 <= index < len(request.block_hashes):
            return None
        return kv_cache_utils.maybe_convert_block_hash(request.block_hashes[index])

    def _stored(self, group: int, block_hash: bytes, **facts: Any) -> BlockStored:
        unknown: dict[str, Any] = {
            "parent_block_hash": None,
            "token_ids": [],
            "block_size": 0,
            "lora_id": None,
            "lora_name": None,
        }
        return BlockStored(
            block_hashes=[kv_cache_utils.maybe_convert_block_hash(_engine_hash(block_hash))],
            medium=MEDIUM,
            **(unknown | facts),
            **_offered(
                BlockStored,
                group_idx=group,
                kv_cache_spec_kind=self._groups[group].kind,
                kv_cache_spec_sliding_window=self._groups[group].sliding_window,
                locality=LOCALITY,
            ),
        )


def _parents_first(stored: list[tuple[int, BlockStored]]) -> list[BlockStored]:
    """The core publishes a chain's end before its head; a router's tree needs a block's parent before the block."""
    return [event for _, event in sorted(stored, key=lambda entry: entry[0])]


def _removed(group: int, block_hash: bytes) -> BlockRemoved:
    return BlockRemoved(
        block_hashes=[kv_cache_utils.maybe_convert_block_hash(_engine_hash(block_hash))],
        medium=MEDIUM,
        **_offered(BlockRemoved, group_idx=group, locality=LOCALITY),
    )


def _engine_hash(block_hash: bytes) -> Any:
    return kv_cache_utils.BlockHash(block_hash)


def _offered(event_class: type[Any], **facts: Any) -> dict[str, Any]:
    """The facts for which this vLLM's event class has a field."""
    return {name: value for name, value in facts.items() if name in event_class.__struct_fields__}


def _published_extra_keys(extra_keys: tuple[Any, ...] | None) -> Any:
    """One entry for the one block; 0.31 and later tag the keys in the hash and publish them untagged."""
    convert = getattr(kv_cache_utils, "to_event_extra_keys", None)
    return convert([extra_keys]) if convert is not None else [extra_keys]
