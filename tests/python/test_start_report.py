"""What the connector says and refuses at its start."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from hostkv.vllm import start_report
from hostkv.vllm.start_report import GroupFacts, HookWatch, StartFacts

GIB = 1 << 30


def facts(**changes):
    values = {
        "hostkv_version": "1.0", "vllm_version": "0.32.0", "store_mode": "eager", "boundaries": "fine",
        "hit_alignment_tokens": 16, "smallest_prefix_tokens": 64, "ranks": 2, "host_bytes": 8 * GIB,
        "device_bytes": 4 * GIB, "groups": (GroupFacts("mamba", 64, True), GroupFacts("ring", 32, False)),
    }  # fmt: skip
    return StartFacts(**(values | changes))


def config(caching=True, policy="recompute", role="kv_both"):
    return SimpleNamespace(
        cache_config=SimpleNamespace(enable_prefix_caching=caching),
        kv_transfer_config=SimpleNamespace(kv_load_failure_policy=policy, kv_role=role),
    )


def warnings(lines):
    return [text for level, text in lines if level == logging.WARNING]


def test_a_good_start_is_one_line_and_no_warning():
    ((level, line),) = start_report.report_lines(facts(), config())
    assert level == logging.INFO
    for fact in ("HostKV 1.0", "vLLM 0.32.0", "multiples of 16 tokens", "boundaries fine", "prefix 64 tokens",
                 "8.00 GiB", "2 ranks", "4.00 GiB", "mamba 64", "ring 32 (not stored)"):  # fmt: skip
        assert fact in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"policy": "fail"}, ['"fail"', '"kv_load_failure_policy": "recompute"']),
        ({"caching": False}, ["prefix caching is off"]),
        ({"role": "kv_producer"}, ['"kv_producer"', "finds nothing", '"kv_both"']),
        ({"role": "kv_consumer"}, ['"kv_consumer"', "stores nothing", '"kv_both"']),
    ],
)
def test_a_setting_that_costs_what_hostkv_is_for_is_warned_about(settings, named):
    (warning,) = warnings(start_report.report_lines(facts(), config(**settings)))
    for text in named:
        assert text in warning


def test_an_eager_pool_that_only_mirrors_the_device_is_warned_about():
    small = {"host_bytes": 4 * GIB}
    (warning,) = warnings(start_report.report_lines(facts(**small), config()))
    assert str(4 * GIB) in warning and "mirrors" in warning and "lazy" in warning
    assert warnings(start_report.report_lines(facts(**small, store_mode="lazy"), config())) == []


def test_damaged_fine_hits_are_explained():
    (warning,) = warnings(start_report.report_lines(facts(damaged_fine_hits=True), config()))
    assert "partly filled block" in warning


def test_facts_are_taken_from_options_geometry_and_cache():
    geometry = SimpleNamespace(
        fine_hits=True, hit_alignment_tokens=16, min_reusable_tokens=64, num_groups=2,
        label=["window", "full"].__getitem__, span_tokens=[32, 64].__getitem__, offloadable=[True, False].__getitem__,
    )  # fmt: skip
    resolved = SimpleNamespace(values={"store_mode": "lazy", "boundaries": "fine"}, bytes_per_rank=5)
    cache = SimpleNamespace(kv_cache_tensors=[SimpleNamespace(size=7), SimpleNamespace(size=7)])
    taken = start_report.facts_of(resolved, geometry, cache, 3, ("1.0", "0.32.0"))
    assert (taken.host_bytes, taken.device_bytes, taken.ranks, taken.boundaries) == (5, 7, 3, "fine")
    assert taken.groups == (GroupFacts("window", 32, True), GroupFacts("full", 64, False))
    assert taken.block_sizes == "32,64"
    geometry.fine_hits = False
    assert start_report.facts_of(resolved, geometry, cache, 3, ("1.0", "0.32.0")).boundaries == "coarse"


def platform(kind):
    asks = {name: (lambda name=name: name == kind) for name in ("is_rocm", "is_xpu", "is_tpu", "is_cuda", "is_cpu")}
    return SimpleNamespace(**asks)


@pytest.mark.parametrize(
    ("kind", "named"), [("is_rocm", "ROCm"), ("is_xpu", "XPU"), ("is_tpu", "TPU"), ("is_cuda", "CUDA backend")]
)
def test_platforms_that_are_not_served_are_refused_by_name(kind, named):
    with pytest.raises(ValueError, match=named):
        start_report.check_platform(platform(kind))


def test_the_installed_cpu_platform_is_served():
    from vllm.platforms import current_platform

    start_report.check_platform(current_platform)


@pytest.mark.parametrize(
    ("device", "hip", "named"),
    [("cuda", None, "the CUDA backend is not connected to vLLM yet"), ("cuda", "7.0", "ROCm"), ("xpu", None, '"xpu"')],
)
def test_tensors_that_no_backend_copies_are_refused_by_name(device, hip, named):
    with pytest.raises(ValueError, match=named):
        start_report.check_device(device, hip)
    start_report.check_device("cpu", hip)


def test_a_hook_that_is_never_called_is_named_once():
    watch = HookWatch({"wait_for_save": "nothing is stored", "bind": "nothing is found"}, after_steps=3)
    watch.called("bind")
    told = [warnings(watch.step(num_requests=1)) for _ in range(6)]
    assert told == [[], [], ["the engine has never called wait_for_save: nothing is stored"], [], [], []]


def test_steps_without_requests_do_not_count():
    watch = HookWatch({"wait_for_save": "nothing is stored"}, after_steps=1)
    assert list(watch.step(num_requests=0)) == []
    assert len(list(watch.step(num_requests=1))) == 1


def test_hooks_that_were_called_in_time_are_not_named():
    watch = HookWatch({"wait_for_save": "nothing is stored"}, after_steps=2)
    watch.step(num_requests=1)
    watch.called("wait_for_save")
    assert list(watch.step(num_requests=1)) == []


def test_lines_are_logged_at_their_level(log):
    logger = logging.getLogger("vllm.hostkv.test")
    start_report.log_lines(logger, [(logging.INFO, "50% of a"), (logging.WARNING, "b")])
    assert [(record.levelname, record.getMessage()) for record in log] == [
        ("INFO", "HostKV: 50% of a"),
        ("WARNING", "HostKV: b"),
    ]
