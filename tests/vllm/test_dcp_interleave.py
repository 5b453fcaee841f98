"""The interleave that counts is the one that the workers run with, whoever settled it, and keys depend on it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import Engines
from support import cases, sibling
from support.contexts import MLA, NUM_RANKS, Cell
from support.engine import HOST_BYTES, Engine
from support.ranks import assert_replayed, cold_answer, rpc
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec

from hostkv import _core
from hostkv.vllm import geometry as geometries
from hostkv.vllm import plugin

HOST_CHILD = {
    "kv_connector": "HostKVConnector", "kv_connector_module_path": "hostkv.vllm", "kv_role": "kv_both",
    "kv_connector_extra_config": {"cpu_bytes_to_use": HOST_BYTES},
}  # fmt: skip


def beside_a_sibling(cell: Cell, engines: Engines, checkpoints: Path, *children: dict[str, Any]) -> Engine:
    plugin.register()  # as vLLM does for an installed wheel
    # None: vLLM may settle it, as without the option on the command line.
    arguments = {"connector": "MultiConnector", "cp_kv_cache_interleave_size": None}
    return engines.get(cell.config(checkpoints, {"connectors": list(children)}, **arguments))


@pytest.mark.parametrize("talks", [False, True], ids=["by-handshake", "by-report"])
def test_interleave_that_a_sibling_forces_upon_the_workers_is_taken_over(
    talks: bool, engines: Engines, checkpoints: Path
) -> None:
    """The scheduler hears of it from the workers: by the handshake, or where that is the sibling's, by their first
    report, when a request is under way already."""
    cell = MLA[0]
    engine = beside_a_sibling(cell, engines, checkpoints, sibling.child(talks=talks), HOST_CHILD)
    assert rpc(engine, "hostkv_interleave") == [cell.block_tokens] * NUM_RANKS != [cell.interleave] * NUM_RANKS
    engine.ask(cases.OTHERS[0])  # a first report
    engine.forget_all()
    expected = cold_answer(engine, cases.PROMPT)
    assert_replayed(engine, expected)


# ------------------------------------------------------------------------------------------------- without an engine


def a_config(interleave: int = 1, **parallel: int) -> Any:
    """What HostKV reads of vLLM's configuration."""
    sizes = {"tensor_parallel_size": 2, "pipeline_parallel_size": 1, "decode_context_parallel_size": 2,
             "prefill_context_parallel_size": 1, "cp_kv_cache_interleave_size": interleave}  # fmt: skip
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**{**sizes, **parallel}),
        cache_config=SimpleNamespace(enable_prefix_caching=True, block_size=32, prefix_match_unit=None),
        kv_transfer_config=SimpleNamespace(),
    )


def groups_of(*blocks: tuple[str, int]) -> Any:
    kinds = {"state": a_state, "full": an_attention}
    return [
        SimpleNamespace(
            kv_cache_spec=kinds[kind](block_tokens), is_eagle_group=False, enable_kv_transfer=True,
            layer_names=[f"{kind}{block_tokens}"],
        )
        for kind, block_tokens in blocks
    ]  # fmt: skip


def an_attention(block_tokens: int) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=block_tokens, num_kv_heads=1, head_size=32, dtype=torch.float32)


def a_state(block_tokens: int) -> MambaSpec:
    return MambaSpec(block_size=block_tokens, shapes=((8,),), dtypes=(torch.float32,), mamba_cache_mode="align")


def resolved(config: Any, *blocks: tuple[str, int], **known: int) -> _core.Geometry:
    cache = SimpleNamespace(kv_cache_groups=groups_of(*blocks), hash_block_size=None, cache_hit_alignment_tokens=None)
    return geometries.resolve(cache, config, **known)


HYBRID = (("state", 32), ("full", 32))


def test_keys_depend_on_everything_that_decides_which_rank_holds_which_bytes() -> None:
    """The fingerprint goes into every key. State and page sizes follow the number of ranks, rows follow the others."""
    base = resolved(a_config(), *HYBRID).fingerprint
    others = {
        "interleave": resolved(a_config(8), *HYBRID),
        "tp": resolved(a_config(tensor_parallel_size=4), *HYBRID),
        "dcp": resolved(a_config(tensor_parallel_size=4, decode_context_parallel_size=4), *HYBRID),
        "pp": resolved(a_config(pipeline_parallel_size=2), *HYBRID),
        "tp without dcp": resolved(a_config(decode_context_parallel_size=1), *HYBRID),
    }
    found = [base, *(geometry.fingerprint for geometry in others.values())]
    assert len(set(found)) == len(found), others
    assert resolved(a_config(), *HYBRID).fingerprint == base


def test_the_interleave_of_the_workers_counts_where_it_is_known() -> None:
    forced = resolved(a_config(1), *HYBRID, interleave_tokens=32).fingerprint
    assert forced == resolved(a_config(32), *HYBRID).fingerprint != resolved(a_config(1), *HYBRID).fingerprint


def test_interleave_that_does_not_divide_every_sharded_block_is_refused_by_name() -> None:
    """A forced interleave is the smallest block of any group: a larger one need not be a multiple of it."""
    with pytest.raises(ValueError, match=r"FullAttentionSpec.*block_tokens 48 .*interleave_tokens 32"):
        resolved(a_config(1), ("state", 32), ("full", 48), interleave_tokens=32)
    with pytest.raises(ValueError, match=r"group 1.*block_tokens 48"):
        resolved(a_config(32), ("full", 64), ("full", 48))


def test_interleave_need_not_divide_blocks_that_are_not_sharded() -> None:
    assert resolved(a_config(64), ("state", 32), ("full", 64)).span_tokens(1) == 128
