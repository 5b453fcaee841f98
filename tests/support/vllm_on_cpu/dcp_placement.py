"""Which rank holds which token under decode context parallelism, and vLLM's slot mapping for it.

A block spans block_tokens * num_ranks tokens. They are dealt out `interleave` at a time, rank after rank; a rank's rows
of a block follow each other. vLLM's CPU build has a slot mapping that asserts one rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from vllm_on_cpu.start_patches import Replacements

_KERNEL = "vllm.v1.worker.block_table.ComputeSlotMappingKernel.kernel"


def owner_and_row(position: Any, block_tokens: int, num_ranks: int, interleave: int) -> tuple[Any, Any, Any]:
    """Of token positions (numbers or tensors): the rank, the index in the block table, the row in that rank's block."""
    offset = position % (block_tokens * num_ranks)
    owner = offset // interleave % num_ranks
    row = offset // (interleave * num_ranks) * interleave + offset % interleave
    return owner, position // (block_tokens * num_ranks), row


def positions_of_rank(rank: int, num_tokens: int, num_ranks: int, interleave: int) -> torch.Tensor:
    """The positions of a sequence whose rows `rank` holds, in the order of its rows."""
    row = torch.arange(-(-num_tokens // (num_ranks * interleave)) * interleave)
    position = row // interleave * (interleave * num_ranks) + rank * interleave + row % interleave
    return position[position < num_tokens]


def slot_mapping(
    num_tokens: int, max_num_tokens: int, query_start_loc: torch.Tensor, positions: torch.Tensor,
    block_table: torch.Tensor, block_table_stride: int, slots: torch.Tensor, block_tokens: int, num_ranks: int = 1,
    rank: int = 0, interleave: int = 1, padding: int = -1, BLOCK_SIZE: int = 1024,
) -> None:  # fmt: skip
    """Fills `slots`: where this rank writes each token of the step, `padding` for tokens of other ranks. The arguments
    and their order are those with which vLLM launches its kernel."""
    lengths = (query_start_loc[1:] - query_start_loc[:-1]).long()
    count = int(lengths.sum())
    owner, index, row = owner_and_row(positions[:count], block_tokens, num_ranks, interleave)
    request = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    slots[:count] = torch.where(owner == rank, block_table[request, index].long() * block_tokens + row, padding)
    slots[count:max_num_tokens] = padding


def patch(replacements: Replacements) -> None:
    from vllm.triton_utils import dispatcher
    from vllm.utils import cpu_triton_utils

    plain = cpu_triton_utils._compute_slot_mapping_kernel_impl
    # The platform takes it from there when it registers its kernels: a forked worker does so after this.
    replacements.set(cpu_triton_utils, "_compute_slot_mapping_kernel_impl", slot_mapping)
    if _KERNEL in dispatcher._registry:  # a spawned worker has done so before
        dispatcher.register_kernels({_KERNEL: slot_mapping})
    replacements.on_restore(
        lambda: dispatcher.register_kernels({_KERNEL: plain}) if _KERNEL in dispatcher._registry else None
    )
