"""What layout.py says of a block are exactly the block's bytes, in every layout of vLLM, on its own views."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheTensor, MambaSpec, create_kv_cache_views
from vllm.v1.kv_cache_layout import KVCacheLayout

from hostkv import _core
from hostkv.vllm import layout as layouts

pytestmark = pytest.mark.all_versions

BLOCKS, LAYERS = 5, 3
ATTENTION = FullAttentionSpec(block_size=8, num_kv_heads=2, head_size=4, dtype=torch.float32)
PAGE = ATTENTION.page_size_bytes
STATE = MambaSpec(
    block_size=8, shapes=((7,), (3, 5)), dtypes=(torch.float32, torch.bfloat16), page_size_padded=PAGE,
    mamba_cache_mode="align",
)  # fmt: skip
LAYOUTS = list(KVCacheLayout)


def placement(layout: KVCacheLayout, names: list[str], offset: int = 0) -> KVCacheTensor:
    """As vLLM places layers of equal pages: its tests of the six layouts use the same strides."""
    heads, rest = 2, PAGE // 2
    size = PAGE * BLOCKS * LAYERS
    sizes = {0: LAYERS, 1: BLOCKS, 2: heads, 3: 8, 4: rest // 8}
    strides, step = {}, 1
    for dim in reversed(layout.value):
        strides[dim], step = step, step * sizes[dim]
    return KVCacheTensor(size=size, layers=names, layer_stride=strides[0], block_stride=strides[1], offset=offset)


def cache(layout: KVCacheLayout, distance: int = 0) -> tuple[Any, dict[str, torch.Tensor], torch.Tensor]:
    names = [f"layer{i}" for i in range(LAYERS)]
    tensor = placement(layout, names)
    raw = torch.zeros(tensor.size + distance, dtype=torch.int8)[distance:]
    views = create_kv_cache_views(raw, ATTENTION, BLOCKS, layout, tensor)
    group = SimpleNamespace(layer_names=names, kv_cache_spec=ATTENTION)
    config = SimpleNamespace(num_blocks=BLOCKS, kv_cache_tensors=[tensor], kv_cache_groups=[group])
    return config, dict(zip(names, views, strict=True)), raw


def geometry(*kinds: str) -> _core.Geometry:
    return _core.Geometry(groups=[{"kind": kind, "block_tokens": 8} for kind in kinds], parallel={})


def bytes_of_block(described: layouts.Layout, raw: torch.Tensor, group: int, block: int) -> list[torch.Tensor]:
    """The raw bytes that the ranges of one block name."""
    base = raw.untyped_storage()
    whole = torch.empty(0, dtype=torch.int8).set_(base)
    return [whole[offset + block * stride :][:size] for _, offset, stride, size in described.groups[group]]


@pytest.mark.parametrize("distance", [0, 4096])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_the_ranges_of_a_block_are_its_bytes_in_every_layer_and_no_others(layout: KVCacheLayout, distance: int) -> None:
    config, views, raw = cache(layout, distance)
    described = layouts.describe(config, geometry("full"), views)
    assert sum(size for _, _, _, size in described.groups[0]) == PAGE * LAYERS
    for block in range(BLOCKS):
        raw.zero_()
        for view in views.values():
            view[block] = 1.5
        touched = int((raw != 0).sum())
        for piece in bytes_of_block(described, raw, 0, block):
            piece.zero_()
        assert touched > 0
        assert int((raw != 0).sum()) == 0, f"block {block} has bytes outside its ranges"
        for piece in bytes_of_block(described, raw, 0, block):
            piece.fill_(1)
        for other in set(range(BLOCKS)) - {block}:
            assert all(not view[other].any() for view in views.values()), f"block {other} shares bytes with {block}"


def test_a_state_is_copied_without_the_padding_of_its_page() -> None:
    names = ["state0", "state1"]
    tensor = KVCacheTensor(size=PAGE * BLOCKS * 2, layers=names, layer_stride=PAGE * BLOCKS, block_stride=PAGE)
    raw = torch.zeros(tensor.size, dtype=torch.int8)
    views = create_kv_cache_views(raw, STATE, BLOCKS, KVCacheLayout.LBHNC, tensor)
    group = SimpleNamespace(layer_names=names, kv_cache_spec=STATE)
    config = SimpleNamespace(num_blocks=BLOCKS, kv_cache_tensors=[tensor], kv_cache_groups=[group])
    described = layouts.describe(config, geometry("mamba"), dict(zip(names, views, strict=True)))
    assert [size for _, _, _, size in described.groups[0]] == [7 * 4 + 15 * 2] * 2
    assert [stride for _, _, stride, _ in described.groups[0]] == [PAGE] * 2


def test_padding_of_an_attention_page_travels_with_it() -> None:
    """Scales of quantised caches may lie there."""
    spec = replace(ATTENTION, page_size_padded=PAGE + 64)
    tensor = KVCacheTensor(
        size=(PAGE + 64) * BLOCKS, layers=["a"], layer_stride=(PAGE + 64) * BLOCKS, block_stride=PAGE + 64
    )
    raw = torch.zeros(tensor.size, dtype=torch.int8)
    views = create_kv_cache_views(raw, spec, BLOCKS, KVCacheLayout.LBHNC, tensor)
    group = SimpleNamespace(layer_names=["a"], kv_cache_spec=spec)
    config = SimpleNamespace(num_blocks=BLOCKS, kv_cache_tensors=[tensor], kv_cache_groups=[group])
    described = layouts.describe(config, geometry("full"), {"a": views[0]})
    assert described.groups[0] == [(0, 0, PAGE + 64, PAGE + 64)]


def test_kernel_blocks_of_a_split_page_are_one_block() -> None:
    names = ["a"]
    tensor = KVCacheTensor(size=PAGE * BLOCKS, layers=names, layer_stride=PAGE * BLOCKS, block_stride=PAGE)
    raw = torch.zeros(tensor.size, dtype=torch.int8)
    views = create_kv_cache_views(raw, ATTENTION, BLOCKS, KVCacheLayout.LBHNC, tensor, kernel_block_size=4)
    assert views[0].shape[0] == 2 * BLOCKS
    group = SimpleNamespace(layer_names=names, kv_cache_spec=ATTENTION)
    config = SimpleNamespace(num_blocks=BLOCKS, kv_cache_tensors=[tensor], kv_cache_groups=[group])
    described = layouts.describe(config, geometry("full"), {"a": views[0]})
    assert described.groups[0] == [(0, 0, PAGE, PAGE)]


@pytest.mark.parametrize("form", [tuple, list])
def test_keys_and_values_in_tensors_of_their_own_are_two_ranges(form: type) -> None:
    keys = torch.zeros(BLOCKS, 8, 2, 4)
    values = torch.zeros(BLOCKS, 8, 2, 4)
    half = keys[0].numel() * 4
    group = SimpleNamespace(layer_names=["a"], kv_cache_spec=ATTENTION)
    config = SimpleNamespace(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[group])
    described = layouts.describe(config, geometry("full"), {"a": form([keys, values])})
    assert described.groups[0] == [(0, 0, half, half), (1, 0, half, half)]


def test_a_view_elsewhere_than_stated_is_refused_by_name() -> None:
    config, views, _ = cache(KVCacheLayout.LBHNC)
    views["layer1"] = views["layer2"]
    with pytest.raises(ValueError, match="layer1 is registered at offset"):
        layouts.describe(config, geometry("full"), views)


def test_rows_that_are_no_multiple_of_the_blocks_are_refused() -> None:
    config, views, _ = cache(KVCacheLayout.LBHNC)
    views["layer0"] = views["layer0"][:4]
    with pytest.raises(ValueError, match="layer0 has 4 rows; a multiple of the 5 blocks"):
        layouts.describe(config, geometry("full"), views)


def test_caches_on_two_kinds_of_device_are_refused() -> None:
    config, views, _ = cache(KVCacheLayout.LBHNC)
    views["layer0"] = torch.empty(BLOCKS, 2, 8, 8, device="meta")
    with pytest.raises(ValueError, match=r"KV caches are on \['cpu', 'meta'\]"):
        layouts.describe(config, geometry("full"), views)
