"""What vLLM's CPU build lacks for Mamba2, closed from outside. The installed files stay as they are.

0.32 declares that every Mamba2 layer exports a state checkpoint during prefill; its CPU scan cannot (IndexError).
`no_export`  declares none.
`export`     emulates the export on the CPU, so that the engine's own checkpoint path runs.
0.30 and 0.31 declare none and need nothing.
"""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from typing import Any

_originals: list[tuple[Any, str, Any]] = []


def _set(owner: Any, name: str, value: Any) -> None:
    _originals.append((owner, name, getattr(owner, name)))
    setattr(owner, name, value)


def restore() -> None:
    while _originals:
        owner, name, value = _originals.pop()
        setattr(owner, name, value)


def apply(name: str) -> None:
    """Replaces whatever was applied before. `name` is "", "no_export" or "export"."""
    restore()
    {"": lambda: None, "no_export": _no_export, "export": _export}[name]()


def exports_checkpoints() -> bool:
    """Whether the installed version declares exports for Mamba2 at all."""
    from vllm.v1.kv_cache_interface import MambaSpec

    names = {field.name for field in fields(MambaSpec)}
    return {"num_prefill_checkpoint_blocks", "prefill_checkpoint_alignment"} <= names and _declares_export()


def _declares_export() -> bool:
    import inspect

    from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2

    return "num_prefill_checkpoint_blocks" in inspect.getsource(inspect.unwrap(MambaMixer2.get_kv_cache_spec))


def _no_export() -> None:
    from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2

    if not exports_checkpoints():
        return
    plain = MambaMixer2.get_kv_cache_spec

    def spec(self: Any, config: Any) -> Any:
        found = plain(self, config)
        return replace(found, num_prefill_checkpoint_blocks=0, prefill_checkpoint_alignment=None) if found else found

    _set(MambaMixer2, "get_kv_cache_spec", spec)


def _export() -> None:
    import vllm.model_executor.layers.mamba.mamba_mixer2 as mixer
    import vllm.model_executor.layers.mamba.ops.ssd_combined as combined

    whole = combined._mamba_chunk_scan_combined_fwd

    def scan(x: Any, dt: Any, A: Any, B: Any, C: Any, chunk_size: int, out: Any, *rest: Any,
             return_intermediate_states: bool = False, initial_states: Any = None, seq_idx: Any = None,
             cu_seqlens: Any = None, cu_chunk_seqlens: Any = None, **more: Any) -> Any:  # fmt: skip
        if not return_intermediate_states:
            return whole(x, dt, A, B, C, chunk_size, out, *rest, initial_states=initial_states, seq_idx=seq_idx,
                         cu_seqlens=cu_seqlens, cu_chunk_seqlens=cu_chunk_seqlens, **more)  # fmt: skip
        scan_chunk = _ChunkScan(whole, (x, dt, A, B, C, chunk_size, out), rest, more)
        return scan_chunk.all(initial_states, seq_idx, cu_chunk_seqlens.tolist())

    _set(combined, "_mamba_chunk_scan_combined_fwd", scan)
    _set(mixer, "store_prefill_checkpoint", _store_checkpoint)


class _ChunkScan:
    """One C++ scan per logical chunk, the state carried over, so that every state between chunks is known."""

    def __init__(self, whole: Any, tensors: tuple[Any, ...], rest: tuple[Any, ...], more: dict[str, Any]) -> None:
        self.whole, self.tensors, self.rest, self.more = whole, tensors, rest, more

    def one(self, begin: int, end: int, initial: Any) -> Any:
        import torch

        x, dt, A, B, C, chunk_size, out = self.tensors
        lengths = torch.tensor([0, end - begin], dtype=torch.int32)
        part = slice(begin, end)
        return self.whole(x[part], dt[part], A, B[part], C[part], chunk_size, out[part], *self.rest,
                          initial_states=initial, cu_seqlens=lengths, **self.more)  # fmt: skip

    def all(self, initial_states: Any, seq_idx: Any, ends: list[int]) -> Any:
        import torch

        states: list[Any] = []
        for index, (begin, end) in enumerate(itertools.pairwise(ends)):
            sequence = int(seq_idx[index])
            if index == 0 or sequence != int(seq_idx[index - 1]):
                initial = None if initial_states is None else initial_states[sequence : sequence + 1]
            else:
                initial = states[-1]
            states.append(self.one(begin, end, initial))
        return torch.cat(states)


def _store_checkpoint(checkpoint: Any, chunk_idx: Any, x: Any, conv_state: Any, chunk_states: Any, ssm_state: Any,
                      query_start_loc: Any, *, state_len: int) -> None:  # fmt: skip
    for row, offset in enumerate(checkpoint.checkpoint_offsets.tolist()):
        if offset > 0:
            target = int(checkpoint.state_indices[row])
            end = int(query_start_loc[row]) + offset
            conv_state[target, :, :state_len] = x[:, end - state_len : end]
            ssm_state[target] = chunk_states[int(chunk_idx[row])]
