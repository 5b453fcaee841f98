"""Reference answers from a process of its own that never loads a connector.

The reference engine runs every prompt cold. It works while the test process builds its own engine, and what it
answered is kept, so that a prompt is computed once a run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import support.environment  # noqa: F401  (before vllm)
from support.compare import Answer

Question = dict[str, Any]


class Oracle:
    """Asks the reference process. Not thread-safe. close() ends the process."""

    def __init__(self, log: Path) -> None:
        self._log = log.open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.oracle"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._log, text=True, env=dict(os.environ),
        )  # fmt: skip
        self._known: dict[str, Answer] = {}

    def answers(self, checkpoint: Path, prompts: Sequence[Sequence[int]], *, tokens: int = 16,
                prompt_logprobs: bool = False, **arguments: Any) -> list[Answer]:  # fmt: skip
        """One answer a prompt, each computed cold and alone. `arguments` go to vllm.LLM."""
        common = {
            "checkpoint": str(checkpoint),
            "arguments": arguments,
            "tokens": tokens,
            "prompt_logprobs": prompt_logprobs,
        }
        questions = [dict(common, prompt=list(prompt)) for prompt in prompts]
        keys = [json.dumps(question, sort_keys=True) for question in questions]
        missing = list(dict.fromkeys(key for key in keys if key not in self._known))
        if missing:
            for key, answer in zip(missing, self._ask(missing), strict=True):
                self._known[key] = answer
        return [self._known[key] for key in keys]

    def _ask(self, questions: list[str]) -> list[Answer]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps([json.loads(question) for question in questions]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the reference process ended with {self._process.wait()}; see {self._log.name}")
        return [Answer(**{k: tuple(v) if isinstance(v, list) else v for k, v in a.items()}) for a in json.loads(line)]

    def close(self) -> None:
        if self._process.stdin and self._process.poll() is None:
            self._process.stdin.write("\n")  # workers forked meanwhile hold the pipe open: its end may not come
            self._process.stdin.close()
        self._process.wait(timeout=60)
        self._log.close()


def _serve() -> None:
    """Reads lists of questions, writes lists of answers, one line each, until an empty line or the input's end."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the engine prints goes to the log, not between the replies
    from support.engine import Engine, EngineConfig, sampling

    engine: Engine | None = None
    for line in iter(sys.stdin.readline, "\n"):
        if not line:
            break
        found = []
        for question in json.loads(line):
            config = EngineConfig.of(Path(question["checkpoint"]), **question["arguments"])
            if engine is None or engine.config != config:
                if engine is not None:
                    engine.close()
                engine = Engine(config)
            params = sampling(question["tokens"], **({"prompt_logprobs": 1} if question["prompt_logprobs"] else {}))
            answer = engine.ask(question["prompt"], params=params)[0]
            assert answer.cached_tokens == 0
            engine.evict_device()
            found.append(asdict(answer))
        replies.write(json.dumps(found) + "\n")
        replies.flush()
    if engine is not None:
        engine.close()


if __name__ == "__main__":
    _serve()
