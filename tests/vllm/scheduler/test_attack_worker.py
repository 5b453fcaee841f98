"""The worker half in odd orders of hooks, and over a core that raises."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hostkv.vllm.messages import RankReport, StepMessage
from hostkv.vllm.worker_side import WorkerSide

OK, INTERNAL = 0, 11


class Core:
    """Each step is one load job of its number; polls tell what `ready` holds. `raises`: the call that does."""

    def __init__(self):
        self.bound, self.started, self.ready, self.in_flight = [], [], [], 0
        self.idle = False
        self.raises = ""

    def _enter(self, call):
        if call == self.raises:
            raise RuntimeError(call)

    def bind_step(self, step):
        self._enter("bind_step")
        self.bound.append(step)
        self.in_flight += 1

    def start_loads(self):
        self._enter("start_loads")
        self.started.append(self.bound[-1])

    def start_stores(self):
        self._enter("start_stores")

    def poll(self):
        self._enter("poll")
        ready, self.ready = self.ready, []
        self.in_flight -= len(ready)
        return ready

    def wait_idle(self, seconds):
        self._enter("wait_idle")
        self.idle = True

    def metrics(self):
        return {"jobs_in_flight": self.in_flight}


@pytest.fixture
def side():
    config = SimpleNamespace(parallel_config=SimpleNamespace(rank=0, world_size=1))
    made = WorkerSide(config, None, None, "key")
    made.core = Core()
    return made


def message(job, request):
    return StepMessage(step=bytes([job]), loads={job: request}, epoch=3)


def test_a_step_that_is_bound_over_another_does_not_lose_its_loads(side):
    side.bind(message(1, "a"))
    side.bind(message(2, "b"))
    side.end_step()
    assert side.core.started == [bytes([1]), bytes([2])]
    side.core.ready = [(3, 1, 0, OK, []), (3, 2, 0, OK, [])]
    assert side.take_finished() == ({"a", "b"}, set())
    assert side.take_finished() == (set(), set())


def test_loads_whose_results_cannot_be_had_fail_once_nothing_is_copied_any_more(side):
    side.bind(message(1, "a"))
    side.end_step()
    side.core.raises = "poll"
    assert side.take_finished() == ({"a"}, {"a"})
    assert side.core.idle
    assert side.take_finished() == (set(), set())
    report = side.take_report()
    assert report.results == [(3, 1, 0, INTERNAL, [])]
    assert "rank 0 failed in get_transfer_results" in report.broken
    assert side.take_report() is None


def test_a_load_that_may_still_be_copied_is_not_reported(side):
    side.bind(message(1, "a"))
    side.end_step()
    side.core.raises = "poll"
    side.core.wait_idle = lambda seconds: side.core._enter("poll")
    assert side.take_finished() == (set(), set())


def test_that_one_rank_broke_survives_the_merge():
    for merged in (RankReport(broken="x").aggregate(RankReport()), RankReport().aggregate(RankReport(broken="x"))):
        assert merged.broken == "x"


def test_a_rank_that_broke_stops_the_scheduler_half(engine_of, tokens):
    engine = engine_of("full")
    engine.used_up = True
    a = tokens(1, 320)
    engine.run("a", a)
    engine.forget_device()
    output = SimpleNamespace(
        kv_connector_worker_meta=RankReport(broken="rank 0 failed"), finished_recving=None, failed_recving=None
    )
    engine.connector.update_connector_output(output)
    assert engine.run("b", a) == (0, 0)
    assert engine.side._guard.cause == "rank 0 failed"
    assert not engine.connector.has_pending_push_work()
    assert engine.num_free == engine.free_at_start
