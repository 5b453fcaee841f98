"""Imported by every spawned worker before the model is built (worker_extension_cls): the CPU patch of this process, and
faults in one rank's worker half."""

from __future__ import annotations

import os
from typing import Any

from vllm_on_cpu import cpu_patches
from vllm_on_cpu import start_worker as start_worker  # applies the patches of this process's parent

NAME = f"{__name__}.Extension"
PATCH_VARIABLE = "HOSTKV_TEST_PATCH"

cpu_patches.apply(os.environ.get(PATCH_VARIABLE, ""))


class Extension:
    """Called in every worker through collective_rpc; `rank` is the worker's own."""

    rank: int
    model_runner: Any

    def hostkv_runs_v2(self) -> bool:
        """Whether this worker's runner is V2, its kernels interpreted."""
        from vllm_on_cpu import v2_runner

        module = "vllm.v1.worker.gpu.model_runner"
        is_v2 = any(base.__module__ == module for base in type(self.model_runner).__mro__)
        return is_v2 and v2_runner.kernels_are_interpreted()

    def hostkv_fail_loads(self, rank: int, count: int, silent: bool = False) -> None:
        """Rank `rank` fails its next `count` loads; the others load well. `silent`: it says that it loaded well."""
        proxy = self._proxy()
        proxy.fail_loads = count if self.rank == rank else 0
        proxy.silent = silent

    def hostkv_hold_loads(self, rank: int, polls: int) -> None:
        """Rank `rank` reports a load `polls` polls later than it ended."""
        proxy = self._proxy()
        proxy.hold_loads = polls if self.rank == rank else 0

    def hostkv_torn_loads(self) -> int:
        """How many loads this rank has failed."""
        return len(self._proxy().torn)

    def hostkv_flip(self, rank: int, group: int, slot: int, offset: int) -> None:
        """One byte of one rank's own copy of a slot."""
        from support.hooks import flip_byte

        if self.rank == rank:
            flip_byte(self._proxy(), group, slot, offset)

    def hostkv_last_slot(self, group: int, block: int) -> int:
        """The host slot from which the last load of this rank filled that device block."""
        return next(
            slot for job in reversed(self._proxy().loads) for g, b, slot in job.blocks if (g, b) == (group, block)
        )

    def hostkv_interleave(self) -> int:
        """What this rank's model runs with."""
        return int(self.model_runner.parallel_config.cp_kv_cache_interleave_size)  # type: ignore[attr-defined]

    def hostkv_bytes(self, group: int, slot: int) -> bytes:
        """This rank's own copy of a slot."""
        return bytes(self._proxy().host_block(group, slot))

    def _proxy(self) -> Any:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        from support.hooks import CoreProxy

        connector = get_kv_transfer_group()
        core = connector.worker_side.core
        return core if isinstance(core, CoreProxy) else CoreProxy(connector).install()
