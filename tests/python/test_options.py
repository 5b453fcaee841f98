"""kv_connector_extra_config: ours, vLLM's own connectors', and everything that is neither."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import vllm

from hostkv.vllm import options
from hostkv.vllm.foreign_options import FOREIGN_OPTIONS, foreign_options_markdown

REPOSITORY = Path(__file__).resolve().parents[2]
VLLM = Path(vllm.__file__).parent
CONNECTORS = VLLM / "distributed" / "kv_transfer" / "kv_connector" / "v1"


@pytest.fixture(autouse=True)
def forget_warnings():
    options._warned.clear()


def test_no_options_give_the_defaults():
    for nothing in (None, {}):
        resolved = options.resolve(nothing)
        assert resolved.bytes_per_rank == 8 << 30
        assert resolved.values["store_mode"] == "eager"
        assert (resolved.notes, resolved.warnings, resolved.offload_prompt_only) == ((), (), False)


def test_host_memory_is_shared_by_the_ranks():
    assert options.resolve({"cpu_bytes_to_use": "64GiB"}, world_size=4).bytes_per_rank == 16 << 30


def test_whole_floats_are_bytes_as_vllm_computes_them_from_gib():
    assert options.resolve({"cpu_bytes_to_use": 4.0 * (1 << 30)}).bytes_per_rank == 4 << 30


def test_bytes_per_rank_win_and_a_difference_is_warned_about():
    both = {"cpu_bytes_to_use": 8 << 30, "cpu_bytes_to_use_per_rank": 3 << 30}
    resolved = options.resolve(both, world_size=2)
    assert resolved.bytes_per_rank == 3 << 30
    assert len(resolved.warnings) == 1 and str(3 << 30) in resolved.warnings[0] and str(4 << 30) in resolved.warnings[0]


@pytest.mark.parametrize(
    "config", [{"cpu_bytes_to_use_per_rank": 3 << 30}, {"cpu_bytes_to_use": 8, "cpu_bytes_to_use_per_rank": 4}]
)
def test_bytes_per_rank_that_contradict_nothing_said_are_not_warned_about(config):
    assert options.resolve(config, world_size=2).warnings == ()


def test_memory_that_does_not_give_every_rank_a_byte_is_refused():
    with pytest.raises(ValueError, match="cpu_bytes_to_use is 3"):
        options.resolve({"cpu_bytes_to_use": 3}, world_size=4)


def test_the_cores_errors_reach_the_user():
    with pytest.raises(ValueError, match=r"store_mode.*sometimes.*eager, lazy"):
        options.resolve({"store_mode": "sometimes"})


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("cpu_byte_to_use", "cpu_bytes_to_use"),
        ("lazy_ofload", "lazy_offload"),
        ("store_treshold", "store_threshold"),
        ("DISK_PATH", "disk_path"),
    ],
)
def test_an_unknown_option_names_the_nearest_of_ours_and_vllms(wrong, nearest):
    with pytest.raises(ValueError, match=f'unknown option "{wrong}"; the nearest known one is "{nearest}"'):
        options.resolve({wrong: 1})


def test_a_value_that_json_cannot_hold_is_named():
    with pytest.raises(ValueError, match=r"cache_namespace is .*object.*JSON"):
        options.resolve({"cache_namespace": object()})


ACCEPTED = [
    ("kv_offload_backend", "cpu"), ("use_page_cache", False), ("spec_name", "CPUOffloadingSpec"),
    ("blocks_per_chunk", 1), ("store_threshold", 0), ("store_threshold", 1), ("max_tracker_size", 64000),
    ("offload_prompt_only", False), ("self_describing_kv_events", True), ("canonical_layout", False),
    ("secondary_tiers", []), ("enable_telemetry", False), ("sync_load_budget_bytes", 0),
]  # fmt: skip
MAPPED = [
    ("block_size", 64), ("blocks_per_chunk", 4), ("offload_prompt_only", True), ("self_describing_kv_events", False),
]  # fmt: skip
REFUSED = [
    ("num_cpu_blocks", 100), ("kv_offload_backend", "disk"), ("kv_offload_backend", None), ("disk_path", "/kv"),
    ("disk_capacity_bytes", 1), ("disk_buffer_slots", 2), ("use_page_cache", True),
    ("spec_name", "TieringOffloadingSpec"), ("spec_module_path", "a.b"), ("block_size", 0), ("block_size", "64"),
    ("blocks_per_chunk", -1), ("blocks_per_chunk", True), ("cache_policy_module_path", "a.b"), ("store_threshold", 2),
    ("store_threshold", True), ("max_tracker_size", 0), ("offload_prompt_only", "yes"),
    ("self_describing_kv_events", 1), ("canonical_layout", True), ("canonical_layout", 0),
    ("secondary_tiers", [{"type": "fs"}]), ("backpressure", {}), ("tier_poll_interval_s", 0.1),
    ("enable_telemetry", True), ("sync_load_budget_bytes", 1 << 20), ("connectors", []),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), ACCEPTED)
def test_an_option_with_the_same_meaning_here_is_accepted_silently(name, value):
    assert options.resolve({name: value}).notes == ()


@pytest.mark.parametrize(("name", "value"), MAPPED)
def test_a_mapped_option_gives_one_log_line_with_its_name_and_value(name, value):
    (note,) = options.resolve({name: value}).notes
    assert f"{name}={value!r}" in note


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_an_option_that_cannot_be_honoured_is_refused_by_name_with_the_reason(name, value):
    with pytest.raises(ValueError, match=re.escape(f"{name} is {value!r}")) as refusal:
        options.resolve({name: value})
    assert len(str(refusal.value)) > len(f"kv_connector_extra_config: {name} is {value!r} (): ") + 20


def test_every_treatment_that_a_row_claims_is_shown_by_a_case_and_no_other():
    cases = {"accepted": ACCEPTED, "mapped": MAPPED, "refused": REFUSED}
    for row in FOREIGN_OPTIONS:
        shown = {word for word, pairs in cases.items() if any(name == row.name for name, _ in pairs)}
        claimed = {word for word in cases if word in row.treatment}
        assert claimed <= shown <= claimed | {"refused"}, row.name


def test_notes_and_warnings_go_to_vllms_log(log):
    options.resolve({"block_size": 64, "cpu_bytes_to_use": 2, "cpu_bytes_to_use_per_rank": 4}, world_size=2).log()
    assert [record.levelname for record in log] == ["INFO", "WARNING"]


def options_read_by(source: str, holder: str) -> set[str]:
    """The names that a module reads from its extra config."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", None) == "get" and node.args:
            owner, key = ast.unparse(node.func.value), node.args[0]
        elif isinstance(node, ast.Subscript):
            owner, key = ast.unparse(node.value), node.slice
        else:
            continue
        if owner.endswith(holder) and isinstance(key, ast.Constant) and isinstance(key.value, str):
            found.add(key.value)
    return found


def test_every_option_that_the_installed_vllm_reads_is_known_here():
    sources = [CONNECTORS / "simple_cpu_offload_connector.py", CONNECTORS / "multi_connector.py"]
    sources += sorted((CONNECTORS / "offloading").rglob("*.py")) + sorted((VLLM / "v1" / "kv_offload").rglob("*.py"))
    read = set().union(*(options_read_by(source.read_text(), "extra_config") for source in sources))
    assert len(read) >= 20, read
    assert read <= set(options.known_names())


def test_the_documentation_holds_the_table_of_foreign_options():
    assert foreign_options_markdown() in (REPOSITORY / "docs" / "vllm.md").read_text()


def request(params, prompt=100):
    return SimpleNamespace(kv_transfer_params=params, num_prompt_tokens=prompt)


@pytest.mark.parametrize(
    ("params", "limit"), [(None, None), ({}, None), ({"max_offload_tokens": 0}, 0), ({"max_offload_tokens": 64}, 64)]
)
def test_a_request_may_limit_what_is_stored_for_it(params, limit, log):
    assert options.request_limits(request(params)) == limit
    assert log == []


@pytest.mark.parametrize("value", [-1, 1.5, "64", True, [], {"a": 1}])
def test_a_bad_limit_is_ignored_with_one_warning_that_names_it(value, log):
    for _ in range(3):
        assert options.request_limits(request({"max_offload_tokens": value})) is None
    (record,) = log
    assert repr(value) in record.getMessage()


def test_warnings_about_client_values_are_bounded_in_number_and_length(log):
    for i in range(1000):
        options.request_limits(request({"max_offload_tokens": f"{i}" + "x" * 10000}))
    assert 0 < len(log) <= 64
    assert all(len(record.getMessage()) < 300 for record in log)


def test_keys_of_other_connectors_in_a_request_are_ignored_with_one_warning(log):
    assert options.request_limits(request({"max_load_tokens": 5, "max_offload_tokens": 7})) == 7
    (record,) = log
    assert "max_load_tokens=5" in record.getMessage()


def test_prompt_only_ends_stores_with_the_prompt():
    assert options.request_limits(request(None, prompt=100), offload_prompt_only=True) == 100
    assert options.request_limits(request({"max_offload_tokens": 64}), offload_prompt_only=True) == 64
    assert options.request_limits(request({"max_offload_tokens": 640}), offload_prompt_only=True) == 100
