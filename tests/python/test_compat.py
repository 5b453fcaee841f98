"""The one place of version differences: which versions start, and what an untested one is asked for."""

from __future__ import annotations

import pytest

from hostkv.vllm import compat


def test_this_vllm_has_every_name_that_is_used() -> None:
    assert compat.missing_names() == []


@pytest.mark.parametrize(
    ("version", "release"),
    [("0.32.0", (0, 32)), ("0.32.1rc1+cpu", (0, 32)), ("1.0", (1, 0)), ("dev", (0, 0)), ("0.x", (0, 0))],
)
def test_releases_are_read_from_every_kind_of_version(version: str, release: tuple[int, int]) -> None:
    assert compat.release_of(version) == release


@pytest.mark.parametrize("version", ["0.30.0", "0.31.2", "0.32.0", "0.33.0"])
def test_tested_versions_start(version: str) -> None:
    assert compat.version_problem(version) is None


def test_0_29_is_refused_with_its_reason() -> None:
    problem = compat.version_problem("0.29.0")
    assert problem is not None
    assert "0.29.0 is not supported; HostKV needs 0.30 or newer: " in problem
    assert "no way to report one request's failed load" in problem


def test_older_versions_are_refused() -> None:
    assert compat.version_problem("0.11.1") == "vLLM 0.11.1 is not supported; HostKV needs 0.30 or newer"


def test_a_newer_version_starts_when_nothing_is_missing() -> None:
    assert compat.version_problem("0.34.0") is None


def test_a_newer_version_without_a_name_is_refused_by_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = (("vllm.v1.core.block_pool", "BlockPool", ("touch", "caress")), ("vllm.v1.nowhere", "Nothing", ()))
    monkeypatch.setattr(compat, "USED_NAMES", wanted)
    problem = compat.version_problem("0.34.0")
    assert problem is not None
    assert "lacks vllm.v1.core.block_pool.BlockPool.caress and 1 other names" in problem


def test_a_version_that_cannot_be_read_is_asked_for_every_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "USED_NAMES", (("vllm.v1.nowhere", "Nothing", ()),))
    assert "lacks vllm.v1.nowhere.Nothing" in (compat.version_problem("dev") or "")


def test_the_configured_interleave_is_read_from_both_of_its_names() -> None:
    class Parallel:
        cp_kv_cache_interleave_size = 8
        dcp_kv_cache_interleave_size = 1

    assert compat.configured_interleave_tokens(Parallel()) == 8
    Parallel.dcp_kv_cache_interleave_size = 16
    assert compat.configured_interleave_tokens(Parallel()) == 16
    assert compat.settled_interleave_tokens(Parallel()) == 8, "a worker has copied the old name over, if it stands"
    Parallel.cp_kv_cache_interleave_size = Parallel.dcp_kv_cache_interleave_size = None  # type: ignore[assignment]
    assert compat.configured_interleave_tokens(Parallel()) == 1
    assert compat.settled_interleave_tokens(Parallel()) == 1
