"""What is wrong with a flag is said by name, before an engine is started with it."""

from __future__ import annotations

from typing import Any

import pytest

from hostkv.vllm import doctor_flag

GOOD: dict[str, Any] = {
    "kv_connector": "HostKVConnector",
    "kv_connector_module_path": "hostkv.vllm",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"cpu_bytes_to_use": "1GiB"},
}


def test_the_documented_flag_has_no_problem() -> None:
    assert doctor_flag.problems(GOOD) == []
    assert doctor_flag.our_part(GOOD) == GOOD


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"kv_rle": "kv_both"}, "unknown key 'kv_rle'; did you mean 'kv_role'?"),
        ({"kv_role": "both"}, "kv_role is 'both'; write \"kv_both\""),
        ({"kv_role": None}, 'kv_role is None; write "kv_both"'),
        ({"kv_load_failure_policy": "recomput"}, "kv_load_failure_policy is 'recomput'; allowed: recompute, fail"),
        ({"kv_connector_module_path": "hostkv.vlm"}, "kv_connector_module_path is 'hostkv.vlm'; write \"hostkv.vllm\""),
    ],
)
def test_each_problem_is_told_alone_and_by_name(change: dict[str, Any], told: str) -> None:
    assert doctor_flag.problems(GOOD | change) == [told]


def test_a_missing_connector_is_told() -> None:
    flag = {key: value for key, value in GOOD.items() if key != "kv_connector"}
    assert doctor_flag.problems(flag) == ['kv_connector is missing; write "HostKVConnector"']


@pytest.mark.parametrize("extra", [5, [1], "x", True])
def test_options_that_are_no_object_are_refused(extra: Any) -> None:
    with pytest.raises(ValueError, match=r"kv_connector_extra_config is .*; a JSON object is needed"):
        doctor_flag.our_part(GOOD | {"kv_connector_extra_config": extra})


def test_our_child_of_a_composite_is_what_is_looked_at() -> None:
    composite = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [{"kv_connector": "NixlConnector", "kv_role": "kv_both"}, GOOD]},
    }
    assert doctor_flag.our_part(composite) == GOOD


@pytest.mark.parametrize("connectors", [None, [], [{"kv_connector": "NixlConnector"}], 5, [5]])
def test_a_composite_without_us_is_refused(connectors: Any) -> None:
    flag = {"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": connectors}}
    with pytest.raises(ValueError, match='none of MultiConnector\'s "connectors" is "HostKVConnector"'):
        doctor_flag.our_part(flag)


def test_another_connector_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="kv_connector is 'NixlConnector'; \"HostKVConnector\" is ours"):
        doctor_flag.our_part({"kv_connector": "NixlConnector"})
