"""What the scheduler does while a step is in flight, noted from outside: frees put off, requests ended, preemptions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def watched(engine: Any) -> Iterator[Counter[str]]:
    """Counts: `in flight` (results that left another step in flight), `deferred` (requests whose blocks the engine
    could not free at once), `late` (outputs of requests that had ended, dropped by the engine), `preempted`."""
    scheduler = engine.scheduler
    counts: Counter[str] = Counter()
    plain_update, plain_free = scheduler.update_from_output, scheduler._free_request_blocks
    plain_preempt = scheduler._preempt_request

    def update(output: Any, result: Any) -> Any:
        counts["in flight"] += bool(engine.core.batch_queue)
        counts["late"] += sum(name not in scheduler.requests for name in output.num_scheduled_tokens)
        return plain_update(output, result)

    def free(request: Any, *rest: Any, **more: Any) -> Any:
        before = len(scheduler.deferred_frees)
        found = plain_free(request, *rest, **more)
        counts["deferred"] += len(scheduler.deferred_frees) > before
        return found

    def preempt(request: Any, *rest: Any, **more: Any) -> Any:
        counts["preempted"] += 1
        return plain_preempt(request, *rest, **more)

    scheduler.update_from_output, scheduler._free_request_blocks = update, free
    scheduler._preempt_request = preempt
    try:
        yield counts
    finally:
        del scheduler.update_from_output, scheduler._free_request_blocks, scheduler._preempt_request


def request_named(engine: Any, name: str) -> Any:
    """The scheduler's own request of one that start() queued; None before it is there and behind its end."""
    return next((r for key, r in engine.scheduler.requests.items() if key.split("-")[0] == name), None)


def decoding_in_flight(engine: Any, name: str, outputs: int = 3) -> bool:
    """Whether a request has given so many tokens and has a step in flight."""
    request = request_named(engine, name)
    return request is not None and request.num_output_tokens >= outputs and request.num_in_flight_tokens > 0
