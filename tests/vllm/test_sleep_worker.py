"""The worker half alone, over a made-up core: results that wait for the next step when the engine goes to sleep."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hostkv.vllm.messages import RankReport, StepMessage
from hostkv.vllm.worker_side import WorkerSide

OK, UNAVAILABLE = 0, 6
LOAD, STORE = 1, 2


class Core:
    """One load and one store in flight until `ready` says what polls tell."""

    def __init__(self) -> None:
        self.ready: list[Any] = []
        self.in_flight = 2
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append(name)

    def poll(self) -> list[Any]:
        ready, self.ready = self.ready, []
        self.in_flight -= len(ready)
        return ready

    def metrics(self) -> dict[str, int]:
        return {"jobs_in_flight": self.in_flight}


def end(core: Core) -> None:
    core.ready = [(1, LOAD, 0, OK, []), (1, STORE, 0, OK, [])]


def told(side: WorkerSide) -> tuple[set[str], set[str], dict[int, int]]:
    """Ended loads, failed loads, status by job: as the next step tells the scheduler."""
    side.bind(StepMessage(has_forward=False))
    side.start_stores()
    finished, failed = side.take_finished()
    report = side.take_report()
    side.end_step()
    assert isinstance(report, RankReport)
    return finished, failed, {job: status for _, job, _, status, _ in report.results}


@pytest.fixture
def side() -> WorkerSide:
    """With a load and a store begun by a step that has ended."""
    made = WorkerSide(SimpleNamespace(parallel_config=SimpleNamespace(rank=0, world_size=1)), None, None, "key")
    made.core, made._registered = Core(), True
    message = StepMessage(has_forward=True, step=b"step", epoch=1)
    message.loads[LOAD] = "request"
    made.bind(message)
    made.start_stores()
    assert made.take_finished() == (set(), set())
    made.take_report()
    return made


def test_results_that_the_last_hook_took_are_told_as_failed(side: WorkerSide) -> None:
    """Where a drafter puts wait_for_save behind the results, the last hook of the step polls."""
    end(side.core)
    side.end_step()
    side._poll()
    assert side._finished == {"request"}, "it waits for the next step"
    side.unregister()
    assert told(side) == ({"request"}, {"request"}, {LOAD: UNAVAILABLE, STORE: OK})


def test_results_that_come_behind_the_sleep_are_told_as_failed(side: WorkerSide) -> None:
    side.end_step()
    side.unregister()
    end(side.core)
    assert told(side) == ({"request"}, {"request"}, {LOAD: UNAVAILABLE, STORE: OK})


def test_results_that_the_engine_has_stay_what_they_were(side: WorkerSide) -> None:
    end(side.core)
    assert told(side) == ({"request"}, set(), {LOAD: OK, STORE: OK})
    side.unregister()
    side.bind(StepMessage(has_forward=False))
    side.start_stores()
    assert side.take_finished() == (set(), set())
    assert side.take_report() is None


def test_one_sleep_spoils_no_load_of_later(side: WorkerSide) -> None:
    """A job's number may come again after a reset of the connector."""
    end(side.core)
    side.unregister()
    told(side)
    side._registered = True
    message = StepMessage(has_forward=True, step=b"step", epoch=2)
    message.loads[LOAD] = "another"
    side.bind(message)
    side.start_stores()
    side.core.in_flight, side.core.ready = 0, [(2, LOAD, 0, OK, [])]
    assert side.take_finished() == ({"another"}, set())


def test_a_load_that_failed_in_part_and_is_lost_by_the_sleep_is_told_as_failed_not_by_its_blocks(
    side: WorkerSide,
) -> None:
    """What of it was good is gone with the rest."""
    side._cut_in_place = True
    side.end_step()
    side.core.ready = [(1, LOAD, 0, UNAVAILABLE, [(0, 9)]), (1, STORE, 0, OK, [])]
    side.unregister()
    finished, failed, _ = told(side)
    assert (finished, failed) == ({"request"}, {"request"})
    assert side.take_invalid_blocks() == set()
