"""The options as hostkv._core offers them: values, errors, the table."""

from __future__ import annotations

import json

import pytest

from hostkv import _core

GIB = 1 << 30


def test_no_options_give_the_defaults_of_the_table() -> None:
    values = _core.parse_options("{}")
    assert values["cpu_bytes_to_use"] == 8 * GIB
    assert values["store_mode"] == "eager"
    assert set(values) <= {row["name"] for row in _core.option_table()}


def test_resolved_options_are_options_again() -> None:
    values = _core.parse_options('{"cpu_bytes_to_use": "3GiB", "boundaries": "coarse", "copy_threads": 4}')
    assert values["cpu_bytes_to_use"] == 3 * GIB
    assert _core.parse_options(json.dumps(values)) == values


def test_each_row_of_the_table_is_complete() -> None:
    rows = _core.option_table()
    assert len(rows) >= 5
    for row in rows:
        assert list(row) == ["name", "type", "unit", "default", "range", "help"]
        assert row["name"] and row["type"] and row["help"], row


def test_each_option_that_the_table_names_is_known_to_the_parser() -> None:
    for row in _core.option_table():
        try:
            _core.parse_options(json.dumps({row["name"]: []}))
        except ValueError as error:
            assert "did you mean" not in str(error), error
            assert row["name"] in str(error)
        else:
            pytest.fail(f"{row['name']} accepts a list")


def test_an_unknown_option_is_named_with_the_nearest_known_one() -> None:
    with pytest.raises(ValueError, match=r"cpu_byte_to_use.*cpu_bytes_to_use"):
        _core.parse_options('{"cpu_byte_to_use": 1}')


def test_a_value_out_of_range_is_named_with_what_is_allowed() -> None:
    with pytest.raises(ValueError, match=r"(?s)copy_threads.*0.*1 \.\. "):
        _core.parse_options('{"copy_threads": 0}')
    with pytest.raises(ValueError, match=r"(?s)store_mode.*never.*eager"):
        _core.parse_options('{"store_mode": "never"}')


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"copy_threads": 1} x'])
def test_what_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        _core.parse_options(text)


def test_arguments_of_another_type_are_a_type_error() -> None:
    with pytest.raises(TypeError):
        _core.parse_options({"copy_threads": 1})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("4096", 4096), ("64GiB", 64 * GIB), ("500MB", 500_000_000), ("1.5TiB", 1536 * GIB), (" 2 kib ", 2048), ("0", 0)],
)
def test_sizes_are_read_with_their_units(text: str, size_bytes: int) -> None:
    assert _core.parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "GiB", "12 parsecs", "-1", "nan", "1e400", "64GiB each"])
def test_what_is_no_size_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(ValueError) as refusal:
        _core.parse_size_bytes(text)
    assert f'"{text}"' in str(refusal.value)
