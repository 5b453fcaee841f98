"""Several ranks that differ: in room, in speed and in what they got. Field cases of theme N."""

from __future__ import annotations

from collections import Counter

BLOCK = 16
SLOTS_A_SLAB = 1 << 16  # a slot's number is that of its slab, and its place inside


def is_load(job, rank):
    return job.direction != "store"


def test_n2_a_rank_with_less_room_sets_the_room_of_all(engine_of, tokens):
    engine = engine_of("full", host_blocks=10, num_ranks=4, short_of={2: 1})
    for seed in range(4):
        engine.run(f"r{seed}", tokens(seed, 4 * BLOCK + 1))
    stored = [slot for job in engine.ranks.seen for _, _, slot in job.blocks]
    slabs = {slot // SLOTS_A_SLAB for slot in stored}
    assert slabs == set(range(9))  # the tenth exists on three ranks only
    assert engine.metrics["pinned_slots"] == 0


def test_n3_a_slow_rank_gets_the_same_steps_and_answers_each_job_once(engine_of, tokens):
    engine = engine_of("full", num_ranks=3, batched_tokens=BLOCK)
    answers: Counter[tuple[int, int]] = Counter()
    engine.ranks.end = lambda job, rank, failed: answers.update([(job.id, rank)])
    engine.ranks.hold = lambda job, rank: rank == 1
    for seed in range(8):
        engine.add(f"r{seed}", tokens(seed, 3 * BLOCK + 1))
    for _ in range(40):
        engine.step()
    in_time = {rank: {job for job, of in answers if of == rank} for rank in range(3)}
    assert in_time[0] == in_time[2] == {job.id for job in engine.ranks.seen} and in_time[1] == set()
    assert not engine.scheduler.requests  # nobody waits for stores
    engine.ranks.hold = lambda job, rank: False
    engine.run_until_idle()
    assert set(answers.values()) == {1} and len(answers) == 3 * len(engine.ranks.seen)


def test_n4_a_hit_is_what_all_ranks_and_all_groups_have(engine_of, tokens):
    """Attention: 5 spans on rank 0, 4 on rank 1; states: up to 3."""
    span = 64
    engine = engine_of("full+mamba", num_ranks=2, batched_tokens=span, retention=None)
    prompt = tokens(1, 5 * span + 1)
    states = attention = 0

    def rows_missing(job, rank):
        return [(group, block) for group, block, _ in job.blocks if (group, block, rank) in missing]

    missing: set[tuple[int, int, int]] = set()

    def begin(job):
        nonlocal states, attention
        for group, block, _ in job.blocks:
            states, attention = states + (group == 0), attention + (group == 1)
            if group == 0 and states > 3:
                missing.add((group, block, 0))
            if group == 1 and attention == 5:
                missing.add((group, block, 1))

    engine.ranks.begin = begin
    engine.ranks.failed_rows = rows_missing
    engine.ranks.fail = lambda job, rank: bool(rows_missing(job, rank))
    engine.run("first", prompt)
    assert (states, attention) == (5, 6), (
        "what a rank has lost of attention is stored again at the end; states are gone"
    )
    engine.ranks.fail = lambda job, rank: False
    engine.ranks.begin = lambda job: None
    engine.forget_device()
    assert engine.run("again", prompt) == (0, 3 * span)


def test_n8_what_the_ranks_agree_on_is_what_a_request_goes_on_from(engine_of, tokens):
    engine = engine_of("full", num_ranks=4)
    prompt = tokens(1, 10 * BLOCK + 1)
    engine.run("first", prompt)
    engine.forget_device()
    engine.ranks.fail = lambda job, rank: rank == 1 and len(job.blocks) == 10 and is_load(job, rank)
    engine.ranks.failed_rows = lambda job, rank: [job.blocks[9][:2]]
    engine.add("again", prompt)
    scheduled = 0
    while engine.scheduler.has_requests():
        scheduled += engine.step().total_num_scheduled_tokens
    assert scheduled == len(prompt) - 9 * BLOCK, "what lies before the block that one rank lacks stays in place"
    assert [len(job.blocks) for job in engine.ranks.seen if job.request == "again"] == [10]
    engine.forget_device()
    assert engine.run("once more", prompt) == (0, 10 * BLOCK), "stored again"
