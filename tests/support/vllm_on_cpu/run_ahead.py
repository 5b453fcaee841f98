"""Run-ahead without a GPU: the AsyncScheduler with two batches in flight, as servers with a GPU run it by default.

vLLM's CPU platform always turns `async_scheduling` off. Applied, it stays as the configuration has it, so every LLM
built meanwhile says what it wants: `async_scheduling=True` or False (None means True, as on a GPU). Scheduler, batch
queue and runner are the real ones, V1 and V2. The device still finishes a step before the call returns: the order of
scheduling is tested, not the order between host and device.
"""

from __future__ import annotations

from typing import Any

_original: Any = None


def apply() -> None:
    """In the process that builds the LLM; workers get the finished configuration."""
    global _original
    if _original is not None:
        return
    from vllm.platforms.cpu import CpuPlatform

    _original = CpuPlatform.__dict__["check_and_update_config"]
    check = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: type, config: Any) -> None:
        asked = config.scheduler_config.async_scheduling
        check(cls, config)
        config.scheduler_config.async_scheduling = asked

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


def restore() -> None:
    global _original
    if _original is not None:
        from vllm.platforms.cpu import CpuPlatform

        CpuPlatform.check_and_update_config = _original
        _original = None


def runs_ahead(llm: Any) -> bool:
    """Of an LLM whose engine core is in this process: whether a step is scheduled before the last one's results."""
    core = llm.llm_engine.engine_core.engine_core
    return core.batch_queue is not None and type(core.scheduler).__name__ == "AsyncScheduler"
