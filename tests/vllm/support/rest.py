"""Nothing is left behind: the check at the end of nearly every test."""

from __future__ import annotations

from typing import Any

ZERO_AT_REST = ("pinned_slots", "pinned_device_blocks", "jobs_in_flight")


def leaked_pins(engine: Any) -> int:
    """Slots and device blocks that HostKV still holds in an idle engine, and blocks the pool misses."""
    engine.idle()
    metrics = engine.metrics()
    missing = engine.free_blocks_at_start - engine.free_blocks
    return metrics["pinned_slots"] + metrics["pinned_device_blocks"] + missing


def assert_at_rest(engine: Any) -> None:
    """Pins, slots and the pool's free count are back at their start values, and every token is booked once."""
    engine.idle()
    assert engine.free_blocks == engine.free_blocks_at_start, "device blocks leaked"
    assert not engine.scheduler.requests, f"requests left: {list(engine.scheduler.requests)}"
    for half in engine.scheduler_halves:
        metrics = half.scheduler_side.core.metrics()
        held = {name: metrics[name] for name in ZERO_AT_REST if metrics[name]}
        assert not held, f"still held in an idle engine: {held}"
        half.scheduler_side.core.check_conservation()
