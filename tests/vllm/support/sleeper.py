"""What vLLM 0.33 does around sleep, played on an engine that cannot sleep.

Pause, reset, give the cache memory up, take it back: order and arguments are those of 0.33's engine core and worker.
The memory is really lost (filled with garbage) and on request comes back at another address, in the same tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from support.hooks import GARBAGE


class Sleeper:
    """One engine in this process. Nothing of it may run between sleep() and wake()."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def sleep(self, *, reset_connector: bool = True) -> None:
        """0.33 resets the connector as well. AssertionError where the engine would refuse to sleep."""
        engine = self._engine
        engine.idle()
        assert engine.llm.reset_prefix_cache(reset_running_requests=True, reset_connector=reset_connector)
        self.give_up()

    def give_up(self) -> None:
        """The worker's part alone."""
        self._engine.worker_connector.unregister_kv_caches()
        for storage in self._storages().values():
            storage.fill_(GARBAGE)

    def wake(self, *, moved: bool = False) -> None:
        """The worker's part, then what the engine core tells the scheduler's half again."""
        if moved:
            self._move()
        engine = self._engine
        engine.worker_connector.restore_kv_caches()
        engine.connector.set_xfer_handshake_metadata_pp_aware(
            {(0, 0): engine.worker_connector.get_handshake_metadata()}
        )

    def _tensors(self) -> Iterator[torch.Tensor]:
        """Every view of the cache: the model's, the runner's and the connector's."""
        engine = self._engine
        runner = engine.core.model_executor.driver_worker.worker.model_runner
        layers = runner.compilation_config.static_forward_context.values()
        owners = [
            [layer.kv_cache for layer in layers if getattr(layer, "kv_cache", None) is not None],
            runner.kv_caches, list(engine.worker_connector.worker_side.kv_caches.values()),
        ]  # fmt: skip
        seen: set[int] = set()
        for tensor in _flat(owners):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield tensor

    def _storages(self) -> dict[int, torch.UntypedStorage]:
        return {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in self._tensors()}

    def _move(self) -> None:
        tensors = list(self._tensors())
        fresh = {at: torch.UntypedStorage(old.nbytes()).fill_(GARBAGE) for at, old in self._storages().items()}
        for tensor in tensors:
            storage = fresh[tensor.untyped_storage().data_ptr()]
            tensor.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def _flat(nested: Any) -> Iterator[torch.Tensor]:
    if isinstance(nested, torch.Tensor):
        yield nested
        return
    for inner in nested:
        yield from _flat(inner)
