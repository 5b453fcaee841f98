"""The command `hostkv` of an installed wheel: one set of commands over the Python part and the C++ tool."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

import hostkv
from hostkv import cli

COMMAND = Path(sys.executable).parent / "hostkv"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=False)


def test_the_version_of_the_tool_is_the_package_s() -> None:
    result = run("--version")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"hostkv {hostkv.__version__}\n", "")


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_every_command_and_the_doctor(flag: str) -> None:
    result = run(flag)
    assert result.returncode == 0
    listed = [line.split()[0] for line in result.stdout.partition("Subcommands:\n")[2].splitlines() if line.strip()]
    assert listed == [*cli.TOOL_COMMANDS, "doctor"]


def test_a_scenario_runs_to_its_good_end() -> None:
    result = run("scenario", "cold-hot-evict-replay", "--model", "kimi-like")
    assert result.returncode == 0, result.stderr
    assert "kimi-like" in result.stdout


@pytest.mark.parametrize("arguments", [["scenari"], ["replay", "--no-such-option"], ["check", "/no/such/file"]])
def test_errors_and_exit_codes_are_the_tool_s(arguments: list[str]) -> None:
    ours = run(*arguments)
    tool = subprocess.run([cli.tool_path(), *arguments], capture_output=True, text=True, check=False)
    assert ours.returncode == tool.returncode != 0
    assert (ours.stdout, ours.stderr) == (tool.stdout, tool.stderr)


def test_without_a_command_all_of_them_are_named() -> None:
    result = run()
    assert result.returncode == cli.EXIT_BAD_INPUT
    assert result.stderr == "hostkv: a command is needed: scenario, replay, check, doctor\n"


@pytest.mark.parametrize("word", ["docter", "doktor", "doctr"])
def test_a_misspelt_doctor_is_understood(word: str) -> None:
    result = run(word)
    assert result.returncode == cli.EXIT_BAD_INPUT
    assert f'"{word}"' in result.stderr
    assert "did you mean doctor?" in result.stderr


def test_a_reader_that_leaves_ends_the_command_as_it_ends_the_tool() -> None:
    codes = []
    for program in (COMMAND, cli.tool_path()):
        read_end, write_end = os.pipe()
        os.close(read_end)
        codes.append(subprocess.run([program, "--version"], stdout=write_end, check=False).returncode)
        os.close(write_end)
    assert codes == [-signal.SIGPIPE, -signal.SIGPIPE]


def test_a_signal_reaches_the_tool(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    os.mkfifo(trace)
    process = subprocess.Popen([COMMAND, "replay", "--trace", trace], stderr=subprocess.DEVNULL)
    with trace.open("w"):  # returns when the tool has opened its end, so the tool runs now
        process.terminate()
        assert process.wait(timeout=60) == -signal.SIGTERM


def test_the_doctor_runs_in_python_and_gives_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    doctor = types.ModuleType("hostkv.vllm.doctor")
    doctor.main = lambda arguments: seen.append(arguments) or 1  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hostkv.vllm.doctor", doctor)
    assert cli.main(["doctor", "--json"]) == 1
    assert seen == [["--json"]]


@pytest.mark.parametrize("arguments", [["check"], ["--help"]])
def test_a_missing_tool_is_named(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(cli, "tool_path", lambda: tmp_path / "hostkv")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGPIPE, signal.SIGXFSZ)}
    try:
        assert cli.main(arguments) == cli.EXIT_BAD_INPUT
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert str(tmp_path / "hostkv") in capsys.readouterr().err
