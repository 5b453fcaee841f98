"""KV events: what a router hears of the host."""

from __future__ import annotations

import pytest


class Recorder:
    def __init__(self):
        self.events = []

    def publish(self, batch):
        self.events += batch.events

    def shutdown(self):
        pass

    def of_host(self, kind):
        return [event for event in self.events if type(event).__name__ == kind and event.medium == "CPU"]


def listen(engine):
    engine.scheduler.kv_event_publisher = recorder = Recorder()
    return recorder


@pytest.mark.parametrize("shape", ["full", "full+window", "full+mamba"])
def test_a_stored_block_describes_itself(engine_of, tokens, shape):
    engine = engine_of(shape, events=True)
    heard = listen(engine)
    a = tokens(1, 320)
    engine.run("a", a)
    engine.step()
    stored = heard.of_host("BlockStored")
    assert len(stored) == engine.ranks.stored > 0
    groups = engine.side.geometry.num_groups
    assert {event.group_idx for event in stored} == set(range(groups))
    for event in stored:
        assert len(event.block_hashes) == 1
        assert event.token_ids and len(event.token_ids) == event.block_size
        begin = next(at for at in range(320) if a[at : at + event.block_size] == event.token_ids)
        assert begin % event.block_size == 0
        assert (event.parent_block_hash is None) == (begin == 0)


def test_each_stored_key_is_removed_once(engine_of, tokens):
    engine = engine_of("full", host_blocks=30, events=True)
    heard = listen(engine)
    for seed in range(6):
        engine.run(f"r{seed}", tokens(seed, 320))
    engine.step()
    held = {}
    for event in heard.events:
        if type(event).__name__ not in ("BlockStored", "BlockRemoved") or event.medium != "CPU":
            continue
        key = (event.group_idx, event.block_hashes[0])
        held[key] = held.get(key, 0) + (1 if type(event).__name__ == "BlockStored" else -1)
        assert held[key] in (0, 1)
    assert heard.of_host("BlockRemoved")
    assert sum(held.values()) == engine.metrics["stored_keys"]


def test_a_store_that_failed_is_not_told(engine_of, tokens):
    engine = engine_of("full", events=True)
    heard = listen(engine)
    engine.ranks.fail = lambda job, rank: True
    engine.run("a", tokens(1, 320))
    engine.step()
    assert heard.of_host("BlockStored") == []


def test_without_events_nothing_is_gathered(engine_of, tokens):
    engine = engine_of("full")
    engine.run("a", tokens(1, 320))
    assert list(engine.connector.take_events()) == []
