"""The OpenAI server of vLLM in a process group of its own, talked to over HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vllm_on_cpu.environment import DEFAULTS

START_SECONDS = 240
STOP_SECONDS = 60
# `vllm serve` asks for a distribution named "vllm"; the CPU build's has another name.
MODULE = "vllm.entrypoints.openai.api_server"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(reached: Callable[[], Any], seconds: float, what: str) -> Any:
    """The first true answer; AssertionError behind the deadline."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = reached()
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError(f"{what}: not within {seconds} s")


class Server:
    """Starts at construction, is ready when it returns. `folder` becomes its working and its temporary folder."""

    def __init__(self, checkpoint: Path, transfer_config: dict[str, Any], folder: Path) -> None:
        self.port = free_port()
        self.folder = folder
        self.log = folder.parent / f"{folder.name}.log"
        command = [
            sys.executable, "-m", MODULE, "--model", str(checkpoint), "--served-model-name", "tiny",
            "--skip-tokenizer-init", "--dtype", "float32", "--enforce-eager", "--block-size", "32",
            "--max-model-len", "1024", "--max-num-seqs", "8", "--num-gpu-blocks-override", "64",
            "--kv-cache-memory-bytes", str(256 << 20), "--host", "127.0.0.1", "--port", str(self.port),
            "--enable-prompt-tokens-details", "--kv-transfer-config", json.dumps(transfer_config),
        ]  # fmt: skip
        environment = {**os.environ, **DEFAULTS, "VLLM_LOGGING_LEVEL": "INFO", "VLLM_SERVER_DEV_MODE": "1",
                       "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "TMPDIR": str(folder)}  # fmt: skip
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=self.log.open("w"), stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        wait_until(self._ready, START_SECONDS, "the server's start")

    def _ready(self) -> bool:
        assert self.process.poll() is None, f"the server ended: {self.log.read_text()[-3000:]}"
        try:
            return bool(self._open("/health") is not None)
        except OSError:
            return False

    def _open(self, path: str, body: dict[str, Any] | None = None, method: str | None = None) -> str:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", method=method,
            data=None if body is None else json.dumps(body).encode(), headers={"Content-Type": "application/json"},
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=60) as reply:
            return str(reply.read().decode())

    def complete(self, prompt: list[int], tokens: int = 8) -> dict[str, Any]:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
                    "return_token_ids": True}  # fmt: skip
        return dict(json.loads(self._open("/v1/completions", body)))

    def evict_device(self) -> None:
        self._open("/reset_prefix_cache", method="POST")

    def metric(self, name: str, **labels: str) -> float:
        """The sum over all time series of that name with these labels; 0 where there is none."""
        total = 0.0
        for line in self._open("/metrics").splitlines():
            found = re.match(r"([^{ ]+)(\{.*\})? (\S+)$", line)
            if found and found[1] == name and all(f'{k}="{v}"' in (found[2] or "") for k, v in labels.items()):
                total += float(found[3])
        return total

    def metric_names(self) -> set[str]:
        return {line.split("{")[0].split(" ")[0] for line in self._open("/metrics").splitlines() if line[:1] != "#"}

    def processes(self) -> set[int]:
        """Live processes of the server's session, itself among them."""
        found = set()
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, _, session = status.read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue  # ended meanwhile
            if int(session) == self.process.pid and state != "Z":
                found.add(int(status.parent.name))
        return found

    def stop(self) -> int:
        """Asks as an operator does; the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=STOP_SECONDS)

    def kill(self) -> None:
        """Whatever is left of the session, after a failed test."""
        for process in self.processes():
            os.kill(process, signal.SIGKILL)
        self.process.wait(timeout=STOP_SECONDS)
