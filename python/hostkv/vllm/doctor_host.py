"""What the machine offers: memory, limits, NUMA nodes, huge pages, driver.

Purpose: the doctor's checks that need no vLLM. Files are read below a root folder, so that tests can describe other
machines. Cost: a few small files. Failure: a file that is missing or unreadable is reported as unknown, never raised.
"""

from __future__ import annotations

import ctypes
import resource
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OK, WARN, FAIL = "ok", "warning", "failure"
_GIB = 1 << 30
# cgroup v1 writes its highest page-aligned number for "no limit".
_NO_LIMIT_BYTES = 1 << 60


@dataclass(frozen=True)
class Check:
    """One finding: its name, how bad it is, a sentence for people, numbers for programs."""

    name: str
    status: str
    text: str
    facts: dict[str, Any] = field(default_factory=dict)


def gib(size_bytes: int) -> str:
    """Bytes for people."""
    return f"{size_bytes / _GIB:.2f} GiB"


def host_checks(wanted_bytes: int, root: Path = Path("/")) -> list[Check]:
    """Every check of the machine, for a host pool of `wanted_bytes` over all ranks that run here."""
    return [
        check_memory(wanted_bytes, root),
        check_cgroup(wanted_bytes, root),
        check_memlock(wanted_bytes, resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
        check_numa(wanted_bytes, root),
        check_huge_pages(root),
        check_driver(),
    ]


def check_memory(wanted_bytes: int, root: Path) -> Check:
    """Free memory against the pool."""
    available = _meminfo(root / "proc" / "meminfo").get("MemAvailable")
    if available is None:
        return Check("memory", WARN, "free memory is unknown: /proc/meminfo does not say", {"available_bytes": None})
    facts = {"available_bytes": available, "wanted_bytes": wanted_bytes}
    text = f"{gib(available)} available, the host pool takes {gib(wanted_bytes)}"
    return Check("memory", FAIL if wanted_bytes > available else OK, text, facts)


def check_cgroup(wanted_bytes: int, root: Path) -> Check:
    """The tightest memory limit of the control groups that this process is in."""
    left = _cgroup_left(root)
    if left is None:
        return Check("cgroup", OK, "no memory limit of a control group", {"left_bytes": None})
    facts = {"left_bytes": left, "wanted_bytes": wanted_bytes}
    text = f"the control group leaves {gib(left)}, the host pool takes {gib(wanted_bytes)}"
    return Check("cgroup", FAIL if wanted_bytes > left else OK, text, facts)


def check_memlock(wanted_bytes: int, limit_bytes: int) -> Check:
    """The limit of locked memory. Host memory is registered with a GPU's driver only, which locks it."""
    if limit_bytes == resource.RLIM_INFINITY:
        return Check("memlock", OK, "locked memory is not limited", {"limit_bytes": None})
    facts = {"limit_bytes": limit_bytes, "wanted_bytes": wanted_bytes}
    text = f"locked memory is limited to {gib(limit_bytes)}"
    if limit_bytes < wanted_bytes:
        text += f"; CPUs lock none, but a GPU will need {gib(wanted_bytes)}: raise ulimit -l before"
    return Check("memlock", OK, text, facts)


def check_numa(wanted_bytes: int, root: Path) -> Check:
    """NUMA nodes and their memory."""
    folders = sorted((root / "sys" / "devices" / "system" / "node").glob("node[0-9]*"))
    memory = {folder.name: _meminfo(folder / "meminfo") for folder in folders}
    total = {name: numbers.get("MemTotal", 0) for name, numbers in memory.items()}
    if not folders:
        return Check("numa", WARN, "NUMA nodes are unknown; the pool is not placed", {"nodes": {}})
    text = f"{len(folders)} node{'' if len(folders) == 1 else 's'}: "
    text += ", ".join(f"{name} {gib(size)}" for name, size in total.items())
    if len(folders) > 1 and wanted_bytes > max(total.values()):
        text += "; the pool is larger than any one node and will span them"
    nodes = {
        folder.name: {
            "total_bytes": total[folder.name],
            "free_bytes": memory[folder.name].get("MemFree"),
            "cpus": _text(folder / "cpulist"),
        }
        for folder in folders
    }
    return Check("numa", OK, text, {"nodes": nodes})


def check_huge_pages(root: Path) -> Check:
    """Transparent huge pages, which a big pool wants, and reserved ones."""
    setting = _text(root / "sys" / "kernel" / "mm" / "transparent_hugepage" / "enabled") or ""
    mode = setting.partition("[")[2].partition("]")[0] or "unknown"
    reserved = _meminfo(root / "proc" / "meminfo", unit=1).get("HugePages_Total", 0)
    facts = {"transparent": mode, "reserved_pages": reserved}
    text = f"transparent huge pages: {mode}; reserved huge pages: {reserved}"
    if mode == "never":
        return Check("huge_pages", WARN, text + "; the pool will use small pages, which copies feel", facts)
    return Check("huge_pages", OK, text, facts)


def check_driver(library: str = "libcuda.so.1") -> Check:
    """The NVIDIA driver, loaded as the core loads it. None is no defect: HostKV serves vLLM on CPUs for now."""
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return Check("driver", OK, "no NVIDIA driver (none is needed on CPUs)", {"driver": None, "devices": 0})
    version, devices = ctypes.c_int(0), ctypes.c_int(0)
    failed = driver.cuInit(0) or driver.cuDriverGetVersion(ctypes.byref(version))
    failed = failed or driver.cuDeviceGetCount(ctypes.byref(devices))
    if failed:
        return Check("driver", WARN, f"the NVIDIA driver answers error {failed}", {"driver": None, "devices": 0})
    number = f"{version.value // 1000}.{version.value % 1000 // 10}"
    text = f"NVIDIA driver for CUDA {number}, {devices.value} device(s); not used by HostKV in vLLM yet"
    return Check("driver", OK, text, {"driver": number, "devices": devices.value})


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _meminfo(path: Path, unit: int = 1024) -> dict[str, int]:
    """Fields of a meminfo file in bytes (`unit` 1: as written). A node's lines begin with "Node N"."""
    numbers = {}
    for line in (_text(path) or "").splitlines():
        name, _, value = line.partition(":")
        digits = value.split()
        if digits and digits[0].isdigit():
            numbers[name.split()[-1]] = int(digits[0]) * unit
    return numbers


def _cgroup_left(root: Path) -> int | None:
    """Bytes that the tightest control group leaves; None without a limit."""
    left = [_left(*paths) for paths in _cgroup_files(root)]
    return min((size for size in left if size is not None), default=None)


def _cgroup_files(root: Path) -> list[tuple[Path, Path]]:
    """(limit, usage) files of this process's groups and those above, in both versions of the interface."""
    files = []
    base = root / "sys" / "fs" / "cgroup"
    for line in (_text(root / "proc" / "self" / "cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        relative = Path(path.lstrip("/"))
        if controllers == "":
            folders = [base / folder for folder in (relative, *relative.parents)]
            files += [(folder / "memory.max", folder / "memory.current") for folder in folders]
        elif "memory" in controllers.split(","):
            folders = [base / "memory" / folder for folder in (relative, *relative.parents)]
            files += [(folder / "memory.limit_in_bytes", folder / "memory.usage_in_bytes") for folder in folders]
    return files


def _left(limit_file: Path, usage_file: Path) -> int | None:
    limit, usage = _text(limit_file), _text(usage_file)
    if limit is None or usage is None or not limit.isdigit() or not usage.isdigit():
        return None
    return max(0, int(limit) - int(usage)) if int(limit) < _NO_LIMIT_BYTES else None
