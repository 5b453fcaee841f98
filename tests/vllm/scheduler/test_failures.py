"""An exception inside a hook: the engine lives, nobody waits, nothing stays pinned."""

from __future__ import annotations

import pytest
from rig.ranks import never

CALLS = ["add_request", "append_block_hashes", "match_prefix", "on_blocks_allocated", "build_step",
         "on_worker_results", "request_finished"]  # fmt: skip


class Breaking:
    """The core, but for one call that raises, the first time."""

    def __init__(self, core, name):
        self._core, self._name = core, name
        self.raised = 0

    def __getattr__(self, name):
        if name != self._name or self.raised:
            return getattr(self._core, name)

        def broken(*arguments, **how):
            self.raised += 1
            raise RuntimeError("a defect of ours")

        return broken


@pytest.mark.parametrize("call", CALLS)
def test_an_exception_in_a_hook_leaves_the_engine_alive_and_nothing_pinned(engine_of, tokens, call):
    engine = engine_of("full")
    engine.used_up = True
    a = tokens(1, 320)
    engine.run("a", a)
    engine.forget_device()
    engine.ranks.hold = lambda job, rank: True
    engine.add("loads", a, 4)
    engine.add("stores", tokens(2, 320), 4)
    for _ in range(2):
        engine.step()
    core = engine.side.core
    engine.side.core = broken = Breaking(core, call)
    engine.add("next", tokens(3, 320), 4)
    engine.step()
    engine.ranks.hold = never
    engine.run_until_idle()
    engine.run("last", a, 4)
    assert broken.raised > 0
    assert {str(output.finish_reason) for output in engine.outputs.values()} == {"length"}
    assert not engine.connector.has_pending_push_work()
    assert core.num_pins() == 0
    assert engine.num_free == engine.free_at_start


def test_a_broken_connector_finds_and_stores_nothing_more(engine_of, tokens):
    engine = engine_of("full")
    engine.used_up = True
    a = tokens(1, 320)
    engine.run("a", a)
    stored = engine.ranks.stored
    engine.side.core = Breaking(engine.side.core, "match_prefix")
    engine.run("b", tokens(2, 320))
    engine.forget_device()
    assert engine.run("c", a) == (0, 0)
    assert engine.ranks.stored == stored
