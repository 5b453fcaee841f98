"""Reference attention: plain torch in float64 over what the paged cache holds, with the softmax's log-sum-exp.

Every key and value is read back from the cache, those of the running step too, and a row is reduced in float64: a
result does not depend on how a prompt was cut into chunks, to one rounding of the output. Slow, for tiny models.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed import get_dcp_group
from vllm.v1.attention.backend import AttentionMetadataBuilder

from vllm_on_cpu.dcp_placement import positions_of_rank

# (block ids, rows) of equal length -> keys [rows, kv heads, key size] and values [rows, kv heads, value size]
Fetch = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@dataclass
class Metadata:
    """One step. `seq_lens` are global: tokens of all ranks, computed before plus this step's.

    The second half is what vLLM's MLA layer asks for: every token takes the absorbed path, prefills too.
    """

    starts: list[int]
    seq_lens: list[int]
    block_table: torch.Tensor
    num_actual_tokens: int
    num_decodes: int
    num_decode_tokens: int
    query_start_loc: torch.Tensor
    decode: SimpleNamespace
    num_prefills: int = 0
    prefill: None = None


class MetadataBuilder(AttentionMetadataBuilder[Metadata]):
    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Metadata:
        common = common_attn_metadata
        return Metadata(
            starts=common.query_start_loc.tolist(),
            seq_lens=common.seq_lens[: common.num_reqs].tolist(),
            block_table=common.block_table_tensor,
            num_actual_tokens=common.num_actual_tokens,
            num_decodes=common.num_reqs,
            num_decode_tokens=common.num_actual_tokens,
            query_start_loc=common.query_start_loc,
            decode=SimpleNamespace(seq_lens=common.seq_lens),
        )


@dataclass(frozen=True)
class Rank:
    """Where this process stands in the group that shares the cache of a sequence."""

    rank: int
    num_ranks: int
    interleave: int

    @staticmethod
    def of(implementation: Any) -> Rank:
        """Asked in every step: the engine may settle the interleave after the layers were made."""
        interleave = implementation.parallel_config.cp_kv_cache_interleave_size
        return Rank(implementation.dcp_rank, implementation.dcp_world_size, interleave)


@dataclass(frozen=True)
class Scores:
    """How scores are made: the scale, a sliding window, a soft cap."""

    scale: float
    window: int | None = None
    soft_cap: float | None = None


def attend(query: torch.Tensor, metadata: Metadata, fetch: Fetch, block_tokens: int, place: Rank,
           scores: Scores) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Attention of `query` [tokens, kv heads, heads of one kv head, size] over the rows that this rank holds.

    Returns [tokens, heads, value size] and the log-sum-exp [tokens, heads], -inf where the rank holds nothing.
    """
    parts = [
        _attend_one(query[begin:end].double(), metadata, request, fetch, block_tokens, place, scores)
        for request, (begin, end) in enumerate(itertools.pairwise(metadata.starts))
    ]
    return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts])


def _attend_one(query: torch.Tensor, metadata: Metadata, request: int, fetch: Fetch, block_tokens: int, place: Rank,
                scores: Scores) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    length = metadata.seq_lens[request]
    position = positions_of_rank(place.rank, length, place.num_ranks, place.interleave)
    row = torch.arange(len(position))
    keys, values = fetch(metadata.block_table[request, row // block_tokens].long(), row % block_tokens)
    asking = torch.arange(length - len(query), length)[:, None]
    seen = position <= asking
    if scores.window is not None:
        seen &= position > asking - scores.window
    score = torch.einsum("qhgd,khd->qhgk", query, keys.double()) * scores.scale
    if scores.soft_cap:
        score = scores.soft_cap * torch.tanh(score / scores.soft_cap)
    score = score.masked_fill(~seen[:, None, None], -torch.inf)
    lse = torch.logsumexp(score, -1)
    weight = torch.exp(score - lse.nan_to_num(neginf=0.0)[..., None])
    out = torch.einsum("qhgk,khd->qhgd", weight, values.double())
    return out.flatten(1, 2), lse.flatten(1, 2)


def combine(out: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """Partial results of every rank, for all heads -> the exact result for this rank's share of the heads."""
    group = get_dcp_group()
    num_ranks = group.world_size
    mine = out.shape[1] // num_ranks
    parts = group.all_gather(torch.cat((out.double(), lse.double()[..., None]), -1), dim=0)
    parts = parts.view(num_ranks, len(out), num_ranks, mine, -1)[:, :, group.rank_in_group]
    weight = torch.softmax(parts[..., -1:], 0)  # each token sees at least itself, on one rank
    return (weight * parts[..., :-1]).sum(0)
