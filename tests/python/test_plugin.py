"""The name HostKVConnector is known to vLLM, in every process, and nothing that goes wrong here stops vLLM."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

from hostkv.vllm import compat, plugin


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """A copy of vLLM's registry, so that tests begin without our name."""
    names = {name: loader for name, loader in KVConnectorFactory._registry.items() if name != plugin.NAME}
    monkeypatch.setattr(KVConnectorFactory, "_registry", names)
    return names


def test_the_name_alone_finds_the_connector():
    plugin.register()
    config = KVTransferConfig(kv_connector="HostKVConnector", kv_role="kv_both")
    assert KVConnectorFactory.get_connector_class(config).__name__ == "HostKVConnector"


def test_registering_again_changes_nothing(registry, log):
    plugin.register()
    loader = registry["HostKVConnector"]
    plugin.register()
    assert registry["HostKVConnector"] is loader
    assert [record for record in log if record.levelname != "DEBUG"] == []


def test_statistics_survive_in_multi_connector(registry):
    plugin.register()
    data = {"HostKVConnector": {"counters": {"hit_tokens": 5}}}
    assert MultiConnector.build_kv_connector_stats(data).reduce()["HostKVConnector"]["hit tokens"] == 5


def test_without_registration_multi_connector_cannot_rebuild_them():
    with pytest.raises(ValueError, match="HostKVConnector"):
        MultiConnector.build_kv_connector_stats({"HostKVConnector": {"counters": {}}})


def test_the_connectors_statistics_are_vllms_own_kind():
    plugin.register()
    stats = KVConnectorFactory.get_connector_class_by_name("HostKVConnector").build_kv_connector_stats({})
    assert isinstance(stats, KVConnectorStats)


@pytest.mark.parametrize(
    ("version", "reason"), [("0.29.0", "failed load"), ("0.11.2", "0.30 or newer"), (None, "no vLLM")]
)
def test_a_version_that_cannot_work_is_left_alone_and_the_log_says_why(version, reason, registry, log, monkeypatch):
    monkeypatch.setattr(compat, "installed_version", lambda: version)
    plugin.register()
    assert "HostKVConnector" not in registry
    (record,) = log
    assert record.levelname == "WARNING" and reason in record.getMessage()


@pytest.mark.parametrize("version", ["0.30.1", "0.33.0", "0.34.0.dev3+gabc", "dev"])
def test_supported_and_newer_versions_are_registered(version, registry, monkeypatch):
    monkeypatch.setattr(compat, "installed_version", lambda: version)
    plugin.register()
    assert "HostKVConnector" in registry


def test_an_exception_inside_does_not_reach_vllm(log, monkeypatch):
    monkeypatch.setattr(plugin.importlib, "import_module", lambda name: SimpleNamespace())
    monkeypatch.setattr(compat, "installed_version", lambda: "0.32.0")
    plugin.register()
    (record,) = log
    assert "AttributeError" in record.getMessage()


def test_importing_the_plugin_imports_neither_torch_nor_vllm():
    code = "import sys, hostkv.vllm.plugin; print(sorted({'torch', 'vllm'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"
