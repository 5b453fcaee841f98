"""The C++ core of HostKV."""

from typing import Any, TypedDict

__version__: str

class OptionRow(TypedDict):
    name: str
    type: str
    unit: str
    default: str
    range: str
    help: str

def parse_options(json_text: str) -> dict[str, Any]: ...
def option_table() -> list[OptionRow]: ...
def parse_size_bytes(text: str) -> int: ...
