"""Drafts for the V2 runner that are known to be right or wrong, so that a tiny model accepts some and rejects some.

A random model repeats nothing, and n-gram lookup would never find a draft. The drafter runs as configured; what it
proposed is replaced by the known continuation of the prompt, every few tokens by a wrong one. Verification, states and
bookkeeping are the engine's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

Continuation = Callable[[tuple[int, ...]], Sequence[int] | None]


@contextmanager
def forged(llm: Any, continuation_of: Continuation, wrong_every: int = 3, wrong_token: int = 5) -> Iterator[Counter]:
    """`continuation_of`: of a prompt, None where it is not known. Counts the drafts that the scheduler saw `accepted`
    and `rejected`. The engine core and its worker must be in this process."""
    core = llm.llm_engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    counts: Counter[str] = Counter()
    plain_propose, plain_update = runner.speculator.propose, core.scheduler.update_from_output

    def propose(input_batch: Any, *arguments: Any, **named: Any) -> Any:
        drafts = plain_propose(input_batch, *arguments, **named).clone()
        for row, index in enumerate(input_batch.idx_mapping_np.tolist()):
            prompt, outputs = _known_tokens(runner.req_states, index)
            known = continuation_of(prompt)
            if known is None or outputs == 0:
                continue
            for column in range(drafts.shape[1]):
                at = outputs + column
                if at < len(known):
                    drafts[row, column] = known[at] if at % wrong_every else wrong_token
        return drafts

    def update(scheduled: Any, results: Any) -> Any:
        for request_id, drafts in scheduled.scheduled_spec_decode_tokens.items():
            given = len(results.sampled_token_ids[results.req_id_to_index[request_id]])
            if given:
                counts["accepted"] += given - 1
                counts["rejected"] += len(drafts) - (given - 1)
        return plain_update(scheduled, results)

    runner.speculator.propose, core.scheduler.update_from_output = propose, update
    try:
        yield counts
    finally:
        del runner.speculator.propose, core.scheduler.update_from_output


def _known_tokens(states: Any, index: int) -> tuple[tuple[int, ...], int]:
    """Of the request in that place: its prompt, and how many tokens it has given."""
    length = int(states.prompt_len.np[index])
    prompt = tuple(states.all_token_ids.gpu[index, :length].tolist())
    return prompt, int(states.total_len.gpu[index]) - length
