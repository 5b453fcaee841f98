"""Cold, hot, evict, replay: the host answers exactly what theory says."""

from __future__ import annotations

import pytest

HASH = {"full": 16, "full+window": 16, "full+mamba": 64, "full+mamba, fine": 16}


@pytest.mark.parametrize("shape", HASH)
@pytest.mark.parametrize("prompt", [150, 160, 192, 600, 640])
def test_an_exact_repeat_is_found_on_the_host_up_to_the_last_boundary(engine_of, tokens, shape, prompt):
    engine = engine_of(shape)
    a = tokens(1, prompt)
    limit = (prompt - 1) // HASH[shape] * HASH[shape]
    assert engine.run("cold", a, 4) == (0, 0)
    hot = engine.run("hot", a, 4)
    engine.forget_device()
    replay = engine.run("replay", a, 4)
    assert sum(hot) == limit
    assert replay == (0, limit)
    assert engine.metrics["hit_tokens"] >= limit > 0


@pytest.mark.parametrize("shape", HASH)
def test_what_other_requests_pushed_out_of_the_device_comes_back_from_the_host(engine_of, tokens, shape):
    engine = engine_of(shape, device_blocks=60, host_blocks=400)
    a = tokens(1, 300)
    engine.run("a", a, 4)
    count = 0
    while engine.scheduler.kv_cache_manager.get_computed_blocks(engine_request(engine, a))[1] > 0:
        engine.run(f"x{count}", tokens(100 + count, 300))
        count += 1
    limit = 299 // HASH[shape] * HASH[shape]
    assert engine.run("again", a, 4) == (0, limit)


@pytest.mark.parametrize("shape", HASH)
def test_a_longer_prompt_continues_from_the_stored_one(engine_of, tokens, shape):
    engine = engine_of(shape)
    a = tokens(1, 640)
    engine.run("a", a, 4)
    # A recurrent state is kept at the last boundary before the prompt's end, as on the device.
    limit = (639 if "mamba" in shape else 640) // HASH[shape] * HASH[shape]
    engine.forget_device()
    assert engine.run("b", a + [7] * 3 + tokens(2, 77), 1) == (0, limit)


@pytest.mark.parametrize("shape", ["full", "full+window"])
def test_half_a_shared_prompt_is_found(engine_of, tokens, shape):
    engine = engine_of(shape)
    a = tokens(1, 300)
    engine.run("a", a, 4)
    engine.forget_device()
    assert engine.run("b", a[:200] + tokens(3, 100)) == (0, 192)


def test_only_what_the_device_lacks_is_loaded(engine_of, tokens):
    engine = engine_of("full")
    a = tokens(1, 320)
    engine.run("a", a)
    engine.forget_device()
    assert engine.run("head", a[:161]) == (0, 160)
    loaded = engine.ranks.loaded
    assert engine.run("b", a) == (160, 144)
    assert engine.ranks.loaded - loaded == 9


def test_a_prompt_on_a_multiple_of_the_unit_keeps_its_tail(engine_of, tokens):
    """The last unit of 160 tokens ends inside a block of 64: registered at the prompt's end, 144 tokens."""
    engine = engine_of("full+mamba, fine")
    a = tokens(1, 160)
    engine.run("a", a, 4)
    engine.forget_device()
    assert engine.run("b", a, 4) == (0, 144)


def engine_request(engine, tokens):
    from rig import parts

    return parts.request("probe", tokens, hash_block=engine.hash_block)
