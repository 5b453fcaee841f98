"""What an installed wheel is: its version, its entry points, what importing it costs."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import hostkv
from hostkv import _core

REPOSITORY = Path(__file__).resolve().parents[3]


def test_the_installed_package_is_tested_and_not_the_source_tree() -> None:
    assert REPOSITORY / "python" not in Path(hostkv.__file__).resolve().parents


def test_one_version_everywhere() -> None:
    project = re.search(r"project\(hostkv VERSION ([0-9.]+)", (REPOSITORY / "CMakeLists.txt").read_text())
    assert project is not None
    assert [hostkv.__version__, _core.__version__, metadata.version("hostkv")] == [project[1]] * 3


def test_vllm_finds_the_plugin_by_its_entry_point() -> None:
    found = [entry for entry in metadata.entry_points(group="vllm.general_plugins") if entry.name == "hostkv"]
    assert [entry.value for entry in found] == ["hostkv.vllm.plugin:register"]


def test_the_package_asks_for_no_other_package() -> None:
    assert metadata.requires("hostkv") in (None, [])


def test_importing_brings_neither_torch_nor_vllm() -> None:
    program = (
        "import sys, hostkv, hostkv.cli, hostkv._core, hostkv.vllm; print(sorted({'torch', 'vllm'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "[]\n"), result.stderr


def test_the_wheel_is_typed_and_carries_the_licences_of_what_it_bundles() -> None:
    folder = Path(hostkv.__file__).parent
    assert (folder / "py.typed").exists()
    assert (folder / "_core.pyi").exists()
    assert len(list((folder / "licenses").glob("*.txt"))) >= 8
