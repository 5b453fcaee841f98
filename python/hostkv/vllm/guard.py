"""What happens when a hook of ours raises: one error in the log, misses from then on, a live engine."""

from __future__ import annotations

from types import TracebackType

from vllm.logger import init_logger

logger = init_logger("vllm." + __name__)  # vLLM shows what is below its own name


class Guard:
    """`with guard("hook"):` swallows an exception of the block, logs its cause once and sets `broken`.

    One thread. `failures` counts every exception that was swallowed.
    """

    def __init__(self, side: str) -> None:
        self._side = side
        self._hook = ""
        self.broken = False
        self.failures = 0
        self.cause = ""

    def trip(self, cause: str) -> None:
        """Breaks for a reason that is no exception of this side's."""
        if not self.broken:
            self.broken, self.cause = True, cause
            logger.error("HostKV's %s side finds and stores nothing from now on: %s", self._side, cause)

    def __call__(self, hook: str) -> Guard:
        self._hook = hook
        return self

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            return False
        if not isinstance(error, Exception):
            return False
        self.failures += 1
        if not self.broken:
            self.broken = True
            self.cause = f"{self._hook}: {type(error).__name__}: {error}"
            logger.error(
                "HostKV's %s side failed in %s and finds and stores nothing from now on; the engine goes on. "
                "Please report this: %s",
                self._side,
                self._hook,
                self.cause,
                exc_info=error,
            )
        return True
