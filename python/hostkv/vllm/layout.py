"""Where the bytes of each block are: from registered tensors to opaque byte ranges.

Tensors are taken by address, strides and device; their dtype and meaning are never looked at. Every view is checked
against the placement that the cache configuration states. Raises ValueError naming the layer and the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from vllm.v1 import kv_cache_interface as specs

from hostkv import _core
from hostkv.vllm import geometry as geometries

Range = tuple[int, int, int, int]  # region, offset, stride from block to block, size; bytes


@dataclass
class Layout:
    """What the core's register_layout takes, and the device type of the memory."""

    num_blocks: int
    device: str
    regions: list[tuple[int, int]] = field(default_factory=list)
    groups: list[list[Range]] = field(default_factory=list)


def describe(kv_cache_config: Any, geometry: _core.Geometry, kv_caches: dict[str, Any]) -> Layout:
    """The layout of one rank's cache."""
    layout = Layout(kv_cache_config.num_blocks, _device_of(kv_caches))
    placed = _Placements(kv_cache_config)
    region_of: dict[int, int] = {}
    for index, group in enumerate(kv_cache_config.kv_cache_groups):
        ranges: list[Range] = []
        if geometry.offloadable(index):
            for name in group.layer_names:
                if name in kv_caches:
                    spec = geometries.layer_spec(group.kv_cache_spec, name)
                    for tensor in _tensors(kv_caches[name]):
                        region = _region(layout, region_of, tensor)
                        found = _ranges(name, spec, tensor, region, layout.num_blocks)
                        if not isinstance(kv_caches[name], (list, tuple)):
                            placed.check(name, region, min(piece[1] for piece in found), found[0][2])
                        ranges += found
        layout.groups.append(ranges)
    return layout


def _device_of(kv_caches: dict[str, Any]) -> str:
    devices = sorted({tensor.device.type for cache in kv_caches.values() for tensor in _tensors(cache)})
    if len(devices) != 1:
        raise ValueError(f"KV caches are on {devices or 'no device'}; HostKV needs all of them on one kind of device")
    return str(devices[0])


def _tensors(cache: Any) -> Iterator[Any]:
    """A layer's cache is one tensor, or several: K and V, or the parts of a state."""
    if isinstance(cache, (list, tuple)):
        yield from cache
    else:
        yield cache


class _Placements:
    """Where the configuration says that a layer is, held against where its view is.

    All layers of an allocation may lie behind its storage's begin by the same distance.
    """

    def __init__(self, kv_cache_config: Any) -> None:
        self._num_blocks = kv_cache_config.num_blocks
        self._stated = {
            name: (tensor.offset + position * tensor.layer_stride, tensor.block_stride)
            for tensor in kv_cache_config.kv_cache_tensors
            for position, name in enumerate(tensor.layers)
        }
        self._distances: dict[int, int] = {}

    def check(self, name: str, region: int, offset: int, stride: int) -> None:
        if name not in self._stated:
            return
        stated_offset, stated_stride = self._stated[name]
        distance = self._distances.setdefault(region, offset - stated_offset)
        if distance < 0 or offset - stated_offset != distance or (stride != stated_stride and self._num_blocks > 1):
            raise ValueError(
                f"layer {name} is registered at offset {offset} with a block stride of {stride} bytes, the cache "
                f"configuration says {stated_offset + max(0, distance)} and {stated_stride}"
            )


def _region(layout: Layout, region_of: dict[int, int], tensor: Any) -> int:
    storage = tensor.untyped_storage()
    base = storage.data_ptr()
    if base not in region_of:
        region_of[base] = len(layout.regions)
        layout.regions.append((base, storage.nbytes()))
    return region_of[base]


def _ranges(name: str, spec: Any, tensor: Any, region: int, num_blocks: int) -> list[Range]:
    """The byte ranges of one block of one layer, from the strides of its view."""
    blocks = tensor.shape[0]
    if blocks == 0 or blocks % num_blocks:
        raise ValueError(f"layer {name} has {blocks} rows; a multiple of the {num_blocks} blocks is needed")
    item = tensor.element_size()
    kernel_blocks = blocks // num_blocks
    stride = tensor.stride(0) * item * kernel_blocks
    dims = [(size, step * item) for size, step in zip(tensor.shape[1:], tensor.stride()[1:], strict=True)]
    if kernel_blocks > 1:
        dims.append((kernel_blocks, tensor.stride(0) * item))
    offset = tensor.data_ptr() - tensor.untyped_storage().data_ptr()
    pieces, size = _pieces(dims, item)
    size = _whole_page(name, spec, pieces, size, stride)
    return [(region, offset + piece, stride, size) for piece in pieces]


def _pieces(dims: list[tuple[int, int]], item: int) -> tuple[list[int], int]:
    """Offsets of the contiguous pieces of a block, and their common size."""
    size = item
    outer: list[tuple[int, int]] = []
    for count, step in sorted((dim for dim in dims if dim[0] > 1), key=lambda dim: dim[1]):
        if step == size and not outer:
            size *= count
        else:
            outer.append((count, step))
    offsets = [0]
    for count, step in outer:
        offsets = [start + index * step for start in offsets for index in range(count)]
    return sorted(offsets), size


def _whole_page(name: str, spec: Any, pieces: list[int], size: int, stride: int) -> int:
    """A page in one piece is copied as a whole, its scales and padding included; a state without its padding."""
    total = size * len(pieces)
    if isinstance(spec, specs.MambaSpec):
        if total > spec.page_size_bytes:
            raise ValueError(f"layer {name} shows {total} bytes a block, its page has {spec.page_size_bytes}")
        return size
    if len(pieces) == 1 and size <= spec.page_size_bytes <= stride:
        return int(spec.page_size_bytes)
    padded = getattr(spec, "page_size_padded", None)
    if padded is None and total not in (spec.page_size_bytes, spec.page_size_bytes // 2):
        raise ValueError(
            f"layer {name} shows {total} bytes a block in {len(pieces)} pieces, its page has {spec.page_size_bytes}"
        )
    return size
