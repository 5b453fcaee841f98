"""The entry point of the group vllm.general_plugins: makes the name HostKVConnector known to vLLM.

Purpose: `kv_connector="HostKVConnector"` works without a module path, and MultiConnector can rebuild a child's
statistics, which it does by class name from the registry in the front-end process. vLLM runs it in every process.
Failure: none reaches vLLM; what stands against it is logged.
"""

from __future__ import annotations

import importlib
import logging

from hostkv.vllm import compat

NAME = "HostKVConnector"
MODULE = "hostkv.vllm"

logger = logging.getLogger("vllm.hostkv.plugin")


def register() -> None:
    """Registers the connector once; further calls change nothing. Never raises."""
    try:
        _register()
    except Exception as error:
        logger.warning("HostKV could not register %s: %s: %s", NAME, type(error).__name__, error)


def _register() -> None:
    version = compat.installed_version()
    if version is None:
        logger.warning("HostKV could not register %s: there is no vLLM to import", NAME)
        return
    release = compat.release_of(version)
    # The names of a newer, untested version are checked when a connector is made: importing them here would be early.
    if release < compat.OLDEST and release != (0, 0):
        logger.warning("HostKV did not register %s: %s", NAME, compat.version_problem(version))
        return
    factory = importlib.import_module("vllm.distributed.kv_transfer.kv_connector.factory").KVConnectorFactory
    try:
        factory.register_connector(NAME, MODULE, NAME)
    except ValueError:
        logger.debug("%s is registered already", NAME)
