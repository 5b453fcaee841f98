"""The command `hostkv`: `doctor` in Python, every other command by the C++ tool that the wheel brings.

The tool replaces this process, so its exit codes, output and signals are its own.
Failure: exit 2 with one line on standard error where the tool is missing or cannot be run.
"""

from __future__ import annotations

import difflib
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

EXIT_BAD_INPUT = 2
TOOL_COMMANDS = ("scenario", "replay", "check")
DOCTOR_LINE = "  doctor                            Checks whether HostKV works beside the installed vLLM"


def tool_path() -> Path:
    """Where the wheel keeps the C++ tool."""
    return Path(__file__).resolve().parent / "bin" / "hostkv"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns only for `doctor`, for help, and for errors of its own."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    command = arguments[0] if arguments else ""
    if command == "doctor":
        return run_doctor(arguments[1:])
    if not command:
        return fail(f"a command is needed: {', '.join(TOOL_COMMANDS)}, doctor")
    if command in ("--help", "-h"):
        return show_help()
    if meant_doctor(command):
        return fail(f'unknown command "{command}"; did you mean doctor? allowed: {", ".join(TOOL_COMMANDS)}, doctor')
    return become_tool(arguments)


def run_doctor(arguments: Sequence[str]) -> int:
    """The doctor's exit code. Imported here: the other commands need nothing of the adapter."""
    doctor = importlib.import_module("hostkv.vllm.doctor")
    return cast(int, doctor.main(list(arguments)))


def show_help() -> int:
    """The tool's help, with the commands that live in Python added to its list."""
    try:
        result = subprocess.run([tool_path(), "--help"], stdout=subprocess.PIPE, text=True, check=False)
    except OSError as error:
        return fail_to_start(error)
    print(result.stdout.rstrip("\n") + "\n" + DOCTOR_LINE)
    return result.returncode


def meant_doctor(command: str) -> bool:
    """Whether `command` is a misspelt `doctor`: the tool, which would answer otherwise, does not know that name."""
    if command.startswith("-") or command in TOOL_COMMANDS:
        return False
    return difflib.get_close_matches(command, [*TOOL_COMMANDS, "doctor"], n=1, cutoff=0.6) == ["doctor"]


def become_tool(arguments: Sequence[str]) -> int:
    """Replace this process by the tool. Returns only when that fails."""
    sys.stdout.flush()
    # Python ignores these signals, and an ignored signal stays ignored in the tool.
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execv(tool_path(), ["hostkv", *arguments])
    except OSError as error:
        return fail_to_start(error)


def fail_to_start(error: OSError) -> int:
    """Say why the tool could not be run."""
    return fail(f"cannot run {tool_path()}: {error.strerror}; install hostkv from its wheel")


def fail(text: str) -> int:
    """One line on standard error, and the exit code of wrong input."""
    print(f"hostkv: {text}", file=sys.stderr)
    return EXIT_BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
