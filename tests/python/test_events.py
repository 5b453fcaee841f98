"""KV events: each key told once, with everything a router needs, in every supported vLLM."""

from __future__ import annotations

import random
from types import SimpleNamespace

import msgspec
import pytest
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

from hostkv.vllm.events import KINDS, EventGroup, EventTranslator, event_groups, events_enabled

HASH_BLOCK = 16
SPAN = 32
GROUPS = (EventGroup(SPAN, "full_attention"), EventGroup(SPAN, "sliding_window", 48))


@pytest.fixture(scope="module", autouse=True)
def hash_seed():
    init_none_hash(sha256)


@pytest.fixture(autouse=True)
def hashes_as_bytes(monkeypatch):
    monkeypatch.setattr(kv_cache_utils.envs, "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", False)


def make_request(num_tokens=100, **facts):
    return Request(
        request_id="r",
        prompt_token_ids=list(range(num_tokens)),
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        block_hasher=get_request_block_hasher(HASH_BLOCK, sha256),
        **facts,
    )


def translator(request):
    return EventTranslator(GROUPS, HASH_BLOCK, {7: request}.get)


def key_at(request, boundary):
    return bytes(request.block_hashes[boundary // HASH_BLOCK - 1])


def story(kind, group, block_hash, boundary=0, request=None):
    return (kind, group, block_hash, boundary, request)


def tell(translate, request, boundary, group=0):
    key = key_at(request, boundary)
    assert translate.translate([story("planned", group, key, boundary, 7)]) == []
    (event,) = translate.translate([story("stored", group, key, boundary)])
    assert translate.num_planned == 0
    return event


def test_a_stored_block_describes_itself():
    request = make_request()
    event = tell(translator(request), request, 64, group=1)
    assert isinstance(event, BlockStored)
    assert event.block_hashes == [key_at(request, 64)]
    assert event.parent_block_hash == key_at(request, 32)
    assert event.token_ids == list(range(32, 64))
    assert (event.block_size, event.medium, event.locality) == (32, "CPU", "LOCAL")
    assert (event.group_idx, event.kv_cache_spec_kind, event.kv_cache_spec_sliding_window) == (1, "sliding_window", 48)


def test_the_first_block_has_no_parent():
    request = make_request()
    assert tell(translator(request), request, 32).parent_block_hash is None


def test_a_partly_filled_block_is_as_long_as_what_it_holds():
    request = make_request()
    event = tell(translator(request), request, 80)
    assert (event.block_size, event.token_ids) == (16, list(range(64, 80)))
    assert event.parent_block_hash == key_at(request, 64)


def test_salt_and_adapter_are_published_as_the_engine_publishes_them():
    lora = SimpleNamespace(adapter_id=3, name="tuned", lora_name="tuned", lora_int_id=3, lora_path="/adapter")
    request = make_request(cache_salt="mine", lora_request=lora)
    translate = translator(request)
    first, second = tell(translate, request, 32), tell(translate, request, 64)
    assert (first.lora_id, first.lora_name) == (3, "tuned")
    expected = [kv_cache_utils.generate_block_hash_extra_keys(request, start, start + 32, 0)[0] for start in (0, 32)]
    publish = getattr(kv_cache_utils, "to_event_extra_keys", list)
    assert first.extra_keys == publish([expected[0]])
    assert second.extra_keys == publish([expected[1]])
    assert "mine" in first.extra_keys[0] and "mine" not in second.extra_keys[0]


def test_what_the_request_said_is_taken_when_the_store_is_planned():
    requests = {7: make_request()}
    translate = EventTranslator(GROUPS, HASH_BLOCK, requests.get)
    key = key_at(requests[7], 64)
    translate.translate([story("planned", 0, key, 64, 7)])
    del requests[7]
    (event,) = translate.translate([story("stored", 0, key)])
    assert event.token_ids == list(range(32, 64))


@pytest.mark.parametrize(("boundary", "request_key"), [(64, None), (64, 8), (0, 7), (128, 7)])
def test_a_store_without_its_facts_is_told_by_hash_and_group(boundary, request_key):
    request = make_request()
    translate = translator(request)
    key = key_at(request, 64)
    translate.translate([story("planned", 1, key, boundary, request_key)])
    (event,) = translate.translate([story("stored", 1, key)])
    assert (event.block_hashes, event.group_idx, event.kv_cache_spec_kind) == ([key], 1, "sliding_window")
    assert (event.token_ids, event.block_size, event.parent_block_hash) == ([], 0, None)


def test_a_dropped_store_is_never_told_and_forgotten():
    request = make_request()
    translate = translator(request)
    key = key_at(request, 64)
    assert translate.translate([story("planned", 0, key, 64, 7), story("dropped", 0, key)]) == []
    assert translate.num_planned == 0


def test_a_removed_key_names_medium_and_group():
    (event,) = translator(None).translate([story("removed", 1, b"k" * 32)])
    assert isinstance(event, BlockRemoved)
    assert (event.block_hashes, event.medium, event.group_idx) == ([b"k" * 32], "CPU", 1)
    assert event.locality == "LOCAL"


def test_a_reset_is_told_once_and_keeps_stores_that_are_dropped_afterwards_silent():
    request = make_request()
    translate = translator(request)
    key = key_at(request, 64)
    translate.translate([story("planned", 0, key, 64, 7)])
    (event,) = translate.translate([story("cleared", 0, b"")])
    assert isinstance(event, AllBlocksCleared)
    assert translate.translate([story("dropped", 0, key)]) == []
    assert translate.num_planned == 0


def test_hashes_are_converted_as_the_engine_converts_its_own(monkeypatch):
    monkeypatch.setattr(kv_cache_utils.envs, "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", True)
    request = make_request()
    event = tell(translator(request), request, 64)
    assert event.block_hashes == [kv_cache_utils.maybe_convert_block_hash(request.block_hashes[3])]
    assert isinstance(event.block_hashes[0], int) and isinstance(event.parent_block_hash, int)


def test_kinds_may_come_as_the_cores_numbers():
    (event,) = translator(None).translate([story(KINDS.index("removed"), 0, b"k")])
    assert isinstance(event, BlockRemoved)


def test_an_unknown_kind_is_named_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'moved'.*planned, dropped, stored, removed, cleared"):
        translator(None).translate([story("moved", 0, b"k")])


def test_replaying_the_events_gives_the_keys_that_are_stored():
    seed = 20261130
    rng = random.Random(seed)
    request = make_request(2048)
    translate = translator(request)
    flying, stored, known = set(), set(), set()
    told = 0
    for _ in range(5000):
        key = (rng.randrange(2), SPAN * rng.randrange(1, 60))
        at = (key[0], key_at(request, key[1]))
        if key in stored:
            step = [story("removed", *at)]
            stored.remove(key)
        elif key in flying:
            published = rng.random() < 0.7
            step = [story("stored" if published else "dropped", *at)]
            flying.remove(key)
            stored |= {key} if published else set()
        else:
            step = [story("planned", *at, key[1], 7)]
            flying.add(key)
        for event in translate.translate(step):
            told += 1
            name = (event.group_idx, event.block_hashes[0])
            (known.add if isinstance(event, BlockStored) else known.remove)(name)
        assert known == {(group, key_at(request, boundary)) for group, boundary in stored}, f"seed {seed}"
        assert translate.num_planned == len(flying)
    assert told > 1000, f"seed {seed}"


def test_events_survive_the_engines_wire_format():
    request = make_request(cache_salt="mine")
    events = [tell(translator(request), request, 64), *translator(None).translate([story("removed", 0, b"k")])]
    batch = KVEventBatch(ts=0.0, events=events)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(batch), type=KVEventBatch).events == events


def test_groups_take_kind_and_window_from_the_engines_specs():
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    common = {"block_size": 32, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
    specs = [FullAttentionSpec(**common), SlidingWindowSpec(**common, sliding_window=48)]
    groups = event_groups([SimpleNamespace(kv_cache_spec=spec) for spec in specs], [64, 32])
    assert groups == [EventGroup(64, "full_attention", None), EventGroup(32, "sliding_window", 48)]


@pytest.mark.parametrize(
    ("config", "enabled"),
    [
        (None, False),
        (SimpleNamespace(enable_kv_cache_events=False), False),
        (SimpleNamespace(enable_kv_cache_events=True), True),
    ],
)
def test_events_are_told_only_where_the_operator_asked_for_them(config, enabled):
    assert events_enabled(SimpleNamespace(kv_events_config=config)) is enabled
