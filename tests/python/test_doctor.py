"""The doctor finds what would go wrong, says so in text and JSON, and its exit code tells scripts."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from hostkv.vllm import compat, doctor, doctor_host
from hostkv.vllm.doctor_host import FAIL, OK, WARN

REPOSITORY = Path(__file__).resolve().parents[2]
GIB = 1 << 30
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 32, "vocab_size": 512, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
GRANITE = {
    "architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "dtype": "bfloat16",
    "hidden_size": 64, "intermediate_size": 64, "shared_intermediate_size": 128, "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention"] * 2, "num_attention_heads": 2, "num_key_value_heads": 2,
    "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_d_conv": 4,
    "mamba_expand": 2, "mamba_chunk_size": 16, "num_local_experts": 0, "num_experts_per_tok": 0, "vocab_size": 512,
    "max_position_embeddings": 4096, "position_embedding_type": "rope", "tie_word_embeddings": False,
}  # fmt: skip


def machine(root: Path, files: dict[str, str]) -> Path:
    """A root folder with these files."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def run(*arguments: str, capsys) -> tuple[int, dict]:
    """The doctor in this process; its exit code and its JSON document."""
    code = doctor.main([*arguments, "--json", "--cpu-bytes-to-use", "1MiB"])
    return code, json.loads(capsys.readouterr().out)


def found(document: dict, name: str) -> dict:
    (check,) = [check for check in document["results"] if check["name"] == name]
    return check


# ---------------------------------------------------------------------------------------------------- the machine


def test_a_pool_larger_than_free_memory_is_a_failure(tmp_path):
    root = machine(tmp_path, {"proc/meminfo": "MemTotal: 9000000 kB\nMemAvailable:    4194304 kB\n"})
    assert doctor_host.check_memory(4 * GIB, root).status == OK
    check = doctor_host.check_memory(4 * GIB + 1, root)
    assert check.status == FAIL and "4.00 GiB" in check.text


def test_memory_that_is_not_told_is_unknown_not_zero(tmp_path):
    assert doctor_host.check_memory(GIB, tmp_path).status == WARN


def test_the_tightest_control_group_counts(tmp_path):
    files = {"proc/self/cgroup": "0::/pod/box\n"}
    for folder, limit, usage in (("pod/box", "max", "1"), ("pod", str(3 * GIB), str(GIB)), (".", str(9 * GIB), "0")):
        files |= {f"sys/fs/cgroup/{folder}/memory.{name}": text for name, text in (("max", limit), ("current", usage))}
    root = machine(tmp_path, files)
    assert doctor_host.check_cgroup(2 * GIB, root).status == OK
    check = doctor_host.check_cgroup(2 * GIB + 1, root)
    assert check.status == FAIL and check.facts["left_bytes"] == 2 * GIB


def test_the_first_version_of_control_groups_is_read_too(tmp_path):
    folder = "sys/fs/cgroup/memory/box/memory."
    files = {"proc/self/cgroup": "5:cpu:/box\n4:memory:/box\n", folder + "usage_in_bytes": "0"}
    root = machine(tmp_path, files | {folder + "limit_in_bytes": str(GIB)})
    assert doctor_host.check_cgroup(2 * GIB, root).status == FAIL
    machine(root, {folder + "limit_in_bytes": "9223372036854771712"})
    assert doctor_host.check_cgroup(2 * GIB, root).facts == {"left_bytes": None}


def test_no_control_group_is_no_limit(tmp_path):
    assert doctor_host.check_cgroup(GIB, tmp_path).status == OK


def test_a_small_limit_of_locked_memory_is_said_to_matter_for_gpus():
    check = doctor_host.check_memlock(GIB, 65536)
    assert check.status == OK and "GPU will need 1.00 GiB" in check.text
    assert "GPU" not in doctor_host.check_memlock(GIB, GIB).text
    assert doctor_host.check_memlock(GIB, resource.RLIM_INFINITY).facts == {"limit_bytes": None}


def test_a_pool_that_spans_numa_nodes_is_said_to(tmp_path):
    files = {}
    for node in (0, 1):
        folder = f"sys/devices/system/node/node{node}"
        files[f"{folder}/meminfo"] = f"Node {node} MemTotal: 4194304 kB\nNode {node} MemFree: 1024 kB\n"
        files[f"{folder}/cpulist"] = f"{node}\n"
    root = machine(tmp_path, files)
    check = doctor_host.check_numa(5 * GIB, root)
    assert "2 nodes: node0 4.00 GiB, node1 4.00 GiB" in check.text and "span" in check.text
    assert check.facts["nodes"]["node1"] == {"total_bytes": 4 * GIB, "free_bytes": 1 << 20, "cpus": "1"}
    assert "span" not in doctor_host.check_numa(4 * GIB, root).text


def test_unknown_numa_nodes_are_a_warning(tmp_path):
    assert doctor_host.check_numa(GIB, tmp_path).status == WARN


@pytest.mark.parametrize(("setting", "mode", "status"), [("always madvise [never]", "never", WARN),
                                                         ("always [madvise] never", "madvise", OK)])  # fmt: skip
def test_huge_pages_switched_off_are_a_warning(setting, mode, status, tmp_path):
    files = {
        "sys/kernel/mm/transparent_hugepage/enabled": setting,
        "proc/meminfo": "HugePages_Total:      12\nHugepagesize:    2048 kB\n",
    }
    check = doctor_host.check_huge_pages(machine(tmp_path, files))
    assert (check.status, check.facts) == (status, {"transparent": mode, "reserved_pages": 12})


def test_a_missing_driver_is_no_defect():
    check = doctor_host.check_driver("libnever-there.so.1")
    assert check.status == OK and check.facts["driver"] is None


class FakeDriver:
    """What ctypes would give for libcuda; `error` is the answer of cuInit."""

    def __init__(self, error):
        self.cuInit = lambda flags: error

    def cuDriverGetVersion(self, version):
        version._obj.value = 13010
        return 0

    def cuDeviceGetCount(self, count):
        count._obj.value = 2
        return 0


def test_a_driver_tells_version_and_devices_or_its_error(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeDriver(0))
    assert doctor_host.check_driver().facts == {"driver": "13.1", "devices": 2}
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeDriver(999))
    check = doctor_host.check_driver()
    assert check.status == WARN and "999" in check.text


# ---------------------------------------------------------------------------------------------------- vLLM


def test_a_supported_vllm_passes(capsys):
    code, document = run(capsys=capsys)
    assert (code, document["schema_version"], document["command"]) == (0, 1, "doctor")
    assert document["hostkv_version"]
    for name in ("hostkv", "vllm", "contract", "offers", "platform"):
        assert found(document, name)["status"] == OK, name
    assert document["config"]["options"]["cpu_bytes_to_use"] == 1 << 20


def test_the_document_is_all_that_stands_on_standard_output():
    command = [sys.executable, "-m", "hostkv.vllm.doctor", "--json", "--cpu-bytes-to-use", "1MiB"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["command"] == "doctor"


def test_what_vllm_prints_meanwhile_stays_out_of_the_document(capsys, monkeypatch):
    monkeypatch.setattr(compat, "missing_names", lambda: print("a banner") or [])
    code, document = run(capsys=capsys)
    assert (code, document["command"]) == (0, "doctor")


def test_version_029_is_refused_with_the_reason(capsys, monkeypatch):
    monkeypatch.setattr(compat, "installed_version", lambda: "0.29.0")
    code, document = run(capsys=capsys)
    check = found(document, "vllm")
    assert (code, check["status"]) == (1, FAIL)
    assert "0.29" in check["text"] and "failed load" in check["text"]


def test_a_missing_name_is_a_failure_that_names_it(capsys, monkeypatch):
    monkeypatch.setattr(compat, "missing_names", lambda: ["vllm.v1.core.block_pool.BlockPool.touch"])
    code, document = run(capsys=capsys)
    assert code == 1
    assert "BlockPool.touch" in found(document, "contract")["text"]


def test_an_untested_newer_version_is_a_warning_when_every_name_is_there(capsys, monkeypatch):
    monkeypatch.setattr(compat, "installed_version", lambda: "0.99.0")
    code, document = run(capsys=capsys)
    assert (code, found(document, "vllm")["status"]) == (0, WARN)
    monkeypatch.setattr(compat, "missing_names", lambda: ["vllm.gone"])
    code, document = run(capsys=capsys)
    assert code == 1 and "vllm.gone" in found(document, "vllm")["text"]


@pytest.mark.parametrize("error", [ImportError("libtorch.so is gone"), RuntimeError("torch broke")])
def test_a_vllm_that_cannot_be_imported_is_a_failure_with_the_cause(error, capsys, monkeypatch):
    def broken():
        raise error

    monkeypatch.setattr(compat, "installed_version", broken)
    code, document = run(capsys=capsys)
    assert code == 1 and str(error) in found(document, "vllm")["text"]


def test_what_a_version_lacks_is_named_with_its_consequence(monkeypatch):
    monkeypatch.setattr(doctor, "_has", lambda module, owner, name: False)
    text = doctor.offers_check().text
    for _, _, name, consequence in doctor.OFFERS:
        assert name in text and consequence in text


def test_every_offer_stands_in_some_supported_version():
    import vllm

    newest = compat.release_of(vllm.__version__) == compat.NEWEST_TESTED
    lacking = doctor.offers_check().facts["lacking"]
    assert len(lacking) < len(doctor.OFFERS)
    assert not newest or lacking == {}


# ---------------------------------------------------------------------------------------------------- input


def test_the_transfer_flag_is_judged_as_at_start(capsys):
    flag = json.dumps({"kv_connector": "HostKVConnector", "kv_role": "kv_both",
                       "kv_connector_extra_config": {"block_size": 64}})  # fmt: skip
    _, document = run("--kv-transfer-config", flag, capsys=capsys)
    texts = [(check["status"], check["text"]) for check in document["results"] if check["name"] == "options"]
    assert any(status == OK and "block_size=64" in text for status, text in texts)
    assert any(status == WARN and '"fail"' in text for status, text in texts)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--kv-transfer-config", "{"], "no JSON"),
        (["--kv-transfer-config", "[]"], "object"),
        (["--kv-transfer-config", '{"kv_connector": "NixlConnector"}'], "NixlConnector"),
        (["--kv-transfer-config", '{"kv_connector_extra_config": {"disk_path": "/kv"}}'], "disk_path"),
        (["--cpu-bytes-to-use", "many"], "many"),
        (["--model", "/nowhere"], "/nowhere"),
        (["--geometry", "/nowhere.json"], "/nowhere.json"),
    ],
)
def test_bad_input_is_one_message_that_names_it_and_exit_2(arguments, named, capsys):
    assert doctor.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and named in printed.err


@pytest.mark.parametrize("arguments", [["--tp", "0"], ["--tp", "two"], ["--unknown"]])
def test_arguments_that_cannot_be_parsed_are_exit_2(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        doctor.main(arguments)
    assert stopped.value.code == 2


def test_text_has_a_line_a_check_and_quiet_shows_failures_only(capsys, monkeypatch):
    assert doctor.main(["--cpu-bytes-to-use", "1MiB"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("ok       contract") for line in lines)
    assert doctor.main(["--cpu-bytes-to-use", "1MiB", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert doctor.main(["--cpu-bytes-to-use", "512TiB", "--quiet"]) == 1
    assert "memory" in capsys.readouterr().out


# ---------------------------------------------------------------------------------------------------- models


def test_every_geometry_file_of_ours_is_understood(capsys):
    files = sorted((REPOSITORY / "bench" / "models").glob("*.json"))
    assert len(files) >= 8
    for file in files:
        code, document = run("--geometry", str(file), capsys=capsys)
        check = found(document, "geometry")
        assert (code, check["status"]) == (0, OK), (file.name, check)
        assert check["facts"]["hit_alignment_tokens"] > 0


def test_context_parallelism_widens_a_geometry(capsys):
    file = str(REPOSITORY / "bench" / "models" / "llama-like.json")
    one, eight = (
        found(run("--geometry", file, "--dcp", dcp, capsys=capsys)[1], "geometry")["facts"] for dcp in ("1", "8")
    )
    assert eight["groups"][0]["block_tokens"] == 8 * one["groups"][0]["block_tokens"]


def test_a_broken_geometry_file_is_named(tmp_path, capsys):
    (tmp_path / "bad.json").write_text('{"groups": [{"kind": "full"}]}')
    assert doctor.main(["--geometry", str(tmp_path / "bad.json")]) == 2
    assert "bad.json" in capsys.readouterr().err


def model_folder(folder: Path, config: dict) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_a_models_groups_and_boundaries_come_from_vllm_without_weights(tmp_path, capsys):
    folder = model_folder(tmp_path, LLAMA)
    code, document = run("--model", folder, "--block-size", "64", "--tp", "2", capsys=capsys)
    check = found(document, "model")
    assert (code, check["status"]) == (0, OK), check["text"]
    facts = check["facts"]
    assert (facts["hit_alignment_tokens"], facts["smallest_prefix_tokens"], facts["tp"]) == (64, 64, 2)
    # Two KV heads over two ranks: 3 layers x 64 tokens x 1 head x (K and V of 32) x 2 bytes.
    assert facts["block_bytes"] == 3 * 64 * 1 * 2 * 32 * 2
    assert os.listdir(folder) == ["config.json"]


def test_damaged_fine_hits_of_a_padded_hybrid_are_a_warning_that_explains_them(tmp_path, capsys):
    folder = model_folder(tmp_path, GRANITE)
    code, document = run("--model", folder, "--block-size", "64", "--prefix-match-unit", "16", capsys=capsys)
    check = found(document, "model")
    assert (code, check["status"]) == (0, WARN), check["text"]
    assert check["facts"]["hit_alignment_tokens"] == 16
    assert "partly filled block" in check["text"]


@pytest.mark.parametrize(
    ("said", "code", "reason"),
    [
        ('a log line\n{"error": "ValidationError: NeverHeardOf is not supported"}\n', 1, "NeverHeardOf"),
        ("", -11, "exit -11: it said nothing"),
        ("a log line\n", 3, "exit 3"),
    ],
)
def test_a_model_that_vllm_cannot_build_is_a_failure_with_its_reason(said, code, reason, tmp_path, capsys, monkeypatch):
    folder = model_folder(tmp_path, LLAMA)
    child = subprocess.CompletedProcess([], code, stdout=said, stderr="")
    monkeypatch.setattr(doctor.subprocess, "run", lambda *args, **kw: child)
    code, document = run("--model", folder, capsys=capsys)
    check = found(document, "model")
    assert (code, check["status"]) == (1, FAIL)
    assert reason in check["text"]
